"""The pointwise kernel: any expression of one element, over operands read through strides.

Broadcasting is a stride of 0, a permuted operand is another set of strides; dimensions that all
operands walk alike are collapsed, so most calls index with one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch_wgpu.ops.builder import Bind, Builder, Number, linear_grid
from executorch_wgpu.ops.symbolic import Scalar, ceil_div, product
from executorch_wgpu.ops.tensor import Shape, Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType

WORKGROUP = 64

#: WGSL type of one element inside an expression.
ELEMENT_TYPE = {DType.F32: "f32", DType.I32: "i32", DType.I64: "i32", DType.BOOL: "bool"}
#: WGSL type of one element in a buffer.
STORAGE_ELEMENT = {DType.F32: "f32", DType.I32: "i32", DType.I64: "i32", DType.BOOL: "u32"}


def emit_pointwise(
    b: Builder,
    name: str,
    expressions: str | Sequence[str],
    operands: Sequence[Tensor],
    outs: Tensor | Sequence[Tensor],
    *,
    helper: str = "",
) -> None:
    """Append one dispatch: ``out[...] = expression`` over ``a0``, ``a1`` ... (one element of each
    operand, of the type in ELEMENT_TYPE; the result has out's). Operands broadcast to the
    shape of the outputs. Several outputs are views of one storage with equal shapes, each with
    its expression. ``helper``: WGSL functions that the expressions call. An output may be
    strided but must not overlap itself or share a storage with an operand."""
    outs = [outs] if isinstance(outs, Tensor) else list(outs)
    texts = [expressions] if isinstance(expressions, str) else list(expressions)
    first = outs[0]
    views = [*outs, *(t.expand(first.shape) for t in operands)]
    shape, strides = collapse_dims(first.shape, [v.strides for v in views])
    vec = _vector_width(shape, strides, views, len(outs))
    dims: list[Scalar] = [*shape[:-1], shape[-1] // vec]
    params: dict[str, Number] = {"COUNT": product(dims)}
    # A thread's index is split into coordinates by dividing by every size but the outermost.
    params |= {f"D{d}": size for d, size in enumerate(dims) if d > 0}
    reads: dict[str, Bind] = {}
    described: list[dict[str, Any]] = []
    for k, (view, stride) in enumerate(zip(views, strides, strict=True)):
        vector = vec == 4 and stride[-1] != 0
        name_of = "OUT" if k < len(outs) else "A"
        entry = _address(params, f"{name_of}{k}", view.offset, stride, vector)
        if k >= len(outs):
            stored = STORAGE_ELEMENT[view.dtype]
            entry["name"] = _bind(reads, view, f"vec4<{stored}>" if vector else stored)
            entry["type"] = ELEMENT_TYPE[view.dtype]
        else:
            entry["expression"] = texts[k]
        described.append(entry)
    stored = STORAGE_ELEMENT[first.dtype]
    b.run(
        b.dispatch(
            "elementwise/pointwise.wgsl",
            name,
            reads=reads,
            writes={"out": Bind(first, f"vec4<{stored}>" if vec == 4 else stored)},
            params=params,
            consts={
                "OUTPUTS": described[: len(outs)],
                "OPERANDS": described[len(outs) :],
                "RANK": len(dims),
                "RESULT": ELEMENT_TYPE[first.dtype],
                "STORED": stored,
                "VEC": vec,
                "HELPER": helper,
            },
            grid=linear_grid(ceil_div(params["COUNT"], WORKGROUP)),
            workgroup=(WORKGROUP,),
            bytes=touched_bytes(views),
        )
    )


def _bind(reads: dict[str, Bind], view: Tensor, element: str) -> str:
    """The variable through which ``view`` is read. Operands in one storage, such as both factors
    of x * x, share a binding."""
    for variable, other in reads.items():
        if other.tensor.storage is view.storage and other.element == element:
            return variable
    variable = f"in{len(reads)}"
    reads[variable] = Bind(view, element)
    return variable


def collapse_dims(shape: Shape, layouts: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Drop dimensions of size 1 and merge neighbours that every layout walks as one. Returns the
    shape (at least one dimension) and the strides of each layout over it."""
    kept: list[tuple[Scalar, list[Scalar]]] = []
    for d, size in enumerate(shape):
        if size == 1:
            continue
        strides = [layout[d] for layout in layouts]
        if kept and all(
            outer == inner * size for outer, inner in zip(kept[-1][1], strides, strict=True)
        ):
            kept[-1] = (kept[-1][0] * size, strides)
        else:
            kept.append((size, strides))
    kept = kept or [(1, [0 for _ in layouts])]
    return (
        tuple(size for size, _ in kept),
        [tuple(strides[k] for _, strides in kept) for k in range(len(layouts))],
    )


def _vector_width(
    shape: Shape, strides: Sequence[Shape], tensors: Sequence[Tensor], outputs: int
) -> int:
    """4 where the innermost dimension can be walked four elements at a time by everybody. The
    first ``outputs`` tensors are written: those cannot be broadcast."""
    if any(t.dtype is DType.BOOL for t in tensors) or shape[-1] % 4 != 0:
        return 1
    if any(stride[-1] != 1 for stride in strides[:outputs]):
        return 1
    for stride, tensor in zip(strides, tensors, strict=True):
        if stride[-1] == 0:
            continue
        if stride[-1] != 1 or tensor.offset % 4 != 0 or any(s % 4 != 0 for s in stride[:-1]):
            return 1
    return 4


def _address(
    params: dict[str, Number], prefix: str, offset: Scalar, strides: Shape, vector: bool
) -> dict[str, Any]:
    """Declare the parameters of an operand's address and describe it to the template. Operands
    bound as vectors count in units of four; a coordinate of the innermost dimension does too."""
    unit = 4 if vector else 1
    terms: list[tuple[int, str]] = []
    for d, stride in enumerate(strides):
        step = stride // unit if d < len(strides) - 1 else stride
        if step == 0:
            continue
        if step == 1:
            terms.append((d, ""))
            continue
        params[f"{prefix}_{d}"] = step
        terms.append((d, f"{prefix}_{d}"))
    start = offset // unit
    if start != 0:
        params[f"{prefix}_AT"] = start
    return {
        "offset": f"{prefix}_AT" if start != 0 else "",
        "terms": terms,
        "vector": vector,
    }


def emit_copy(b: Builder, source: Tensor, out: Tensor, name: str = "copy") -> None:
    """Append a dispatch that copies ``source`` (broadcast, any strides) into ``out``, converting
    between dtypes as PyTorch does. Bits of NaN and infinity survive where dtypes are equal."""
    emit_pointwise(b, name, convert("a0", source.dtype, out.dtype), [source], out)


def materialize(b: Builder, tensor: Tensor, name: str = "contiguous") -> Tensor:
    """``tensor`` itself where it is contiguous with offset 0, else a contiguous copy."""
    if tensor.is_contiguous and tensor.offset == 0:
        return tensor
    out = b.empty(tensor.shape, tensor.dtype, name)
    emit_copy(b, tensor, out, name)
    return out


def convert(value: str, source: DType, target: DType) -> str:
    """A WGSL expression of ``value`` (of ELEMENT_TYPE[source]) as ELEMENT_TYPE[target]."""
    have, want = ELEMENT_TYPE[source], ELEMENT_TYPE[target]
    if have == want:
        return value
    if want == "bool":
        return f"({value} != {have}(0))"
    return f"{want}({value})"
