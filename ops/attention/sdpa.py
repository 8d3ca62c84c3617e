"""``llama.custom_sdpa`` and ``llama.sdpa_with_kv_cache``: scaled dot product attention.

Meaning, as ExecuTorch's CPU kernels have it (extension/llm/custom_ops, run to find out):

* query [B, S, Hq, D], keys and values [B, C, Hkv, D]; query head h reads KV head
  ``h // (Hq // Hkv)``.
* Without a mask the keys are positions 0 .. start_pos + S; ``is_causal`` lets row s see the
  positions up to start_pos + s.
* A mask is float [S, C], added to the scaled scores; then every key 0 .. C counts, start_pos does
  not matter, and is_causal must be False.
* Dropout is ignored.
* Each tensor has a float dtype of its own; a cache may be stored in 16 bits beside an f32 query.

One difference: a row whose mask is -inf everywhere gives NaN there and zeros here (WGSL knows no
NaN; PyTorch's own attention gives zeros too)."""

from __future__ import annotations

import math

from executorch_wgpu.ops.attention.kernels import (
    MAX_HEAD_DIM,
    SHORT_ROWS,
    Fresh,
    Problem,
    emit_attention,
    max_rows,
)
from executorch_wgpu.ops.attention.update_cache import (
    cache_reason,
    check_cache,
    check_positions,
    differs,
    name_of,
    overflow_reason,
    require_equal,
    write_cache,
)
from executorch_wgpu.ops.builder import MAX_GROUPS, Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import Scalar, upper_bound
from executorch_wgpu.ops.tensor import Tensor


def _attention_reason(call: OpCall, key: Value, value: Value) -> str | None:
    """Why attention of ``query`` over whole caches ``key`` and ``value`` is not supported."""
    query, mask = call["query"], call["attn_mask"]
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not is_float(x.dtype):
            return f"a {name} of {name_of(x.dtype)}"
        if x.rank != 4:
            return f"a {name} of {x.rank} dimensions, not 4"
    for d in range(4):
        if differs(key.shape[d], value.shape[d]):
            return f"key {list(key.shape)} and value {list(value.shape)} differ in size {d}"
    batch, rows, heads, dim = query.shape
    kv_heads = key.shape[2]
    if not all(isinstance(n, int) for n in (heads, dim, kv_heads, key.shape[3], value.shape[3])):
        return "a live number of heads or head dimension"
    if differs(batch, key.shape[0]):
        return f"a batch of {batch} queries and {key.shape[0]} caches"
    if value.shape[2] != kv_heads or kv_heads < 1 or heads < 1 or heads % kv_heads:
        return f"{heads} query heads over {kv_heads} KV heads"
    if key.shape[3] != dim or value.shape[3] != dim:
        return f"head dimensions {dim}, {key.shape[3]}, {value.shape[3]} differ"
    if not 1 <= dim <= MAX_HEAD_DIM:
        return f"a head dimension of {dim} (1 to {MAX_HEAD_DIM} are supported)"
    if (most := max_rows(heads // kv_heads)) < upper_bound(rows):
        return f"{upper_bound(rows)} positions at a time ({most} are supported)"
    if max(upper_bound(batch), heads * SHORT_ROWS) > MAX_GROUPS:
        return f"a batch of {upper_bound(batch)} with {heads} heads"
    scale = call["scale"]
    if scale is not None and not (
        isinstance(scale, (int, float)) and math.isfinite(scale) and abs(scale) < 1e38
    ):
        return f"a scale of {scale}"
    if mask is None:
        return overflow_reason(call["start_pos"], rows, key.shape[1])
    if call["is_causal"]:
        return "attn_mask together with is_causal"
    if not is_float(mask.dtype):
        return f"an attn_mask of {name_of(mask.dtype)}"
    if mask.rank != 2:
        return f"an attn_mask of {mask.rank} dimensions, not 2"
    if differs(mask.shape[0], rows) or differs(mask.shape[1], key.shape[1]):
        return f"an attn_mask of {list(mask.shape)} for {rows} rows and {key.shape[1]} keys"
    return None


def attend(
    b: Builder, call: OpCall, key: Tensor, value: Tensor, fresh: Fresh | None = None
) -> Tensor:
    """Attention of the call's query over whole caches; returns a contiguous [B, S, Hq, D].
    ``fresh``: see ``emit_attention``."""
    query, mask, start = call["query"], call["attn_mask"], call["start_pos"]
    rows, dim = query.shape[1], query.shape[3]
    for d in range(4):
        require_equal(b, key.shape[d], value.shape[d], "key has {0} where value has {1}")
    require_equal(b, query.shape[0], key.shape[0], "{0} queries in a batch of {1} caches")
    length: Scalar
    if mask is None:
        start = check_positions(b, start, rows, key.shape[1])
        length = start + rows
    else:
        require_equal(b, mask.shape[0], rows, "attn_mask of {0} rows for {1} tokens")
        require_equal(b, mask.shape[1], key.shape[1], "attn_mask of {0} columns for {1} keys")
        length = key.shape[1]
    scale = call["scale"]
    return emit_attention(
        b,
        Problem(
            query=query,
            key=key,
            value=value,
            mask=mask,
            start=start,
            length=length,
            causal=bool(call["is_causal"]),
            scale=dim**-0.5 if scale is None else float(scale),
            result=call.outputs[0].dtype,
        ),
        fresh,
    )


def custom_sdpa_reason(call: OpCall) -> str | None:
    """Why ``llama.custom_sdpa`` is not supported, None when it is."""
    return _attention_reason(call, call["key"], call["value"])


@register("llama.custom_sdpa.default", supports=custom_sdpa_reason, converts=True)
def custom_sdpa(b: Builder, call: OpCall) -> Tensor:
    """``key`` and ``value`` are whole caches, under any strides."""
    return attend(b, call, call["key"], call["value"])


def _sdpa_with_kv_cache_reason(call: OpCall) -> str | None:
    if not {"key_cache", "value_cache"} <= set(call.mutates.values()):
        return "the caches are not mutated by this call"
    if call["key_cache"] is call["value_cache"]:
        return "one cache for both keys and values"
    for x, cache in (("key", "key_cache"), ("value", "value_cache")):
        reason = cache_reason(call[x], call[cache], call["start_pos"])
        if reason is not None:
            return f"{x}: {reason}"
        if call[x].rank == 4 and differs(call[x].shape[1], call["query"].shape[1]):
            return f"{call[x].shape[1]} new {x} positions for {call['query'].shape[1]} queries"
    if call["query"].rank == 4 and differs(call["seq_len"], call["query"].shape[1]):
        return f"a seq_len of {call['seq_len']} for {call['query'].shape[1]} queries"
    return _attention_reason(call, call["key_cache"], call["value_cache"])


@register("llama.sdpa_with_kv_cache.default", supports=_sdpa_with_kv_cache_reason, converts=True)
def sdpa_with_kv_cache(b: Builder, call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    """(output, key cache, value cache), the caches written in place."""
    start, rows = call["start_pos"], call["query"].shape[1]
    require_equal(b, call["seq_len"], rows, "a seq_len of {0} for {1} queries")
    for name in ("key", "value"):
        new, cache = call[name], call[f"{name}_cache"]
        require_equal(b, new.shape[1], rows, f"{{0}} new {name} positions for {{1}} queries")
        at = check_cache(b, new, cache, start)
        write_cache(b, cache, new, at, f"update_cache_{name[0]}")
    out = attend(b, call, call["key_cache"], call["value_cache"])
    return out, call["key_cache"], call["value_cache"]
