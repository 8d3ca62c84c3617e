"""``wgpu.rope_attention``: rotation of q and k, both cache updates and attention as one step."""

from __future__ import annotations

from executorch_wgpu.ops.attention.kernels import Fresh
from executorch_wgpu.ops.attention.sdpa import attend, custom_sdpa_reason
from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.halves import FLOATS
from executorch_wgpu.ops.registry import all_of, only_dtypes, register
from executorch_wgpu.ops.rope.rope_cache import reason, rope_cache_dispatch
from executorch_wgpu.ops.tensor import Tensor

#: The arguments of ``wgpu.rope_update_cache``.
_ROPE = (
    *("q", "k", "v", "cos", "sin", "k_cache", "v_cache", "start_pos", "interleaved"),
    *("q_norm", "k_norm", "q_eps", "k_eps"),
)


def _rope(call: OpCall) -> OpCall:
    """The rotation and the updates of a call, without its attention. Its first output, the
    rotated q, is f32."""
    q = call["q"]
    rotated = Value(call["rope_dtype"], q.shape, "rope")
    args = {name: call[name] for name in _ROPE}
    return OpCall("wgpu.rope_update_cache", args, (rotated, *call.outputs[1:]), call.origin)


def _attention(call: OpCall) -> OpCall:
    names = ("start_pos", "attn_mask", "is_causal", "scale")
    args = {name: call[name] for name in names}
    args |= {"query": call["q"], "key": call["k_cache"], "value": call["v_cache"]}
    return OpCall("llama.custom_sdpa.default", args, call.outputs[:1], call.origin)


def _reason(call: OpCall) -> str | None:
    if call["attn_mask"] is not None:
        return "a mask"
    return reason(_rope(call)) or custom_sdpa_reason(_attention(call))


@register("wgpu.rope_attention", supports=all_of(only_dtypes(FLOATS), _reason))
def rope_attention(b: Builder, call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    """(attention [B, S, Hq, D], k cache, v cache).

    The arguments of ``wgpu.rope_update_cache``, then ``is_causal`` and ``scale`` of
    ``llama.custom_sdpa``, whose query is the rotated q (of dtype ``rope_dtype``) and whose keys and
    values are the updated caches. A step of one position without norms takes two dispatches, any
    other one more (and one for each norm that does not fit).
    """
    dispatch, rotated = rope_cache_dispatch(b, _rope(call))
    q = call["q"]
    cos, sin = (
        call[name].expand((*q.shape[:3], call[name].shape[-1])).select(2, 0)
        for name in ("cos", "sin")
    )
    fresh = Fresh(
        query=q,
        key=call["k"],
        value=call["v"],
        cos=cos,
        sin=sin,
        interleaved=bool(call["interleaved"]),
        normed=call["q_norm"] is not None or call["k_norm"] is not None,
        stored=dispatch,
    )
    attention = _attention(call)
    attention.args["query"] = rotated
    out = attend(b, attention, call["k_cache"], call["v_cache"], fresh)
    return out, call["k_cache"], call["v_cache"]
