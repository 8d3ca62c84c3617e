"""Drop calls whose results nobody reads."""

from __future__ import annotations

from executorch_wgpu.ops.call import OpChain, Value


def drop_dead_calls(chain: OpChain) -> None:
    """Before: ``select_copy(input_pos)`` that only fed a live scalar, the parts of a fused
    pattern. After: gone. An update of a state is read by the state's last version, so it stays."""
    needed = {v for v in [*chain.outputs, *chain.results.values()] if isinstance(v, Value)}
    kept = []
    for call in reversed(chain.calls):
        if any(value in needed for value in call.outputs):
            kept.append(call)
            needed.update(call.input_values())
    chain.calls = kept[::-1]
