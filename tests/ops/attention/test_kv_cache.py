"""llama.update_cache and llama.sdpa_with_kv_cache: caches that persist between calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from models import arguments, eager_sdpa, graph_of, labels, random, reference

from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close

#: New tokens of successive calls: a prompt, some tokens, a second prompt, more tokens.
CALLS = (111, 1, 1, 1, 57, 1, 1)


def state(graph: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The words of a state."""
    return np.asarray(graph.state.read(name)).view(np.uint32).reshape(shape)


def update_graph(device: Any, shape: tuple[int, ...], layout: str, most: int = 128) -> Any:
    """``cache`` updated with an input of live length: as it is, permuted, one head expanded to
    all, or every second of its positions."""
    batch, _, heads, dim = shape
    c = Chain()
    start = c.int_input("input_pos", -3, 2 * shape[1])
    live = c.dim_of("S", 2 if layout == "permuted" else 1, 1, most)
    cache = c.state(torch.zeros(shape), "attention.k_cache")
    f32 = DType.F32
    if layout == "permuted":
        x = c.input("x", (batch, heads, live, dim))
        call = {"self": x, "dims": [0, 2, 1, 3]}
        (x,) = c.call("aten.permute_copy.default", call, [(f32, (batch, live, heads, dim))])
    elif layout == "expanded":
        x = c.input("x", (batch, live, 1, dim))
        wide = (batch, live, heads, dim)
        call = {"self": x, "size": list(wide), "implicit": False}
        (x,) = c.call("aten.expand_copy.default", call, [(f32, wide)])
    else:
        x = c.input("x", (batch, live, heads, dim))
    results = c.call(
        "llama.update_cache.default",
        {"value": x, "cache": cache, "start_pos": start},
        [(f32, (1,)), (f32, shape)],
        {1: "cache"},
    )
    c.output(results[0])
    return graph_of(device, c)


@pytest.mark.parametrize(
    "shape", [(1, 180, 3, 64), (2, 175, 2, 80), (3, 200, 1, 5), (1, 173, 1, 1)], ids=str
)
@pytest.mark.parametrize("layout", ["plain", "permuted", "expanded"])
def test_update_moves_bits(device: Any, shape: tuple[int, ...], layout: str) -> None:
    """Every bit pattern survives: NaN with payloads, infinity, subnormals, -0."""
    graph = update_graph(device, shape, layout)
    assert labels(graph)[0] == [["update_cache_k"]]
    batch, _, heads, dim = shape
    words = np.zeros(shape, np.uint32)
    random_words = np.random.default_rng(0)
    position = 0
    for new in CALLS:
        x = random_words.integers(0, 1 << 32, (batch, new, heads, dim), np.uint32)
        x.flat[:5] = [0x7FC00001, 0xFFFFFFFF, 0x7F800000, 0x00000001, 0x80000000][: x.size]
        if layout == "expanded":
            x[:] = x[:, :, :1]
        words[:, position : position + new] = x
        arrived = {"plain": x, "permuted": x.transpose(0, 2, 1, 3), "expanded": x[:, :, :1]}[layout]
        dummy = graph.execute([position, np.ascontiguousarray(arrived).view(np.float32)])[0]
        assert tuple(dummy.shape) == (1,)
        position += new
        assert np.array_equal(state(graph, "attention.k_cache", shape), words)


def test_update_outside_of_the_cache_is_refused(device: Any) -> None:
    shape = (1, 40, 2, 8)
    graph = update_graph(device, shape, "plain")
    x = random(1, 8, 2, 8).numpy()
    graph.execute([32, x])
    before = state(graph, "attention.k_cache", shape)
    with pytest.raises(
        InvalidInputError, match=r"input_pos 33 \+ 8 tokens exceeds .* 40 positions"
    ):
        graph.execute([33, x + 1])
    with pytest.raises(InvalidInputError, match="input_pos -1 is negative"):
        graph.execute([-1, x + 1])
    assert np.array_equal(state(graph, "attention.k_cache", shape), before)


def fused_graph(
    device: Any, cache: tuple[int, ...], heads: int, most: int = 128, separate: bool = False
) -> Any:
    """sdpa_with_kv_cache over two states, or (separate) two update_cache and a custom_sdpa."""
    batch, capacity, kv_heads, dim = cache
    f32 = DType.F32
    c = Chain()
    start = c.int_input("input_pos", 0, capacity)
    live = c.dim_of("S", 1, 1, most)
    q = c.input("q", (batch, live, heads, dim))
    k, v = (c.input(name, (batch, live, kv_heads, dim)) for name in "kv")
    k_cache, v_cache = (c.state(torch.zeros(cache), f"attention.{n}_cache") for n in "kv")
    if separate:
        new = []
        for x, old in ((k, k_cache), (v, v_cache)):
            call = {"value": x, "cache": old, "start_pos": start}
            outputs = [(f32, (1,)), (f32, cache)]
            new.append(c.call("llama.update_cache.default", call, outputs, {1: "cache"})[1])
        call = arguments(q, *new, start, None, True)
        (out,) = c.call("llama.custom_sdpa.default", call, [(f32, q.shape)])
    else:
        call = {
            **arguments(q, k, v, start, None, True),
            "key_cache": k_cache,
            "value_cache": v_cache,
            "seq_len": live,
        }
        outputs = [(f32, q.shape), (f32, cache), (f32, cache)]
        mutates = {1: "key_cache", 2: "value_cache"}
        out, _, _ = c.call("llama.sdpa_with_kv_cache.default", call, outputs, mutates)
    c.output(out)
    return graph_of(device, c)


@pytest.mark.parametrize("separate", [False, True], ids=["fused", "separate"])
@pytest.mark.parametrize(
    ("cache", "heads"),
    [((1, 180, 3, 64), 9), ((2, 175, 1, 16), 8), ((1, 173, 2, 10), 2)],
    ids=str,
)
def test_conversation(device: Any, cache: tuple[int, ...], heads: int, separate: bool) -> None:
    """Prompts and tokens in turn; after each, the output and both caches."""
    batch, _, kv_heads, dim = cache
    graph = fused_graph(device, cache, heads, separate=separate)
    expected_labels = [["update_cache_k"]], [["update_cache_v"]]
    assert tuple(labels(graph)[:2]) == expected_labels
    k_cache, v_cache = torch.zeros(cache), torch.zeros(cache)
    position = 0
    for turn, new in enumerate(CALLS):
        q = random(batch, new, heads, dim, seed=3 * turn)
        k = random(batch, new, kv_heads, dim, seed=3 * turn + 1)
        v = random(batch, new, kv_heads, dim, seed=3 * turn + 2)
        k_cache[:, position : position + new] = k
        v_cache[:, position : position + new] = v
        out = graph.execute([position, q.numpy(), k.numpy(), v.numpy()])[0]
        assert_close(out, reference(q, k_cache, v_cache, position, None, True))
        assert_close(out, eager_sdpa(q, k_cache, v_cache, position, None, True), 1e-5, 1e-5)
        position += new
        for name, want in (("k", k_cache), ("v", v_cache)):
            found = state(graph, f"attention.{name}_cache", cache)
            assert np.array_equal(found, want.numpy().view(np.uint32))


def test_refused_call_changes_nothing(device: Any) -> None:
    cache = (1, 30, 2, 8)
    graph = fused_graph(device, cache, 4)
    x = [random(1, 9, heads, 8, seed=heads).numpy() for heads in (4, 2, 2)]
    graph.execute([21, *x])
    before = [state(graph, f"attention.{n}_cache", cache) for n in "kv"]
    with pytest.raises(
        InvalidInputError, match=r"input_pos 22 \+ 9 tokens exceeds .* 30 positions"
    ):
        graph.execute([22, *x])
    after = [state(graph, f"attention.{n}_cache", cache) for n in "kv"]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
