"""Attention with its cache updates as three calls."""

from __future__ import annotations

from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Value


def split_sdpa(chain: OpChain) -> None:
    """
    Before::

        q, k, v, caches, start_pos, seq_len --sdpa_with_kv_cache--> y, caches'

    After, where seq_len is provably the number of positions of q, k and v::

        k, k_cache, start_pos --update_cache--> k_cache'
        v, v_cache, start_pos --update_cache--> v_cache'
        q, k_cache', v_cache', start_pos --custom_sdpa--> y

    That is what the operator means, and what ``fuse_rope_cache`` works on.
    """
    replaced = {}
    for call in chain.calls:
        if call.op == "llama.sdpa_with_kv_cache.default":
            calls = _parts(call)
            if calls and all(registry.unsupported_reason(one) is None for one in calls):
                replaced[id(call)] = calls
    replace_calls(chain, replaced)


def _parts(call: OpCall) -> list[OpCall]:
    """The three calls; none where they would not be the same."""
    rows = call["query"].shape[1] if call["query"].rank == 4 else None
    if any(call[name].rank != 4 or call[name].shape[1] != rows for name in ("key", "value")):
        return []
    if call["seq_len"] != rows or len(call.outputs) != 3:
        return []
    versions = {name: call.outputs[output] for output, name in call.mutates.items()}
    if set(versions) != {"key_cache", "value_cache"}:
        return []
    start = call["start_pos"]
    calls = []
    for name in ("key", "value"):
        cache = f"{name}_cache"
        dummy = Value(call[name].dtype, (1,), f"{cache}.dummy")
        args = {"value": call[name], "cache": call[cache], "start_pos": start}
        outputs = (dummy, versions[cache])
        calls.append(OpCall("llama.update_cache.default", args, outputs, call.origin, {1: "cache"}))
    names = ("query", "start_pos", "attn_mask", "drpout_p", "is_causal", "scale")
    args = {name: call[name] for name in names}
    args |= {"key": versions["key_cache"], "value": versions["value_cache"]}
    calls.append(OpCall("llama.custom_sdpa.default", args, (call.outputs[0],), call.origin))
    return calls
