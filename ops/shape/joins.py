"""Operators that put tensors together: cat, stack, repeat, full."""

from __future__ import annotations

import math

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.operators import literal
from executorch_wgpu.ops.elementwise.pointwise import emit_copy, emit_pointwise
from executorch_wgpu.ops.halves import is_half
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import Scalar, Sym
from executorch_wgpu.ops.tensor import Tensor, torch_dtype
from executorch_wgpu.serialization.dispatch_list import DType


def _ranks(call: OpCall) -> str | None:
    values = [v for v in call["tensors"] if isinstance(v, Value)]
    if len(values) != len(call["tensors"]):
        return "cat of a number"
    if any(v.rank != call.outputs[0].rank for v in values):
        return "cat of tensors of different ranks"  # PyTorch's legacy 1-D empty tensor
    return None


@register("aten.cat.default", supports=_ranks, converts=True)
def cat(b: Builder, call: OpCall) -> Tensor:
    """Tensors one after another along a dimension: one copy each into its range."""
    value = call.outputs[0]
    dim = call["dim"] % value.rank
    out = b.empty(value.shape, value.dtype, "cat")
    start: Scalar = 0
    for position, part in enumerate(call["tensors"]):
        length = part.shape[dim]
        if length != 0:
            emit_copy(b, part, out.slice(dim, start, length), f"cat_{position}")
        start = start + length
    return out


@register("aten.stack.default", converts=True)
def stack(b: Builder, call: OpCall) -> Tensor:
    """Tensors side by side along a new dimension."""
    value = call.outputs[0]
    dim = call["dim"] % value.rank
    out = b.empty(value.shape, value.dtype, "stack")
    for position, part in enumerate(call["tensors"]):
        emit_copy(b, part, out.select(dim, position), f"stack_{position}")
    return out


def _fillable(call: OpCall) -> str | None:
    fill = call["s"] if "s" in call.args else call["fill_value"]
    if isinstance(fill, (Sym, Value)):
        return "a live fill value"
    dtype = call.outputs[0].dtype
    if dtype in (DType.I32, DType.I64) and not -(2**31) <= fill < 2**31:
        return f"fill value {fill} does not fit 32 bits"
    return None


def _number(b: Builder, fill: float, dtype: DType) -> Tensor:
    """A 0-dim constant. Infinities are legal data, though WGSL has no literal for them."""
    import torch

    data = torch.full((), fill, dtype=torch_dtype(dtype))
    return b.constant(data, dtype, f"number {fill}")


@register("aten.scalar_tensor.default", supports=_fillable)
def scalar_tensor(b: Builder, call: OpCall) -> Tensor:
    """A number as a 0-dim tensor."""
    return _number(b, call["s"], call.outputs[0].dtype)


@register("aten.full.default", "aten.full_like.default", supports=_fillable)
def full(b: Builder, call: OpCall) -> Tensor:
    """One number everywhere."""
    value, fill = call.outputs[0], call["fill_value"]
    out = b.empty(value.shape, value.dtype, "full")
    if is_half(value.dtype) or (value.dtype is DType.F32 and not math.isfinite(fill)):
        emit_copy(b, _number(b, fill, value.dtype), out, "full")
    else:
        emit_pointwise(b, "full", literal(fill, value.dtype), [], out)
    return out


@register("aten.repeat.default", moves=True)
def repeat(b: Builder, call: OpCall) -> Tensor:
    """Tiled copies: the output is seen as [repeat, size] a dimension, the input broadcast."""
    x: Tensor = call["self"]
    value = call.outputs[0]
    lead = value.rank - x.rank
    out = b.empty(value.shape, value.dtype, "repeat")
    split_shape: list[Scalar] = []
    source_shape: list[Scalar] = []
    for d, times in enumerate(call["repeats"]):
        size = 1 if d < lead else x.shape[d - lead]
        split_shape += [times, size]
        source_shape += [1, size]
    target, source = out.try_view(split_shape), x.try_view(source_shape)
    if target is None or source is None:
        raise AssertionError("splitting a dimension in two always has strides")
    emit_copy(b, source, target, "repeat")
    return out
