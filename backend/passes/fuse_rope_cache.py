"""Rotary embeddings of q and k and both cache updates in one dispatch."""

from __future__ import annotations

from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.rewrite import closes_cycle, replace_calls, sort_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.serialization.dispatch_list import DType

_UPDATE = "llama.update_cache.default"


def fuse_rope_cache(chain: OpChain) -> None:
    """
    Before, where a norm of q and k (Qwen3) may stand in front of the rotation::

        q (--rms_norm) --rope--> q'
        k (--rms_norm) --rope--update_cache(k_cache, start_pos)--> k_cache'
        v ---------------------update_cache(v_cache, start_pos)--> v_cache'

    After::

        q, k, v, cos, sin, caches, start_pos --wgpu.rope_update_cache--> q', k_cache', v_cache'

    Both rotations are by the same cos and sin, both updates at the same position, and q, k and v
    have the same positions; the rotated k, and norms, have no other reader. Which v belongs to
    a k, and which q: those whose results meet in one ``custom_sdpa``.
    """
    for attention in [call for call in chain.calls if call.op == "llama.custom_sdpa.default"]:
        index = ChainIndex(chain)
        match = _match(index, attention)
        if match is not None:
            _apply(chain, index, *match)


def _apply(chain: OpChain, index: ChainIndex, fused: OpCall, group: list[OpCall]) -> None:
    last = max(group, key=lambda call: index.position[id(call)])
    replace_calls(chain, {id(call): [fused] if call is last else [] for call in group})
    sort_calls(chain)


def _match(index: ChainIndex, attention: OpCall) -> tuple[OpCall, list[OpCall]] | None:
    """The fused call and the calls it stands for, of one ``custom_sdpa``."""
    updates = [index.made_by(attention[name], _UPDATE) for name in ("key", "value")]
    query = index.made_by(attention["query"], "wgpu.rope")
    if None in updates or query is None:
        return None
    k_update, v_update = updates
    key = index.made_by(k_update["value"], "wgpu.rope")
    if key is None or key is query or k_update is v_update:
        return None
    rotated = key.outputs[0]
    if index.only_user(rotated) is not k_update:
        return None
    if rotated.dtype not in (DType.F32, k_update["cache"].dtype):
        return None  # rounded to another dtype on the way
    if any(query[name] is not key[name] for name in ("cos", "sin")):
        return None
    if query["interleaved"] != key["interleaved"]:
        return None
    if k_update["start_pos"] != v_update["start_pos"]:
        return None
    if any(_read(index, update.outputs[0]) for update in updates):
        return None
    group = [query, key, k_update, v_update]
    args: dict[str, Any] = {
        "v": v_update["value"],
        "cos": query["cos"],
        "sin": query["sin"],
        "k_cache": k_update["cache"],
        "v_cache": v_update["cache"],
        "start_pos": k_update["start_pos"],
        "interleaved": query["interleaved"],
    }
    for name, rope in (("q", query), ("k", key)):
        norm = index.made_by(rope["x"], "wgpu.rms_norm")
        alone = index.only_user(rope["x"]) is rope and rope["x"].dtype is DType.F32
        if norm is not None and alone:
            args |= {name: norm["x"], f"{name}_norm": norm["weight"], f"{name}_eps": norm["eps"]}
            group.append(norm)
        else:
            args |= {name: rope["x"], f"{name}_norm": None, f"{name}_eps": None}
    outputs = (query.outputs[0], k_update.outputs[1], v_update.outputs[1])
    origins = [call.origin for call in (k_update, v_update, *group)]
    origin = Origin.of_several("rope_update_cache", origins, k_update.origin.module_path)
    mutates = {1: "k_cache", 2: "v_cache"}
    fused = OpCall("wgpu.rope_update_cache", args, outputs, origin, mutates)
    if registry.unsupported_reason(fused) is not None or closes_cycle(index, group):
        return None
    moved = [call for call in group if call not in (k_update, v_update)]
    if any(index.reads_state(call) for call in moved) or args["v"] in index.versions:
        return None
    return fused, group


def _read(index: ChainIndex, value: Value) -> bool:
    return value in index.leaving or bool(index.users.get(value))
