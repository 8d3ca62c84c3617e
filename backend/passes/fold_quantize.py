"""Weights that a graph quantizes itself, quantized ahead of time."""

from __future__ import annotations

from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.ops.call import OpCall, OpChain, Value
from executorch_wgpu.serialization.dispatch_list import DType

_CHOOSE = (
    "torchao.choose_qparams_affine.default",
    "quantized_decomposed.choose_qparams.tensor",
    "quantized_decomposed.choose_qparams_symmetric.tensor",
    "quantized_decomposed.choose_qparams_per_token.default",
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
)
_QUANTIZE = (
    "torchao.quantize_affine.default",
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_channel.default",
    "quantized_decomposed.quantize_per_channel_group.default",
    "quantized_decomposed.quantize_per_token.default",
)


def fold_quantize(chain: OpChain) -> None:
    """
    Before, as PT2E leaves a weight that is not folded (``fold_quantize=False``)::

        w: f32, a constant --quantize--> i8 --dequantize--> f32

    After, with the integers that PyTorch computes as the constant::

        w: i8 --dequantize--> f32
    """
    states = ChainIndex(chain).versions
    kept = []
    for call in chain.calls:
        if call.op in (*_CHOOSE, *_QUANTIZE) and _constant(call, states):
            _compute(call)
        else:
            kept.append(call)
    chain.calls = kept


def _constant(call: OpCall, states: set[Value]) -> bool:
    values = call.input_values()
    return all(value.constant is not None and value not in states for value in values)


def _compute(call: OpCall) -> None:
    import torch

    namespace, packet, overload = call.op.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    with torch.no_grad():
        result = operator(**{name: _content(arg) for name, arg in call.args.items()})
    source = next(value for value in call.input_values())
    results = result if isinstance(result, (tuple, list)) else (result,)
    suffixes = ("", ".points") if len(results) == 2 else ("",)
    for value, content, suffix in zip(call.outputs, results, suffixes, strict=True):
        # A scale that PyTorch gives as f64 is a number of f32.
        dtypes = {DType.F32: torch.float32, DType.I64: torch.int64}
        value.constant = content.to(dtypes.get(value.dtype, content.dtype)).contiguous()
        value.name = source.name + suffix


def _content(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return [_content(item) for item in arg]
    return arg.constant if isinstance(arg, Value) else arg
