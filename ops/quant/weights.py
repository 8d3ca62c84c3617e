"""A packed weight as kernels bind and address it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from executorch_wgpu.ops.builder import Bind, Builder, Number
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.joined import JoinedRows
from executorch_wgpu.ops.matmul.pieces import Piece, row_pieces
from executorch_wgpu.ops.quant.layout import PackedWeight, row_words
from executorch_wgpu.ops.tensor import Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType


@dataclass(frozen=True)
class QuantWeight:
    """The tensors of a weight [N, K], see layout.py. ``packed`` [1, N, W]; ``first``: the row of
    ``scales`` and ``zeros`` that goes with its first one."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    bits: int
    group: int
    k: int
    zero: int
    first: int = 0
    #: Rows of the whole weight, where this is a part of it.
    whole_rows: int | None = None

    @staticmethod
    def of(call: OpCall) -> QuantWeight:
        """The weight among the arguments of a call (see :func:`weight_reason`)."""
        packed: Tensor = call["weight"]
        return QuantWeight(
            packed.with_layout((1, *packed.shape), (0, *packed.strides)),
            call["scales"],
            call["zeros"],
            call["bits"],
            call["group"],
            call["k"],
            call["zero"],
        )

    @staticmethod
    def of_packed(b: Builder, packed: PackedWeight, name: str) -> QuantWeight:
        """The weight with its tensors as constants of ``b``."""
        scale_dtype = DType.F32 if packed.scales.element_size() == 4 else DType.F16
        weight = b.constant(packed.packed, DType.I32, name)
        zeros = None
        if packed.zeros is not None:
            zeros = b.constant(packed.zeros, DType.I32, f"{name}.zeros")
        elif packed.offsets is not None:
            zeros = b.constant(packed.offsets, scale_dtype, f"{name}.zeros")
        return QuantWeight(
            weight.with_layout((1, *weight.shape), (0, *weight.strides)),
            b.constant(packed.scales, scale_dtype, f"{name}.scales"),
            zeros,
            packed.bits,
            packed.group,
            packed.k,
            packed.zero,
        )

    @property
    def n(self) -> int:
        return int(self.packed.shape[1])  # type: ignore[call-overload]

    @property
    def kind(self) -> str:
        """How labels name it: "w4g32" (bits, neighbours that share a scale), "w8" where a row
        shares one. ``scripts/quantization.py`` reads it back."""
        return f"w{self.bits}" + (f"g{self.group}" if self.groups > 1 else "")

    @property
    def words(self) -> int:
        """Words of a row."""
        return row_words(self.k, self.bits)

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return -(-self.k // self.group)

    @property
    def zeros_kind(self) -> str:
        """ "" for one zero for all, "bytes" or "offsets"."""
        if self.zeros is None:
            return ""
        return "bytes" if self.zeros.dtype is DType.I32 else "offsets"

    def pieces(self, b: Builder, group: int = 1) -> list[Piece] | None:
        """As ``matmul.pieces.row_pieces``."""
        return row_pieces(b, self.packed, 1, group)

    def of_piece(self, piece: Piece) -> QuantWeight:
        """Some of the rows."""
        return replace(self, packed=piece.tensor, first=piece.first, whole_rows=self.n)

    def reads(self, element: str = "u32") -> dict[str, Bind]:
        """The bindings; ``element`` is a word, or as many as a load takes."""
        found = {"weight": Bind(self.packed, element), "scales": _bind(self.scales)}
        if self.zeros is not None:
            found["zeros"] = _bind(self.zeros)
        return found

    def describe(self, params: dict[str, Number]) -> dict[str, Any]:
        """Declare the parameters; returns Q of ``weights.wgsl``."""
        params |= {"GROUPS": self.groups, "WORDS": self.words}
        if self.groups > 1:
            params["GROUP"] = self.group
        if self.whole_rows is not None:
            params["FIRST"] = self.first
        return {
            "bits": self.bits,
            "groups": self.groups,
            "zero": self.zero,
            "zeros": self.zeros_kind,
            "half": self.scales.dtype is DType.F16,
            "subnormal": any(_has_subnormals(t) for t in (self.scales, self.zeros)),
            "at": "" if self.whole_rows is None else "FIRST",
        }

    @property
    def bytes(self) -> int:
        """Bytes of these rows with their scales and zeros."""
        rows = self.n if self.whole_rows is None else self.whole_rows
        around = [t for t in (self.scales, self.zeros) if t is not None]
        share = int(touched_bytes(around)) * self.n // rows  # type: ignore[call-overload]
        return self.n * self.words * 4 + share

    def granularity(self, unit: int) -> str:
        """What shares a scale: "unit" (so many neighbours, a load), "word" or "quad" (four)."""
        if self.groups == 1 or self.group % unit == 0:
            return "unit"
        return "word" if self.group % (32 // self.bits) == 0 else "quad"


def _has_subnormals(tensor: Tensor | None) -> bool:
    """Whether f16 of a constant are below 2^-14, where devices may read zero; True where that is
    not known."""
    if tensor is None or tensor.dtype is not DType.F16:
        return False
    data = tensor.storage.data
    if data is None:
        return True
    parts = data.parts if isinstance(data, JoinedRows) else [data]
    return any(bool(((part != 0) & (part.abs() < 2.0**-14)).any()) for part in parts)


def _bind(tensor: Tensor) -> Bind:
    return Bind(tensor, "f32" if tensor.dtype is DType.F32 else "u32")


def weight_reason(call: OpCall) -> str | None:
    """Why the packed weight of a call is not supported, None when it is. Arguments: ``weight``,
    ``scales``, ``zeros`` (or None), ``bits``, ``group``, ``k``, ``zero``."""
    weight, scales, zeros = call["weight"], call["scales"], call["zeros"]
    bits, group, k = call["bits"], call["group"], call["k"]
    if bits not in (4, 8):
        return f"weights of {bits} bits"
    if group < 1 or (group < k and group % 4):
        return f"groups of {group}: not a multiple of 4"
    rows, groups = weight.shape[0], -(-k // group)
    if weight.dtype is not DType.I32 or weight.shape != (rows, row_words(k, bits)):
        return f"a packed weight of shape {list(weight.shape)} for {k} columns of {bits} bits"
    if scales.dtype not in (DType.F32, DType.F16) or scales.shape != (rows, groups):
        return f"scales {scales.dtype.name.lower()} {list(scales.shape)}"
    if isinstance(zeros, Value):
        bytes_fit = zeros.dtype is DType.I32 and zeros.shape == (rows, -(-groups // 4))
        offsets_fit = zeros.dtype is scales.dtype and zeros.shape == scales.shape
        if not bytes_fit and not offsets_fit:
            return f"zeros {zeros.dtype.name.lower()} {list(zeros.shape)}"
    elif not 0 <= call["zero"] < 1 << bits:
        return f"a zero of {call['zero']}"
    return None
