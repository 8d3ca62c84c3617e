"""What passes over quantized weights share: which constant a dequantized value is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.quant.layout import PackedWeight, pack_affine
from executorch_wgpu.serialization.dispatch_list import DType

_BYTES = (DType.I8, DType.U8)
CASTS = ("aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default")
#: Weights wider than this many times their group size have more scales than are worth packing.
_LEAST_GROUP = 4


@dataclass(frozen=True)
class _Affine:
    """``scales * (values - zero_points)`` by groups along the rows of a constant [N, K]."""

    values: Value
    scales: Any  #: a Value with a constant, or a number
    zero_points: Any  #: a Value with a constant, a number, or None
    limits: tuple[int, int]
    group: int


class PackedWeights:
    """Packs the quantized constants of one chain, each once: tied weights stay one."""

    def __init__(self, index: ChainIndex) -> None:
        self._index = index
        self._packed: dict[Any, tuple[Any, dict[str, Any] | None]] = {}

    def arguments(self, value: Any) -> dict[str, Any] | None:
        """``value`` [N, K], where it is a dequantized constant, as the arguments that describe a
        packed weight (``ops.quant.weights.weight_reason``); None for anything else, and for a
        constant that the packed layout cannot hold."""
        found = _affine_of(self._index, value)
        return None if found is None else self._arguments(found)

    def _arguments(self, found: _Affine) -> dict[str, Any] | None:
        parts = (found.values, found.scales, found.zero_points)
        key = (*(_identity(part) for part in parts), found.limits, found.group)
        if key not in self._packed:
            # The constants are kept alive with the key that their addresses are.
            self._packed[key] = ([_content(part) for part in parts], self._pack(found))
        return self._packed[key][1]

    def _pack(self, found: _Affine) -> dict[str, Any] | None:
        import torch

        values = _content(found.values)
        n, k = values.shape
        scales, points = _content(found.scales), _content(found.zero_points)
        groups = -(-k // found.group)
        if isinstance(scales, (int, float)):
            scales = torch.full((n, groups), float(scales))
        if scales.dtype != torch.float16:
            scales = scales.float()
        if isinstance(points, torch.Tensor):
            if points.numel() not in (0, 1, n * groups):
                return None
            if points.numel() > 1:
                points = points.reshape(n, groups)
        if scales.numel() == 1:
            scales = scales.reshape(1, 1).expand(n, groups)
        if scales.numel() != n * groups:
            return None
        scales = scales.reshape(n, groups)
        packed = pack_affine(values, scales, points, *found.limits, found.group)
        return packed_arguments(packed, found.values.name)


def packed_arguments(packed: PackedWeight, name: str) -> dict[str, Any]:
    """The arguments of a call that describe a packed weight, as constants called ``name`` ..."""

    def constant(tensor: Any, suffix: str) -> Value | None:
        if tensor is None:
            return None
        dtypes = {"torch.int32": DType.I32, "torch.float16": DType.F16}
        dtype = dtypes.get(str(tensor.dtype), DType.F32)
        return Value(dtype, tuple(tensor.shape), name + suffix, tensor)

    zeros = packed.zeros if packed.offsets is None else packed.offsets
    return {
        "weight": constant(packed.packed, ""),
        "scales": constant(packed.scales, ".scales"),
        "zeros": constant(zeros, ".zeros"),
        "bits": packed.bits,
        "group": packed.group,
        "k": packed.k,
        "zero": packed.zero,
    }


# -- recognising -----------------------------------------------------------------------------------


def _affine_of(index: ChainIndex, value: Any) -> _Affine | None:
    """The constant that ``value`` [N, K] is the dequantized form of."""
    call = index.producer.get(value) if isinstance(value, Value) else None
    if call is None or value.rank != 2 or not is_float(value.dtype):
        return None
    found = _READERS[call.op](call) if call.op in _READERS else None
    if found is None:
        return None
    values = found.values
    if values.dtype not in _BYTES or values.constant is None or values.shape != value.shape:
        return None
    for part in (found.scales, found.zero_points):
        if isinstance(part, Value) and (part.constant is None or part.dtype is DType.BOOL):
            return None
    if found.group < values.shape[1] and found.group % _LEAST_GROUP:
        return None
    return found


def _torchao(call: OpCall) -> _Affine | None:
    block = list(call["block_size"])
    x = call["input"]
    if len(block) != 2 or block[0] != 1 or not isinstance(block[1], int):
        return None
    limits = _limits(x, call["quant_min"], call["quant_max"])
    return _Affine(x, call["scale"], call["zero_point"], limits, block[1])


def _per_channel(call: OpCall) -> _Affine | None:
    x = call["input"]
    if call["axis"] != 0:
        return None
    limits = _limits(x, call["quant_min"], call["quant_max"])
    return _Affine(x, call["scales"], call["zero_points"], limits, x.shape[1])


def _per_group(call: OpCall) -> _Affine | None:
    x = call["input"]
    limits = _limits(x, call["quant_min"], call["quant_max"])
    return _Affine(
        x, call["scales"], call["zero_points"], limits, min(call["group_size"], x.shape[1])
    )


def _per_tensor(call: OpCall) -> _Affine | None:
    x = call["input"]
    limits = _limits(x, call["quant_min"], call["quant_max"])
    return _Affine(x, call["scale"], call["zero_point"], limits, x.shape[1])


def _cast(call: OpCall) -> _Affine | None:
    """Integers as floats: a scale of 1, the real one is multiplied with what becomes of them."""
    x = call["self"]
    if not isinstance(x, Value) or x.rank != 2:
        return None
    return _Affine(x, 1.0, None, _limits(x, None, None), x.shape[1])


def _limits(x: Value, low: Any, high: Any) -> tuple[int, int]:
    bounds = (0, 255) if x.dtype is DType.U8 else (-128, 127)
    return int(bounds[0] if low is None else low), int(bounds[1] if high is None else high)


_READERS: dict[str, Callable[[OpCall], _Affine | None]] = {
    "torchao.dequantize_affine.default": _torchao,
    "quantized_decomposed.dequantize_per_channel.default": _per_channel,
    "quantized_decomposed.dequantize_per_channel_group.default": _per_group,
    "quantized_decomposed.dequantize_per_tensor.default": _per_tensor,
    "quantized_decomposed.dequantize_per_tensor.tensor": _per_tensor,
    **dict.fromkeys(CASTS, _cast),
}


def _identity(part: Any) -> Any:
    content = _content(part)
    if hasattr(content, "data_ptr"):
        return (content.data_ptr(), tuple(content.shape), str(content.dtype))
    return content


def _content(part: Any) -> Any:
    return part.constant if isinstance(part, Value) else part
