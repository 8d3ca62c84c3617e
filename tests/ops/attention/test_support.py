"""What is refused ahead of time and why; and that every template compiles under Tint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import arguments, sdpa_chain

from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.symbolic import Scalar, symbol
from executorch_wgpu.serialization.dispatch_list import DType

import tint
from harness import Chain

F32, F16, I32 = DType.F32, DType.F16, DType.I32
S = symbol(0, "S", 1, 64)
POS = symbol(1, "pos", 0, 99)


def value(*shape: Scalar, dtype: DType = F32) -> Value:
    return Value(dtype, shape)


def sdpa(**changes: Any) -> OpCall:
    args = arguments(value(1, S, 4, 16), value(1, 100, 2, 16), value(1, 100, 2, 16), POS)
    args |= changes
    return OpCall("llama.custom_sdpa.default", args, (args["query"],))


def fused(**changes: Any) -> OpCall:
    args = arguments(value(1, S, 4, 16), value(1, S, 2, 16), value(1, S, 2, 16), POS)
    cache = {"key_cache": value(1, 100, 2, 16), "value_cache": value(1, 100, 2, 16)}
    args |= {**cache, "seq_len": S, **changes}
    outputs = (args["query"], value(1, 100, 2, 16), value(1, 100, 2, 16))
    mutates = {1: "key_cache", 2: "value_cache"}
    return OpCall("llama.sdpa_with_kv_cache.default", args, outputs, mutates=mutates)


def update(**changes: Any) -> OpCall:
    args = {"value": value(1, S, 2, 16), "cache": value(1, 100, 2, 16), "start_pos": POS, **changes}
    outputs = (value(1), args["cache"])
    return OpCall("llama.update_cache.default", args, outputs, mutates={1: "cache"})


MASK = value(S, 100)


@pytest.mark.parametrize(
    "call",
    [
        sdpa(),
        sdpa(is_causal=True, scale=2),
        sdpa(attn_mask=MASK, start_pos=1000),
        sdpa(attn_mask=value(symbol(2, "rows", 1, 99), 100)),  # left to a check
        sdpa(query=value(1, S, 4, 256), key=value(1, 100, 1, 256), value=value(1, 100, 1, 256)),
        sdpa(query=value(1, S, 4, 16, dtype=F16), value=value(1, 100, 2, 16, dtype=F16)),
        fused(),
        fused(value_cache=value(1, 100, 2, 16, dtype=F16)),
        update(cache=value(1, 100, 2, 16, dtype=F16)),
        fused(seq_len=symbol(2, "n", 1, 99)),
        update(),
    ],
)
def test_supported(call: OpCall) -> None:
    assert registry.unsupported_reason(call) is None


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (sdpa(query=value(1, S, 4, 16, dtype=I32)), "query of i32"),
        (sdpa(value=value(1, 100, 2, 16, dtype=I32)), "value of i32"),
        (sdpa(query=value(S, 4, 16)), "3 dimensions"),
        (sdpa(key=value(1, 99, 2, 16)), "differ in size 1"),
        (sdpa(query=value(2, S, 4, 16)), "batch of 2 queries and 1"),
        (sdpa(query=value(1, S, 5, 16)), "5 query heads over 2"),
        (sdpa(query=value(1, S, 4, 8)), "head dimensions 8, 16, 16"),
        (sdpa(query=value(1, S, S, 16)), "live number of heads"),
        (
            sdpa(query=value(1, S, 4, 257), key=value(1, 9, 2, 257), value=value(1, 9, 2, 257)),
            "head dimension of 257",
        ),
        (sdpa(attn_mask=MASK, is_causal=True), "together with is_causal"),
        (sdpa(attn_mask=value(S, 100, dtype=DType.BOOL)), "attn_mask of bool"),
        (sdpa(attn_mask=value(1, 1, S, 100)), "attn_mask of 4 dimensions"),
        (sdpa(attn_mask=value(S, 99)), "99"),
        (sdpa(attn_mask=value(65, 100)), "attn_mask of"),
        (sdpa(start_pos=100), "exceeds the cache of 100 positions"),
        (sdpa(start_pos=-1), "negative"),
        (sdpa(scale=float("inf")), "scale of inf"),
        (sdpa(query=value(1, 10**9, 4, 16)), "positions at a time"),
        (fused(seq_len=65), "seq_len of 65"),
        (fused(key=value(1, 65, 2, 16)), "65 new key positions"),
        (fused(value_cache=value(1, 100, 2, 16, dtype=I32)), "f32 values in a i32 cache"),
        (update(value=value(1, S, 2, 8)), "differ in size 3"),
        (update(value=value(2, S, 2, 16)), "differ in size 0"),
        (update(value=value(S, 2, 16)), "3 and cache of 4 dimensions"),
        (update(cache=value(1, 100, 2, 16, dtype=I32)), "i32 cache"),
        (update(start_pos=100), "exceeds the cache of 100 positions"),
    ],
)
def test_unsupported(call: OpCall, reason: str) -> None:
    assert reason in (registry.unsupported_reason(call) or "supported")


def test_update_without_mutation() -> None:
    call = update()
    call.mutates.clear()
    assert "not mutated" in (registry.unsupported_reason(call) or "")


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
def test_every_template_compiles_under_tint() -> None:
    """Every head dimension class, layout, group size and kind of mask; on WebGPU's default limits
    (so the workgroup memory that the lowering states is within them, too)."""
    programs = []
    for dim in (1, 3, 16, 64, 80, 96, 128, 255, 256):
        for heads, kv_heads in ((1, 1), (6, 2), (8, 1), (14, 2)):
            kind = (dim + heads) % 3
            transposed = (dim + kv_heads) % 2 == 0
            chain = Chain()
            start = chain.int_input("input_pos", 0, 511)
            live = chain.dim_of("S", 2 if transposed else 1, 1, 512)
            sdpa_chain(
                (1, live, heads, dim),
                (1, 512, kv_heads, dim),
                start,
                chain=chain,
                mask=kind == 0,
                causal=kind == 1,
                transposed=transposed,
            )
            programs.append(chain.lower().program)
    chain = Chain()
    cache = chain.state(torch.zeros(1, 9, 2, 8), "k_cache")
    new = chain.input("x", (1, 3, 2, 8))
    call = {"value": new, "cache": cache, "start_pos": chain.int_input("input_pos", 0, 8)}
    outputs = [(F32, (1,)), (F32, (1, 9, 2, 8))]
    chain.output(chain.call("llama.update_cache.default", call, outputs, {1: "cache"})[0])
    programs.append(chain.lower().program)
    sources = tint.sources_of(*programs)
    assert len(sources) > 100
    assert [error for error in tint.validate(sources) if error] == []
