"""GGUF's quantized blocks in our packed layouts, without going through floats.

Formats as ``gguf.quants`` and llama.cpp's ``ggml-quants.c`` define them; d, m and the scales are
little-endian f16, subnormal ones included, and are kept bit by bit:

====== ===================================== ==========================================
kind   weight                                becomes
====== ===================================== ==========================================
Q4_0   d (q - 8), q of 4 bits, 32 a block    4 bits, f16 scales, zero 8: exact
Q4_1   d q + m                               4 bits, f16 scales and offsets: exact
Q5_0   d (q - 16), q of 5 bits               8 bits, f16 scales, zero 16: exact
Q5_1   d q + m, q of 5 bits                  8 bits, f16 scales and offsets: exact
Q8_0   d q, q of 8 bits, signed              8 bits, f16 scales, zero 128: exact
Q6_K   d s (q - 32), 16 a group              8 bits, f32 scales d s, zero 32: exact
Q4_K   d s q - e t, 32 a group               4 bits, f16 scales d s and offsets -e t, rounded:
                                             within 2^-11 of each, or 2^-25 where that is more
====== ===================================== ==========================================
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from executorch_wgpu.ops.quant.layout import PackedWeight, pack_codes

_Bytes = NDArray[np.uint8]


def can_pack(kind: str) -> bool:
    """Whether blocks of this kind (``Q4_0``) have a packed layout."""
    return kind in _READERS


def pack_blocks(data: _Bytes, kind: str, k: int) -> PackedWeight:
    """Blocks as they lie in the file, ``data`` [N, bytes of a row], of rows of ``k`` weights.

    Raises ValueError for a kind without a layout, or rows of another length.
    """
    if kind not in _READERS:
        raise ValueError(f"GGUF blocks of kind {kind}: only {', '.join(_READERS)} are kept")
    block, size, reader = _READERS[kind]
    data = np.ascontiguousarray(data)
    if k % block or data.shape[1] != k // block * size:
        raise ValueError(f"rows of {data.shape[1]} bytes for {k} weights of kind {kind}")
    return reader(data.reshape(data.shape[0], -1, size))


def _halves(blocks: _Bytes, at: int) -> torch.Tensor:
    """The f16 at a byte of each block."""
    return torch.from_numpy(blocks[..., at : at + 2].copy().view(np.float16)[..., 0])


def _nibbles(quants: _Bytes) -> _Bytes:
    """Codes of a block of 32: the lower halves of all bytes, then the upper ones."""
    return np.concatenate([quants & 15, quants >> 4], -1)


def _fifths(blocks: _Bytes, at: int) -> _Bytes:
    """Codes of 5 bits: a bit of each in a u32, the other four as nibbles."""
    bits = np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little")
    return _nibbles(blocks[..., at + 4 :]) | (bits << 4)


def _packed(
    codes: _Bytes,
    bits: int,
    scales: torch.Tensor,
    group: int,
    zero: int = 0,
    offsets: torch.Tensor | None = None,
) -> PackedWeight:
    n = codes.shape[0]
    rows = torch.from_numpy(np.ascontiguousarray(codes.reshape(n, -1)))
    return PackedWeight(
        pack_codes(rows, bits, zero),
        scales.reshape(n, -1).contiguous(),
        bits,
        group,
        rows.shape[1],
        zero,
        offsets=None if offsets is None else offsets.reshape(n, -1).contiguous(),
    )


def _q4_0(blocks: _Bytes) -> PackedWeight:
    return _packed(_nibbles(blocks[..., 2:]), 4, _halves(blocks, 0), 32, zero=8)


def _q4_1(blocks: _Bytes) -> PackedWeight:
    codes = _nibbles(blocks[..., 4:])
    return _packed(codes, 4, _halves(blocks, 0), 32, offsets=_halves(blocks, 2))


def _q5_0(blocks: _Bytes) -> PackedWeight:
    return _packed(_fifths(blocks, 2), 8, _halves(blocks, 0), 32, zero=16)


def _q5_1(blocks: _Bytes) -> PackedWeight:
    codes = _fifths(blocks, 4)
    return _packed(codes, 8, _halves(blocks, 0), 32, offsets=_halves(blocks, 2))


def _q8_0(blocks: _Bytes) -> PackedWeight:
    return _packed(blocks[..., 2:] ^ 128, 8, _halves(blocks, 0), 32, zero=128)


def _q6_k(blocks: _Bytes) -> PackedWeight:
    """128 bytes of lower halves, 64 of upper pairs of bits, 16 scales, d: 256 weights in two halves
    of four rows of 32."""
    shape = blocks.shape[:2]
    low = blocks[..., :128].reshape(*shape, 2, 2, 32)  # half, 32 of them, byte
    high = blocks[..., 128:192].reshape(*shape, 2, 32)
    rows = [
        (low[:, :, :, i % 2] >> (4 * (i // 2)) & 15) | ((high >> (2 * i) & 3) << 4)
        for i in range(4)
    ]
    codes = np.stack(rows, 3)  # block, half, row, weight
    scales = torch.from_numpy(blocks[..., 192:208].copy().view(np.int8)).float()
    scales = scales * _halves(blocks, 208).float()[..., None]
    return _packed(codes, 8, scales, 16, zero=32)


def _q4_k(blocks: _Bytes) -> PackedWeight:
    """d, e, 12 bytes with eight scales s and eight t of 6 bits, 128 bytes of codes: of each 32
    bytes the lower halves are one group, the upper ones the next."""
    bytes_ = blocks[..., 4:16]
    first, second, third = bytes_[..., :4], bytes_[..., 4:8], bytes_[..., 8:]
    s = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], -1)
    t = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], -1)
    scales = torch.from_numpy(s).float() * _halves(blocks, 0).float()[..., None]
    offsets = -torch.from_numpy(t).float() * _halves(blocks, 2).float()[..., None]
    codes = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    codes = np.stack([codes & 15, codes >> 4], 3)
    return _packed(codes, 4, scales.half(), 32, offsets=offsets.half())


#: kind -> weights of a block, its bytes, what reads blocks.
_READERS: dict[str, tuple[int, int, Callable[[_Bytes], PackedWeight]]] = {
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "Q8_0": (32, 34, _q8_0),
    "Q4_K": (256, 144, _q4_k),
    "Q6_K": (256, 210, _q6_k),
}
