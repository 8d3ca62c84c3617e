"""What a model computes on the way is f32, whatever its weights are stored as."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Value
from executorch_wgpu.ops.halves import is_half
from executorch_wgpu.serialization.dispatch_list import DType


def keep_f32(chain: OpChain) -> None:
    """
    Before: a model in f16 or bf16 (``module.to(torch.bfloat16)``) rounds after each operator::

        x: bf16, w: bf16 --mm--> bf16 --add(x)--> bf16 --mm(v: bf16)--> y: bf16

    After: values that nobody sees are not rounded, nor do they overflow at 65504::

        x: bf16, w: bf16 --mm--> f32 --add(x)--> f32 --mm(v: bf16)--> y: bf16

    Weights, states, inputs and outputs keep their dtype. A conversion from f32, with which norms
    and decomposed operators end, is dropped like any other rounding; one that is taken back by a
    conversion to f32 is a model's own way to round, and is made. Kernels compute in f32 and read
    each operand in its own dtype, so nothing is added.
    """
    index = ChainIndex(chain)
    #: Values in 16 bits whose every reader takes f32 as well, and those that are converted again.
    free: set[Value] = set()
    taken_back: set[Value] = set()
    for call in reversed(chain.calls):
        for value in call.outputs:
            readers = index.users.get(value, [])
            if not is_half(value.dtype) or value in index.leaving:
                continue
            if all(_takes_f32(reader, value, free) for reader in readers):
                free.add(value)
            if any(_takes_back(reader, taken_back) for reader in readers):
                taken_back.add(value)
    kept: set[Value] = set()
    for call in chain.calls:
        entry = registry.lowering_of(call.op)
        if entry is None:
            continue
        made = {v for i, v in enumerate(call.outputs) if i not in call.mutates and v in free}
        if call.op in registry.CASTS:
            computes = call["self"].dtype is DType.F32
            made -= taken_back
        else:
            computes = entry.converts
        if computes or (entry.moves and not call.mutates and call.input_values()[0] in kept):
            kept |= made
            for value in made:
                value.dtype = DType.F32


def _takes_back(reader: OpCall, taken_back: set[Value]) -> bool:
    """Whether ``reader`` converts, or moves elements to a call that does."""
    entry = registry.lowering_of(reader.op)
    moves = entry is not None and entry.moves
    return reader.op in registry.CASTS or (moves and any(v in taken_back for v in reader.outputs))


def _takes_f32(reader: OpCall, value: Value, free: set[Value]) -> bool:
    """Whether ``reader`` may find ``value`` in f32 instead of 16 bits."""
    entry = registry.lowering_of(reader.op)
    if entry is None or any(reader[name] is value for name in reader.mutates.values()):
        return False
    if entry.moves:
        return reader.input_values()[0] is value and all(v in free for v in reader.outputs)
    return entry.converts or reader.op in registry.CASTS
