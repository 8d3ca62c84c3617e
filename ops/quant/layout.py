"""How quantized weights lie in memory, and how integers get there.

A weight [N, K] is N rows, so rows of several weights may be joined and a large one cut:

* ``packed``: i32 [N, W], unsigned codes of 4 or 8 bits in words. A word of 4-bit codes holds eight
  neighbours along K: code i in bits 8 i, code i + 4 in bits 8 i + 4 (i below 4), so that one mask
  gives four neighbours as bytes. A word of 8-bit codes holds four, code i in bits 8 i. Rows are
  padded to whole units of four words (16 bytes, the widest load).
* ``scales``: f32 or f16 [N, G], one for each group of ``group`` neighbours along K.
* zeros: one number for all (``zero``, symmetric quantization: 8 for 4 bits), or i32 [N, Z] with the
  zero points of a row as bytes, or ``offsets`` of the scales' dtype [N, G] added to the product.

A weight is ``scale * (code - zero)``, or ``scale * code + offset``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Rows are whole multiples of so many words.
UNIT_WORDS = 4


@dataclass(frozen=True)
class PackedWeight:
    """The tensors of one weight; see the module's docstring. At most one of ``zeros`` and
    ``offsets`` is there, and ``zero`` counts where neither is."""

    packed: torch.Tensor
    scales: torch.Tensor
    bits: int
    group: int
    k: int
    zero: int = 0
    zeros: torch.Tensor | None = None
    offsets: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """The weight [N, K] as f32: the definition that kernels are tested against."""
        import torch

        codes = unpack_codes(self.packed, self.bits, self.k).float()
        of_group = torch.arange(self.k) // self.group
        scales = self.scales.float()[:, of_group]
        if self.offsets is not None:
            return scales * codes + self.offsets.float()[:, of_group]
        if self.zeros is None:
            return scales * (codes - self.zero)
        return scales * (codes - unpack_bytes(self.zeros)[:, of_group].float())


def row_words(k: int, bits: int) -> int:
    """Words of a row of ``k`` codes."""
    unit = UNIT_WORDS * 32 // bits
    return -(-k // unit) * UNIT_WORDS


def pack_codes(codes: torch.Tensor, bits: int, padding: torch.Tensor | int = 0) -> torch.Tensor:
    """Unsigned codes [N, K] (uint8) as ``packed``, rows filled up with ``padding`` (one code for
    all or [N, 1]). Raises ValueError for other bits than 4 and 8."""
    import torch

    if bits not in (4, 8):
        raise ValueError(f"codes of {bits} bits have no layout (4 and 8 have)")
    n, k = codes.shape
    words = row_words(k, bits)
    padded = codes.new_empty((n, words * 32 // bits))
    padded[:, :k] = codes
    padded[:, k:] = padding
    if bits == 4:
        eights = padded.reshape(n, words, 2, 4)
        padded = eights[:, :, 0] | (eights[:, :, 1] << 4)
    return padded.reshape(n, words * 4).contiguous().view(torch.int32)


def unpack_codes(packed: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """The inverse of :func:`pack_codes`: uint8 [N, K]."""
    import torch

    n, words = packed.shape
    found = packed.contiguous().view(torch.uint8)
    if bits == 4:
        found = found.reshape(n, words, 1, 4)
        found = torch.cat([found & 15, found >> 4], 2)
    return found.reshape(n, -1)[:, :k]


def pack_bytes(values: torch.Tensor) -> torch.Tensor:
    """Bytes [N, G] (uint8) as words [N, ceil(G / 4)], byte i of a word in bits 8 i."""
    import torch

    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % 4))
    return padded.contiguous().view(torch.int32)


def unpack_bytes(words: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`pack_bytes`, padding included."""
    import torch

    return words.contiguous().view(torch.uint8)


def pack_affine(
    values: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | float | None,
    quant_min: int,
    quant_max: int,
    group: int,
) -> PackedWeight:
    """An affine weight ``scale * (value - zero_point)`` in packed form: of 4 bits where the range
    and the values allow.

    Args:
        values: int8 or uint8 [N, K], said to be from ``quant_min`` to ``quant_max``.
        scales: [N, G].
        zero_points: [N, G], one for all, or None for 0. What is no integer, or lies outside of the
            range, becomes offsets, ``scale * -zero_point`` in f32.
        group: neighbours along K that share a scale.
    """
    import torch

    bits, low = 8, (-128 if values.dtype == torch.int8 else 0)
    least, most = (int(v) for v in values.aminmax()) if values.numel() else (0, 0)
    for first in (-8, 0):
        if bits == 8 and min(quant_min, least) >= first and max(quant_max, most) <= first + 15:
            bits, low = 4, first
    high = low + (1 << bits) - 1
    zero, zeros, offsets = -low, None, None
    padding: torch.Tensor | int | None = None
    points = torch.as_tensor(0 if zero_points is None else zero_points).double()
    if points.numel() and scales.numel():
        points = points.expand(scales.shape)
        whole = bool(((points == points.round()) & (points >= low) & (points <= high)).all())
        if not whole:
            offsets = (scales.double() * (low - points)).float()
            scales, zero = scales.float(), 0
        elif bool((points == points[0, 0]).all()):
            zero = int(points[0, 0]) - low
        else:
            rows = (points - low).to(torch.uint8)
            zeros, padding, zero = pack_bytes(rows), rows[:, -1:], 0
    codes = values.view(torch.uint8) if low == 0 or bits == 8 else (values - low).view(torch.uint8)
    if bits == 8 and low:
        codes = codes ^ 128
    return PackedWeight(
        packed=pack_codes(codes, bits, zero if padding is None else padding),
        scales=scales.contiguous(),
        bits=bits,
        group=group,
        k=values.shape[1],
        zero=zero,
        zeros=zeros,
        offsets=offsets,
    )
