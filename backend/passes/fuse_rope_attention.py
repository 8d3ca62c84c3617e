"""Rotary embeddings, cache updates and the attention behind them as one call."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.rewrite import closes_cycle, replace_calls, sort_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin


def fuse_rope_attention(chain: OpChain) -> None:
    """
    Before::

        q, k, v, caches --rope_update_cache--> q', k_cache', v_cache'
        q', k_cache', v_cache' --custom_sdpa--> y

    After::

        q, k, v, caches --rope_attention--> y, k_cache', v_cache'

    The rotated q and the updated caches have no other reader but the states, both calls count from
    the same position, and the attention is causal without a mask.
    """
    for attention in [call for call in chain.calls if call.op == "llama.custom_sdpa.default"]:
        index = ChainIndex(chain)
        rope = index.made_by(attention["query"], "wgpu.rope_update_cache")
        if rope is None or attention["attn_mask"] is not None or not attention["is_causal"]:
            continue
        rotated, *caches = rope.outputs
        if index.only_user(rotated) is not attention or attention["query"] is not rotated:
            continue
        if [attention["key"], attention["value"]] != caches:
            continue
        if any(user is not attention for cache in caches for user in index.users.get(cache, [])):
            continue
        if rope["start_pos"] != attention["start_pos"] or closes_cycle(index, [rope, attention]):
            continue
        args = {
            **rope.args,
            "attn_mask": None,
            "is_causal": attention["is_causal"],
            "scale": attention["scale"],
            "rope_dtype": rotated.dtype,
        }
        outputs = (attention.outputs[0], *caches)
        path = attention.origin.module_path
        origin = Origin.of_several("rope_attention", [rope.origin, attention.origin], path)
        fused = OpCall("wgpu.rope_attention", args, outputs, origin, dict(rope.mutates))
        if registry.unsupported_reason(fused) is None:
            replace_calls(chain, {id(rope): [], id(attention): [fused]})
            sort_calls(chain)
