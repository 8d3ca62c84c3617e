"""The quantize and dequantize operators of torchao and quantized_decomposed.

Where they stand around a constant weight or before a product, a pass has replaced them by packed
forms; these lowerings make everything else right. Integers of 8 bits lie four to a word, and a
thread writes whole words.

Formulas: torchao.quantization.quant_primitives (``_quantize_affine``, ``_dequantize_affine``) and
torch.ao.quantization.fx._decomposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from executorch_wgpu.ops.builder import Bind, Builder, Number, linear_grid
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.pointwise import emit_copy, materialize
from executorch_wgpu.ops.halves import FLOATS, is_float, is_half
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import Scalar, ceil_div, product
from executorch_wgpu.ops.templates import float_literal
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType

WORKGROUP = 64
BYTES = (DType.I8, DType.U8)
#: Of zero points.
ZERO_DTYPES = (*BYTES, DType.I32, DType.I64)


@dataclass(frozen=True)
class Blocks:
    """Which scale element i of a contiguous tensor has: that of number
    ``(i // outer % size) * groups + i % row // group``; 0 for all where ``outer`` is 0."""

    outer: Scalar = 0
    size: Scalar = 0  #: 0: no remainder is taken
    groups: int = 1
    row: int = 1
    group: int = 1

    def describe(self, params: dict[str, Number]) -> dict[str, bool]:
        """Declare the parameters; returns what ``block_of`` of bytes.wgsl needs."""
        if self.outer != 0:
            params["OUTER"] = self.outer
        if self.size != 0:
            params["OUTER_SIZE"] = self.size
        if self.groups > 1:
            params |= {"GROUPS": self.groups, "ROW": self.row, "GROUP": self.group}
        return {"many": self.outer != 0, "size": self.size != 0, "groups": self.groups > 1}


# -- which blocks --------------------------------------------------------------------------------


def block_reason(shape: Sequence[Scalar], block: Sequence[Any]) -> str | None:
    """Why blocks of this size are not supported: they are the whole tensor, a row, or a part of a
    row."""
    if len(block) != len(shape):
        return f"blocks {list(block)} of a tensor {list(shape)}"
    if all(a == b for a, b in zip(block, shape, strict=True)):
        return None
    if not shape or any(size != 1 for size in block[:-1]):
        return f"blocks {list(block)}"
    last, size = block[-1], shape[-1]
    if not isinstance(size, int) or not isinstance(last, int) or last < 1 or size % last:
        return f"blocks {list(block)} of rows of {size}"
    return None


def blocks_of(shape: Sequence[Scalar], block: Sequence[Any]) -> Blocks:
    """See :func:`block_reason`."""
    if all(a == b for a, b in zip(block, shape, strict=True)):
        return Blocks()
    size, last = int(shape[-1]), int(block[-1])  # type: ignore[call-overload]
    return Blocks(outer=size, groups=size // last, row=size, group=last)


def _channels(shape: Sequence[Scalar], axis: int) -> Blocks:
    return Blocks(outer=product(shape[axis + 1 :]), size=shape[axis])


# -- f16 and bf16 --------------------------------------------------------------------------------


def widened(b: Builder, tensor: Tensor, name: str) -> Tensor:
    """``tensor``, contiguous, as f32 where it is held in 16 bits: scales and inputs of these
    kernels. Unfused they are rare, so conversions are dispatches of their own."""
    if not is_half(tensor.dtype):
        return materialize(b, tensor, name)
    wide = b.empty(tensor.shape, DType.F32, f"{name}_f32")
    emit_copy(b, tensor, wide, f"{name}_f32")
    return wide


def narrowed(b: Builder, tensor: Tensor, dtype: DType, name: str) -> Tensor:
    """An f32 ``tensor`` rounded to ``dtype`` where that has 16 bits."""
    if not is_half(dtype):
        return tensor
    out = b.empty(tensor.shape, dtype, name)
    emit_copy(b, tensor, out, f"{name}_round")
    return out


# -- dequantize ----------------------------------------------------------------------------------


def emit_dequantize(
    b: Builder,
    x: Tensor,
    scale: Tensor | float,
    zero: Tensor | int | None,
    blocks: Blocks,
    name: str = "dequantize",
) -> Tensor:
    """Append a step: ``(x - zero) * scale`` as f32. ``x``: integers."""
    x = materialize(b, x, f"{name}_in")
    out = b.empty(x.shape, DType.F32, name)
    params: dict[str, Number] = {"COUNT": product(x.shape)}
    reads: dict[str, Bind] = {"x": Bind(x)}
    consts = _parameters(b, params, reads, scale, zero, blocks)
    consts["X"] = x.dtype.name
    _run(b, "quant/dequantize.wgsl", name, reads, Bind(out), params, consts)
    return out


def _dequantized(
    b: Builder,
    call: OpCall,
    x: Tensor,
    scale: Tensor | float,
    zero: Tensor | int | None,
    blocks: Blocks,
) -> Tensor:
    """:func:`emit_dequantize` in the dtype of the call's result."""
    out = emit_dequantize(b, x, scale, zero, blocks)
    return narrowed(b, out, call.outputs[0].dtype, "dequantize")


def emit_quantize(
    b: Builder,
    x: Tensor,
    scale: Tensor | float,
    zero: Tensor | int | None,
    blocks: Blocks,
    limits: tuple[int, int],
    dtype: DType,
    *,
    zero_before_rounding: bool = False,
    name: str = "quantize",
) -> Tensor:
    """Append a step: ``clamp(round(x / scale) + zero)`` as integers of ``dtype`` (I8 or U8), halves
    to even; ``zero_before_rounding``: ``round(x / scale + zero)``."""
    x = widened(b, x, f"{name}_in")
    out = b.empty(x.shape, dtype, name)
    params: dict[str, Number] = {"COUNT": product(x.shape)}
    reads: dict[str, Bind] = {"x": Bind(x)}
    consts = _parameters(b, params, reads, scale, zero, blocks)
    consts |= {
        "LOW": float(limits[0]),
        "HIGH": float(limits[1]),
        "ZERO_FIRST": zero_before_rounding,
    }
    _run(b, "quant/quantize.wgsl", name, reads, Bind(out), params, consts)
    return out


def _parameters(
    b: Builder,
    params: dict[str, Number],
    reads: dict[str, Bind],
    scale: Tensor | float,
    zero: Tensor | int | None,
    blocks: Blocks,
) -> dict[str, Any]:
    """Bindings and template values of a scale and a zero point."""
    consts: dict[str, Any] = {"BLOCKS": blocks.describe(params)}
    for key, value in (("scale", scale), ("zero", zero)):
        if isinstance(value, Tensor):
            value = widened(b, value, key)
            reads[f"{key}s"] = Bind(value)
            consts[key.upper()] = value.dtype.name
        else:
            consts[key.upper()] = float_literal(float(value or 0))
    return consts


def _run(
    b: Builder,
    template: str,
    name: str,
    reads: dict[str, Bind],
    out: Bind,
    params: dict[str, Number],
    consts: dict[str, Any],
) -> None:
    b.run(
        b.dispatch(
            template,
            name,
            reads=reads,
            writes={"out": out},
            params=params,
            consts=consts,
            grid=linear_grid(ceil_div(ceil_div(params["COUNT"], 4), WORKGROUP)),  # type: ignore[arg-type]
            workgroup=(WORKGROUP,),
        )
    )


# -- support -------------------------------------------------------------------------------------


def _values(call: OpCall, scale: str, zero: str) -> str | None:
    for name, dtypes in ((scale, FLOATS), (zero, (*ZERO_DTYPES, *FLOATS))):
        value = call.args.get(name)
        if isinstance(value, Value):
            if value.dtype not in dtypes:
                return f"{name} of {value.dtype.name.lower()}"
            if product(value.shape) == 0:
                return f"an empty {name}"
    return None


def _dequantize_reason(call: OpCall, scale: str, zero: str) -> str | None:
    if call["input"].dtype not in (*BYTES, DType.I32):
        return f"{call['input'].dtype.name.lower()} to dequantize"
    if not is_float(call.outputs[0].dtype):
        return f"results of {call.outputs[0].dtype.name.lower()}"
    return _values(call, scale, zero)


def _quantize_reason(call: OpCall, scale: str, zero: str) -> str | None:
    if not is_float(call["input"].dtype):
        return f"{call['input'].dtype.name.lower()} to quantize"
    if call.outputs[0].dtype not in BYTES:
        return f"results of {call.outputs[0].dtype.name.lower()}"
    return _values(call, scale, zero)


def _axis(call: OpCall) -> str | None:
    return None if 0 <= call["axis"] < call["input"].rank else f"axis {call['axis']}"


def _limits(call: OpCall, low: str = "quant_min", high: str = "quant_max") -> tuple[int, int]:
    """The range of the integers: as given, or the dtype's."""
    bounds = (-128, 127) if call.outputs[0].dtype is not DType.U8 else (0, 255)
    found = (call.args.get(low), call.args.get(high))
    return tuple(int(b if v is None else v) for v, b in zip(found, bounds, strict=True))  # type: ignore[return-value]


# -- torchao -------------------------------------------------------------------------------------


def _affine(call: OpCall) -> str | None:
    return block_reason(call["input"].shape, call["block_size"])


@register(
    "torchao.dequantize_affine.default",
    supports=lambda c: _dequantize_reason(c, "scale", "zero_point") or _affine(c),
    bytes=True,
    converts=True,
)
def dequantize_affine(b: Builder, call: OpCall) -> Tensor:
    """``(input - zero_point) * scale`` by blocks."""
    x = call["input"]
    blocks = blocks_of(x.shape, call["block_size"])
    return _dequantized(b, call, x, call["scale"], call["zero_point"], blocks)


@register(
    "torchao.quantize_affine.default",
    supports=lambda c: _quantize_reason(c, "scale", "zero_point") or _affine(c),
    bytes=True,
    converts=True,
)
def quantize_affine(b: Builder, call: OpCall) -> Tensor:
    """``clamp(round(input / scale) + zero_point)`` by blocks."""
    x = call["input"]
    blocks = blocks_of(x.shape, call["block_size"])
    dtype = call.outputs[0].dtype
    return emit_quantize(b, x, call["scale"], call["zero_point"], blocks, _limits(call), dtype)


# -- quantized_decomposed ------------------------------------------------------------------------


def _per_tensor(call: OpCall) -> str | None:
    for name in ("scale", "zero_point"):
        value = call[name]
        if isinstance(value, Value) and product(value.shape) != 1:
            return f"{name} of shape {list(value.shape)}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} {value}"
    return None


@register(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    supports=lambda c: _dequantize_reason(c, "scale", "zero_point") or _per_tensor(c),
    bytes=True,
    converts=True,
)
def dequantize_per_tensor(b: Builder, call: OpCall) -> Tensor:
    """One scale and zero point for all elements."""
    return _dequantized(b, call, call["input"], call["scale"], call["zero_point"], Blocks())


@register(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    supports=lambda c: _quantize_reason(c, "scale", "zero_point") or _per_tensor(c),
    bytes=True,
    converts=True,
)
def quantize_per_tensor(b: Builder, call: OpCall) -> Tensor:
    """One scale and zero point for all elements."""
    args = call["input"], call["scale"], call["zero_point"], Blocks(), _limits(call)
    return emit_quantize(b, *args, call.outputs[0].dtype)


@register(
    "quantized_decomposed.dequantize_per_channel.default",
    supports=lambda c: _dequantize_reason(c, "scales", "zero_points") or _axis(c),
    bytes=True,
    converts=True,
)
def dequantize_per_channel(b: Builder, call: OpCall) -> Tensor:
    """A scale for each index of one dimension."""
    x = call["input"]
    blocks = _channels(x.shape, call["axis"])
    return _dequantized(b, call, x, call["scales"], call["zero_points"], blocks)


@register(
    "quantized_decomposed.quantize_per_channel.default",
    supports=lambda c: _quantize_reason(c, "scales", "zero_points") or _axis(c),
    bytes=True,
    converts=True,
)
def quantize_per_channel(b: Builder, call: OpCall) -> Tensor:
    """A scale for each index of one dimension."""
    x = call["input"]
    blocks = _channels(x.shape, call["axis"])
    args = x, call["scales"], call["zero_points"], blocks, _limits(call)
    return emit_quantize(b, *args, call.outputs[0].dtype)


def _row_group(call: OpCall) -> list[int]:
    """Blocks of ``*_per_channel_group``: ``group_size`` neighbours, all of a shorter row."""
    last = call["input"].shape[-1]
    return [1, min(call["group_size"], last) if isinstance(last, int) else call["group_size"]]


@register(
    "quantized_decomposed.dequantize_per_channel_group.default",
    supports=lambda c: (
        _dequantize_reason(c, "scales", "zero_points")
        or block_reason(c["input"].shape, _row_group(c))
    ),
    bytes=True,
    converts=True,
)
def dequantize_per_channel_group(b: Builder, call: OpCall) -> Tensor:
    """A scale for each group of neighbours in a row."""
    x = call["input"]
    blocks = blocks_of(x.shape, _row_group(call))
    return _dequantized(b, call, x, call["scales"], call["zero_points"], blocks)


@register(
    "quantized_decomposed.quantize_per_channel_group.default",
    supports=lambda c: (
        _quantize_reason(c, "scales", "zero_points")
        or block_reason(c["input"].shape, _row_group(c))
    ),
    bytes=True,
    converts=True,
)
def quantize_per_channel_group(b: Builder, call: OpCall) -> Tensor:
    """A scale for each group of neighbours in a row; the zero point is added before rounding."""
    x = call["input"]
    blocks = blocks_of(x.shape, _row_group(call))
    args = x, call["scales"], call["zero_points"], blocks, _limits(call)
    return emit_quantize(b, *args, call.outputs[0].dtype, zero_before_rounding=True)


def _per_token(call: OpCall) -> str | None:
    x = call["input"]
    if x.rank == 0 or not isinstance(x.shape[-1], int):
        return f"tokens of a live size {list(x.shape)}"
    return None


@register(
    "quantized_decomposed.dequantize_per_token.default",
    supports=lambda c: _dequantize_reason(c, "scales", "zero_points") or _per_token(c),
    bytes=True,
    converts=True,
)
def dequantize_per_token(b: Builder, call: OpCall) -> Tensor:
    """A scale for each row."""
    x = call["input"]
    blocks = Blocks(outer=x.shape[-1])
    return _dequantized(b, call, x, call["scales"], call["zero_points"], blocks)


@register(
    "quantized_decomposed.quantize_per_token.default",
    supports=lambda c: _quantize_reason(c, "scales", "zero_points") or _per_token(c),
    bytes=True,
    converts=True,
)
def quantize_per_token(b: Builder, call: OpCall) -> Tensor:
    """A scale for each row; the zero point is added before rounding."""
    x = call["input"]
    args = x, call["scales"], call["zero_points"], Blocks(outer=x.shape[-1]), _limits(call)
    return emit_quantize(b, *args, call.outputs[0].dtype, zero_before_rounding=True)
