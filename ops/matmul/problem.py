"""What every matmul operator comes down to, and how its kernels address their operands.

``out[b, m, n] = epilogue(sum over k of a[b, m, k] * w[b, n, k])``: both factors have their
reduced dimension last, so a weight stored as [N, K] (``linear``) is contiguous along it and one
stored as [K, N] arrives as a permuted view. Strides tell the kernels apart, not operators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from executorch_wgpu.ops.builder import Bind, Number
from executorch_wgpu.ops.halves import codec, element, is_half
from executorch_wgpu.ops.matmul.pieces import Piece
from executorch_wgpu.ops.symbolic import Scalar, lower_bound, maximum
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a finished sum before it is stored.

    ``expression``: WGSL of type f32 over ``acc`` (the sum) and ``e0``, ``e1`` ... (one element of
    each operand). ``operands``: float tensors that broadcast to [B, M, N], read through strides.
    This is where a bias goes, and where fusions slot in: ``acc + e0`` adds a residual.
    ``helper``: WGSL functions that the expression calls.

    ``pairs``: rows 2 i and 2 i + 1 of ``w`` give one column i of the result, of [B, M, N / 2]; the
    expression is over ``acc`` (of row 2 i) and ``acc1``. So a gate meets what it gates.
    """

    expression: str = "acc"
    operands: tuple[Tensor, ...] = ()
    helper: str = ""
    pairs: bool = False


#: Storage buffers that every device can bind in one dispatch.
MAX_BINDINGS = DEFAULT_LIMITS["max-storage-buffers-per-shader-stage"]


@dataclass(frozen=True)
class Norm:
    """The RMS norm of ``a``'s rows: ``a / sqrt(mean(a^2) + eps) * weight``, ``weight`` [K] or
    None."""

    weight: Tensor | None
    eps: float


@dataclass(frozen=True)
class Problem:
    """``a`` [B, M, K] and ``w`` [B, N, K], any strides; ``out`` contiguous with B * M * N (half of
    that for an epilogue over pairs) elements, offset 0. Sizes may be live. ``piece_of``: all of w,
    where ``w`` is its rows from ``first`` on. ``norm``: what ``a`` still has to go through."""

    name: str
    a: Tensor
    w: Tensor
    out: Tensor
    epilogue: Epilogue = Epilogue()
    first: int = 0
    piece_of: Tensor | None = None
    norm: Norm | None = None

    @property
    def batch(self) -> Scalar:
        return size(self.a, 0)

    @property
    def m(self) -> Scalar:
        return size(self.a, 1)

    @property
    def n(self) -> Scalar:
        """Rows of ``w``: those of the piece, if it is one."""
        return size(self.w, 1)

    @property
    def group(self) -> int:
        """Rows of ``w`` to a column of the result."""
        return 2 if self.epilogue.pairs else 1

    @property
    def out_n(self) -> Scalar:
        """Columns of ``out``."""
        return size(self.piece_of or self.w, 1) // self.group

    @property
    def first_column(self) -> int:
        """The column of ``out`` that the first row of ``w`` goes to."""
        return self.first // self.group

    @property
    def k(self) -> Scalar:
        return size(self.a, 2)

    @property
    def bindings(self) -> int:
        """Buffers that a dispatch with a dense ``w`` binds, those of the norm included."""
        normed = self.norm is not None and self.norm.weight is not None
        return 3 + len(self.epilogue.operands) + normed

    @property
    def flops(self) -> Scalar:
        """Multiply-adds as two each; the epilogue does not count."""
        return 2 * self.batch * self.m * self.n * self.k

    def of_piece(self, piece: Piece) -> Problem:
        """The part of the problem that reads one piece of ``w``."""
        return replace(self, w=piece.tensor, first=piece.first, piece_of=self.w)


def size(tensor: Tensor, dim: int) -> Scalar:
    """A size that a kernel can take as u32: interval arithmetic may put the lower bound of a
    difference below 0 even where it is never negative."""
    value = tensor.shape[dim]
    return value if lower_bound(value) >= 0 else maximum(value, 0)


def is_vector(tensor: Tensor, dim: int, width: int = 4) -> bool:
    """Whether ``dim`` can be walked ``width`` elements at a time, as one element of a binding."""
    if tensor.storage.size_bytes < width * tensor.dtype.storage_bytes:
        return False
    strides = effective_strides(tensor)
    others = [stride for d, stride in enumerate(strides) if d != dim]
    whole = all(value % width == 0 for value in (tensor.shape[dim], tensor.offset, *others))
    return strides[dim] == 1 and whole


def effective_strides(tensor: Tensor) -> tuple[Scalar, ...]:
    """Strides with 0 for dimensions of size 1, whose stride means nothing."""
    return tuple(
        0 if length == 1 else stride
        for length, stride in zip(tensor.shape, tensor.strides, strict=True)
    )


@dataclass(frozen=True)
class Operand:
    """A tensor as a kernel reads it. ``vector``: the dimension counted in units of ``width``
    elements (4, or 8 of 16 bits), None when elements are read one by one. ``byte_offset``: where
    its binding starts."""

    variable: str
    tensor: Tensor
    vector: int | None = None
    byte_offset: int = 0
    width: int = 4

    @property
    def bind(self) -> Bind:
        bound = element(self.tensor.dtype, self.vector is not None)
        if self.width == 8:
            bound = "vec4<u32>"
        return Bind(self.tensor, bound, self.byte_offset)

    def describe(self, params: dict[str, Number]) -> dict[str, Any]:
        """Declare the parameters of the address in ``params`` and describe it to the templates:
        ``at`` names the start and ``strides`` one parameter a dimension, "" for a start of 0 or
        a stride of 1, None for a stride of 0. Units are what the binding counts in."""
        unit = 1 if self.vector is None else self.width
        prefix = self.variable.upper()
        names: list[str | None] = []
        for dim, stride in enumerate(effective_strides(self.tensor)):
            step = stride if dim == self.vector else stride // unit
            if step == 0 or step == 1:
                names.append(None if step == 0 else "")
            else:
                names.append(f"{prefix}_S{dim}")
                params[f"{prefix}_S{dim}"] = step
        start = self.tensor.offset // unit
        if start != 0:
            params[f"{prefix}_AT"] = start
        return {
            "name": self.variable,
            "at": f"{prefix}_AT" if start != 0 else "",
            "strides": names,
            "vector": self.vector is not None,
            "width": self.width,
            "codec": codec(self.tensor.dtype),
        }


def bind_out(problem: Problem, vector: bool = False) -> Bind:
    """``out`` from the first column of the piece on. Pieces start at multiples of 128 columns,
    hence at multiples of 256 bytes. Without ``vector``, results of 16 bits are written one by
    one, wherever their words are shared."""
    dtype = problem.out.dtype
    bound = "atomic<u32>" if is_half(dtype) and not vector else element(dtype, vector)
    return Bind(problem.out, bound, problem.first_column * dtype.storage_bytes)


def describe_epilogue(
    problem: Problem, params: dict[str, Number], reads: dict[str, Bind]
) -> dict[str, Any]:
    """Declare the parameters and bindings of the epilogue; returns what the templates' macro
    ``functions`` needs, and BATCHED."""
    shape = (problem.a.shape[0], problem.a.shape[1], problem.out_n)
    described = []
    for index, tensor in enumerate(problem.epilogue.operands):
        view = tensor.expand(shape)
        skip = problem.first_column * effective_strides(view)[2]
        name = f"e{index}_data"
        if isinstance(skip, int):
            operand = Operand(name, view, byte_offset=skip * view.dtype.storage_bytes)
        else:
            operand = Operand(name, view.with_layout(shape, view.strides, view.offset + skip))
        reads[name] = operand.bind
        described.append(operand.describe(params))
    params["OUT_N"] = problem.out_n
    return {
        "EPILOGUE": problem.epilogue.expression,
        "EPILOGUE_OPERANDS": described,
        "OUT_CODEC": codec(problem.out.dtype),
        "CODECS": {
            codec(tensor.dtype)
            for tensor in (problem.a, problem.w, problem.out, *problem.epilogue.operands)
        },
        "EPILOGUE_HELPER": problem.epilogue.helper,
        "PAIRS": problem.epilogue.pairs,
        "BATCHED": problem.batch != 1,
    }
