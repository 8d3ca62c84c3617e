"""Equal quantizations of one tensor, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executorch_wgpu.ops.call import OpCall, OpChain, Value

_OPS = (
    "torchao.choose_qparams_affine.default",
    "torchao.quantize_affine.default",
    "quantized_decomposed.choose_qparams.tensor",
    "quantized_decomposed.choose_qparams_symmetric.tensor",
    "quantized_decomposed.choose_qparams_per_token.default",
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_token.default",
)


def merge_quantize(chain: OpChain) -> None:
    """
    Before, as q, k and v of 8-bit activations arrive::

        x --choose_qparams--quantize--> a
        x --choose_qparams--quantize--> b

    After: both are a. The operators have no state, so equal arguments give equal results.
    """
    same: dict[Value, Value] = {}
    made: dict[Any, OpCall] = {}
    leaving = {v for v in [*chain.outputs, *chain.results.values()] if isinstance(v, Value)}
    kept = []
    for call in chain.calls:
        if same:
            args = {name: _replaced(arg, same) for name, arg in call.args.items()}
            call = replace(call, args=args)
        if call.op in _OPS and not leaving.intersection(call.outputs):
            key = (call.op, tuple((name, _key(arg)) for name, arg in call.args.items()))
            first = made.setdefault(key, call)
            if first is not call:
                same.update(zip(call.outputs, first.outputs, strict=True))
                continue
        kept.append(call)
    chain.calls = kept


def _replaced(arg: Any, same: dict[Value, Value]) -> Any:
    if isinstance(arg, Value):
        return same.get(arg, arg)
    if isinstance(arg, (list, tuple)):
        return [_replaced(item, same) for item in arg]
    return arg


def _key(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return tuple(_key(item) for item in arg)
    return (type(arg), arg)
