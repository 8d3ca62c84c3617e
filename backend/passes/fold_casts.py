"""Conversions between f32 and 16 bits are made where elements are loaded and stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeGuard

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.halves import is_float, is_half
from executorch_wgpu.serialization.dispatch_list import DType


def fold_casts(chain: OpChain) -> None:
    """
    Before: a weight or a cache stored in 16 bits, as a model that computes in f32 reads it, and a
    result on its way into such a cache::

        w: f16[N, K] --_to_copy--> f32 --permute--+
                                    x: f32 -------mm--> f32 --view--> f32 --_to_copy--> f16

    After: nothing is converted in memory, so no f32 copy of a weight or a cache exists::

        w: f16[N, K] --permute--+
                      x: f32 ---mm--> f16 --view--> f16

    What an operator computes is the same: arithmetic is f32 either way, and a result is rounded
    once.
    """
    _read_as_stored(chain)
    _write_as_stored(chain)


def _cast(source: Value, target: Value, origin: Origin) -> OpCall:
    return OpCall(registry.CASTS[0], {"self": source}, (target,), origin)


def _read_as_stored(chain: OpChain) -> None:
    """Conversions to f32 sink: below what only moves elements, into what computes."""
    stored: dict[Value, Value] = {}
    calls: list[OpCall] = []
    for call in chain.calls:
        first = next(iter(call.input_values()), None)
        entry = registry.lowering_of(call.op)
        floats = not call.mutates and all(is_float(value.dtype) for value in call.outputs)
        if call.op in registry.CASTS and call.outputs[0].dtype is DType.F32 and _is_half(first):
            stored[call.outputs[0]] = first
            calls.append(call)
        elif entry is None or not floats or not any(v in stored for v in call.input_values()):
            calls.append(call)
        elif entry.moves and first in stored:
            moved = _moved(call, stored[first])
            if registry.unsupported_reason(moved) is not None:
                calls.append(call)
                continue
            calls.append(moved)
            for narrow, wide in zip(moved.outputs, call.outputs, strict=True):
                calls.append(_cast(narrow, wide, call.origin))
                stored[wide] = narrow
        else:
            args = {name: _substitute(arg, stored) for name, arg in call.args.items()}
            folded = replace(call, args=args)
            right = entry.converts and registry.unsupported_reason(folded) is None
            calls.append(folded if right else call)
    chain.calls = calls


def _is_half(value: Value | None) -> TypeGuard[Value]:
    return value is not None and is_half(value.dtype)


def _substitute(arg: Any, by: dict[Value, Value]) -> Any:
    if isinstance(arg, (list, tuple)):
        return [_substitute(item, by) for item in arg]
    return by.get(arg, arg) if isinstance(arg, Value) else arg


def _moved(call: OpCall, source: Value) -> OpCall:
    """``call``, which moves elements, of ``source`` in place of its first tensor."""
    first = call.input_values()[0]
    args = {n: source if arg is first else arg for n, arg in call.args.items()}
    outputs = tuple(Value(source.dtype, v.shape, v.name) for v in call.outputs)
    return replace(call, args=args, outputs=outputs)


def _write_as_stored(chain: OpChain) -> None:
    """Conversions from f32 rise: above views, into what computes and has no other reader."""
    index = ChainIndex(chain)

    def only_reader(value: Value, call: OpCall) -> bool:
        made = value in index.producer and value not in index.leaving
        return made and index.users[value] == [call]

    #: f32 result -> what it is converted to, by which the call that makes it shall replace it.
    wanted: dict[Value, Value] = {}
    calls: list[OpCall] = []  # backwards
    for call in reversed(chain.calls):
        if call.op in registry.CASTS and is_half(call.outputs[0].dtype):
            source = call["self"]
            if source.dtype is DType.F32 and only_reader(source, call):
                wanted[source] = call.outputs[0]
                continue
        entry = registry.lowering_of(call.op)
        asked = [(wide, wanted.pop(wide)) for wide in call.outputs if wide in wanted]
        if not asked:
            calls.append(call)
            continue
        narrow = asked[0][1]
        risen: OpCall | None = None
        if entry is not None and not call.mutates and len(call.outputs) == 1:
            if entry.converts:
                risen = replace(call, outputs=(narrow,))
            elif entry.views and only_reader(first := call.input_values()[0], call):
                source = Value(narrow.dtype, first.shape, first.name)
                args = {n: source if arg is first else arg for n, arg in call.args.items()}
                risen = replace(call, args=args, outputs=(narrow,))
        if risen is None or registry.unsupported_reason(risen) is not None:
            calls += [_cast(*pair, call.origin) for pair in asked]
            calls.append(call)
            continue
        if not entry.converts:
            wanted[first] = source
        calls.append(risen)
    chain.calls = calls[::-1]
