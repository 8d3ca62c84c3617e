"""Which source operators a fused call stands for, as ExecuTorch's debug handles."""

from __future__ import annotations

from dataclasses import replace

from executorch_wgpu.ops.call import OpCall, OpChain, Value
from executorch_wgpu.serialization.dispatch_list import NONE


def note_source_handles(before: list[OpCall], chain: OpChain) -> None:
    """Give every call that a pass made the debug handles of the calls it does the work of: those
    of ``before``, the chain's calls before the pass, on the way from its outputs back to its
    inputs and to what other calls still make."""
    producer = {value: call for call in before for value in call.outputs}
    maker = {value: call for call in chain.calls for value in call.outputs}
    kept = {id(call) for call in before}
    for call in chain.calls:
        if id(call) in kept:
            continue
        inputs = set(call.input_values())
        handles: set[int] = set(call.origin.debug_handles)
        seen: set[Value] = set()
        queue = list(call.outputs)
        while queue:
            value = queue.pop()
            source = producer.get(value)
            others = maker.get(value, call) is not call
            if value in seen or value in inputs or others or source is None:
                continue
            seen.add(value)
            if source.origin.debug_handle != NONE:
                handles |= {source.origin.debug_handle, *source.origin.debug_handles}
            queue.extend(source.input_values())
        if handles - {call.origin.debug_handle}:
            call.origin = replace(call.origin, debug_handles=tuple(sorted(handles)))
