"""The operators through which a module says that its weight is packed (see layout.py):
``torch.ops.wgpu.packed_linear``, ``packed_linear_8da`` and ``packed_embedding``.

A PyTorch quantizer's own operators hold every integer in a byte; a module that comes with packed
blocks would have to unpack them to say the same. Eager runs are the definition: rows are
dequantized some at a time. Importing this module registers the operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from executorch_wgpu.ops.quant.layout import PackedWeight

#: Rows that an eager product dequantizes at once.
_ROWS = 4096


#: The arguments of a packed weight, and of a linear layer over one, in their order.
_NUMBERS = "int bits, int group, int k, int zero"
_TENSORS = "Tensor weight, Tensor scales, Tensor? zeros"


def _weight(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, group: int, k: int, zero: int
) -> PackedWeight:
    offsets = None
    if zeros is not None and zeros.dtype.is_floating_point:
        zeros, offsets = None, zeros
    return PackedWeight(weight, scales, bits, group, k, zero, zeros, offsets)


def _rows(weight: PackedWeight, start: int) -> Tensor:
    rows = slice(start, start + _ROWS)
    zeros, offsets = (None if t is None else t[rows] for t in (weight.zeros, weight.offsets))
    packed, scales = weight.packed[rows], weight.scales[rows]
    return replace(weight, packed=packed, scales=scales, zeros=zeros, offsets=offsets).dequantize()


def _product(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    *numbers: int,
) -> Tensor:
    packed = _weight(weight, scales, zeros, *numbers)
    parts = [x @ _rows(packed, n).T for n in range(0, weight.shape[0], _ROWS)]
    out = torch.cat(parts, -1)
    return out if bias is None else out + bias


@torch.library.custom_op(
    "wgpu::packed_linear",
    mutates_args=(),
    schema=f"(Tensor x, {_TENSORS}, Tensor? bias, {_NUMBERS}) -> Tensor",
)
def packed_linear(x: Tensor, *layer: Any) -> Tensor:
    """``x`` [..., K] times a packed weight transposed, plus ``bias``."""
    return _product(x, *layer)


@packed_linear.register_fake
def _(x, weight, *layer):  # type: ignore[no-untyped-def]
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op(
    "wgpu::packed_linear_8da",
    mutates_args=(),
    schema=f"(Tensor x, Tensor x_scales, Tensor x_zeros, {_TENSORS}, Tensor? bias, {_NUMBERS}) "
    "-> Tensor",
)
def packed_linear_8da(x: Tensor, x_scales: Tensor, x_zeros: Tensor, *layer: Any) -> Tensor:
    """As ``packed_linear`` with int8 activations, a scale and a zero point a row."""
    rows = (*x.shape[:-1], 1)
    return _product((x.float() - x_zeros.reshape(rows)) * x_scales.reshape(rows), *layer)


@packed_linear_8da.register_fake
def _(x, x_scales, x_zeros, weight, *layer):  # type: ignore[no-untyped-def]
    return x_scales.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op(
    "wgpu::packed_embedding",
    mutates_args=(),
    schema=f"(Tensor indices, {_TENSORS}, {_NUMBERS}) -> Tensor",
)
def packed_embedding(
    indices: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor | None, *numbers: int
) -> Tensor:
    """Rows of a packed table, as f32."""
    flat = indices.reshape(-1)
    zeros = None if zeros is None else zeros[flat]
    rows = _weight(weight[flat], scales[flat], zeros, *numbers).dequantize()
    return rows.reshape(*indices.shape, rows.shape[-1])


@packed_embedding.register_fake
def _(indices, weight, scales, zeros, bits, group, k, zero):  # type: ignore[no-untyped-def]
    return scales.new_empty((*indices.shape, k), dtype=torch.float32)
