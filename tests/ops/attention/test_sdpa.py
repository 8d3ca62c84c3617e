"""llama.custom_sdpa against double precision: every route, layout and kind of mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models import arguments, eager_sdpa, graph_of, labels, random, reference, sdpa_chain

from executorch_wgpu.ops.attention import kernels
from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.serialization.dispatch_list import NONE, Program

from harness import Chain, assert_close

SPLIT = ["sdpa_decode_split", "sdpa_decode_reduce"]


def only_route(program: Program, index: int) -> Program:
    """The program with one route of each step that has several."""
    return replace(
        program,
        steps=tuple(
            replace(step, routes=(replace(step.routes[index], guard=NONE),))
            if len(step.routes) > 1
            else step
            for step in program.steps
        ),
    )


def tensors(
    batch: int, rows: int, heads: int, kv_heads: int, dim: int, capacity: int, seed: int = 0
) -> list[torch.Tensor]:
    """Query, key and value."""
    return [
        random(batch, rows, heads, dim, seed=seed),
        random(batch, capacity, kv_heads, dim, seed=seed + 1),
        random(batch, capacity, kv_heads, dim, seed=seed + 2),
    ]


def sent(x: list[torch.Tensor], transposed: bool) -> list[np.ndarray]:
    """What a graph of ``sdpa_chain`` takes for query, key and value."""
    return [(t.transpose(1, 2) if transposed else t).contiguous().numpy() for t in x]


# batch, query heads, KV heads, head dimension, cache, causal, transposed
SHAPES = [
    (1, 1, 1, 1, 77, True, False),
    (2, 4, 4, 3, 200, True, False),
    (1, 9, 3, 16, 259, True, True),
    (1, 9, 3, 64, 300, True, False),
    (3, 8, 1, 64, 131, False, False),
    (1, 32, 8, 64, 513, True, False),
    (2, 4, 4, 80, 150, True, True),
    (1, 8, 1, 96, 193, False, True),
    (1, 14, 2, 128, 270, True, False),
    (1, 8, 1, 256, 140, True, False),
    (1, 4, 2, 250, 90, True, False),
]
ROWS = (1, 2, 3, 7, 16, 17, 33, 128)
STARTS = (0, 1, 63, 64, 65, 127)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_live_rows_and_position(device: Any, shape: tuple[Any, ...]) -> None:
    """One graph, replayed through all three routes as S and start_pos change."""
    batch, heads, kv_heads, dim, capacity, causal, transposed = shape
    chain = Chain()
    start = chain.int_input("input_pos", 0, capacity)
    live = chain.dim_of("S", 2 if transposed else 1, 1, 128)
    sdpa_chain(
        (batch, live, heads, dim),
        (batch, capacity, kv_heads, dim),
        start,
        chain=chain,
        causal=causal,
        transposed=transposed,
    )
    graph = graph_of(device, chain)
    assert labels(graph)[-1] == [SPLIT, SPLIT, ["sdpa_prefill"]]
    cases = [(s, p) for i, s in enumerate(ROWS) for p in STARTS[i % 2 :: 2] if s + p <= capacity]
    cases += [(s, capacity - s) for s in (1, 5, 17) if s <= capacity]
    for rows, position in cases:
        x = tensors(batch, rows, heads, kv_heads, dim, capacity)
        out = graph.execute([position, *sent(x, transposed)])[0]
        assert_close(out, reference(*x, position, None, causal))


@pytest.mark.parametrize("index", [1, 2], ids=["short", "prefill"])
@pytest.mark.parametrize("dim", [64, 33])
def test_each_route_alone(device: Any, index: int, dim: int) -> None:
    """A guard only chooses: the split route holds for any context, the tiled one for any S too."""
    chain = Chain()
    start = chain.int_input("input_pos", 0, 400)
    live = chain.dim_of("S", 1, 1, 128)
    sdpa_chain((2, live, 6, dim), (2, 400, 2, dim), start, chain=chain, causal=True)
    lowered = chain.lower()
    graph = graph_of(device, replace(lowered, program=only_route(lowered.program, index)))
    for rows, position in [(1, 0), (1, 1), (2, 63), (5, 59), (16, 384), (1, 399), (3, 200)]:
        x = tensors(2, rows, 6, 2, dim, 400)
        out = graph.execute([position, *sent(x, False)])[0]
        assert_close(out, reference(*x, position, None, True))


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_static_sizes_take_one_route(device: Any, rows: int) -> None:
    x = tensors(2, rows, 4, 2, 64, 70)
    graph = graph_of(device, sdpa_chain(x[0].shape, x[1].shape, 30, causal=True))
    assert labels(graph)[-1] == [["sdpa_prefill"] if rows > kernels.SHORT_ROWS else SPLIT]
    assert not graph.program.live
    assert_close(graph.execute(sent(x, False))[0], reference(*x, 30, None, True))


def test_more_tiles_than_splits(device: Any) -> None:
    """Beyond MAX_SPLITS tiles, a split walks several of them."""
    capacity = kernels.MAX_SPLITS * kernels.DECODE_TILE * 2 + 75
    chain = Chain()
    start = chain.int_input("input_pos", 0, capacity - 1)
    sdpa_chain((1, 1, 4, 8), (1, capacity, 2, 8), start, chain=chain, causal=True)
    graph = graph_of(device, chain)
    x = tensors(1, 1, 4, 2, 8, capacity)
    limit = kernels.MAX_SPLITS * kernels.DECODE_TILE
    for position in (0, limit - 1, limit, limit + 1, capacity // 2, capacity - 1):
        out = graph.execute([position, *sent(x, False)])[0]
        assert_close(out, reference(*x, position, None, True))


@pytest.mark.parametrize(("rows", "scale"), [(3, 0.3), (3, 1), (20, 0.0), (20, -0.5)])
def test_scale(device: Any, rows: int, scale: float) -> None:
    x = tensors(1, rows, 4, 2, 16, 50)
    graph = graph_of(device, sdpa_chain(x[0].shape, x[1].shape, 11, scale=scale))
    assert_close(graph.execute(sent(x, False))[0], reference(*x, 11, None, False, scale))


@pytest.mark.parametrize("rows", [1, 6, 45])
@pytest.mark.parametrize("dim", [64, 7])
def test_mask(device: Any, rows: int, dim: int) -> None:
    """Random biases with -inf, a row hidden entirely (zeros), one that sees the last key alone;
    all keys of the cache count, whatever start_pos says."""
    capacity = 133
    x = tensors(2, rows, 6, 3, dim, capacity)
    mask = random(rows, capacity, seed=9)
    mask[random(rows, capacity, seed=10) > 0.5] = -float("inf")
    if rows > 1:
        mask[1] = -float("inf")
        mask[2] = -float("inf")
        mask[2, -1] = 3.0
        mask[3, 100:] = -float("inf")
    graph = graph_of(device, sdpa_chain(x[0].shape, x[1].shape, 1000, mask=True))
    out = graph.execute([*sent(x, False), mask.numpy()])[0]
    want = reference(*x, 0, mask)
    assert_close(out, want)
    if rows > 1:
        assert not np.asarray(out)[:, 1].any()
        eager = eager_sdpa(*x, 3, mask)
        assert eager[:, 1].isnan().all()  # the one difference, see ops/attention/sdpa.py
        assert_close(out, eager.nan_to_num(0.0))


@pytest.mark.parametrize("rows", [4, 30])
@pytest.mark.parametrize("lowest", [-1e9, torch.finfo(torch.float32).min])
def test_mask_of_large_finite_numbers(device: Any, rows: int, lowest: float) -> None:
    """A row of nothing but such numbers is an average over all keys, as on the CPU."""
    x = tensors(1, rows, 2, 1, 32, 90)
    mask = torch.full((rows, 90), lowest).triu(40)
    mask[0] = lowest
    graph = graph_of(device, sdpa_chain(x[0].shape, x[1].shape, 0, mask=True))
    assert_close(graph.execute([*sent(x, False), mask.numpy()])[0], eager_sdpa(*x, 0, mask))


def test_live_mask(device: Any) -> None:
    """A mask whose rows live, read through strides (it arrives transposed)."""
    chain = Chain()
    live = chain.dim_of("S", 1, 1, 64)
    query = chain.input("q", (1, live, 4, 16))
    key, value = (chain.input(name, (1, 70, 2, 16)) for name in "kv")
    arrived = chain.input("mask", (70, live))
    (mask,) = chain.call(
        "aten.permute_copy.default", {"self": arrived, "dims": [1, 0]}, [(query.dtype, (live, 70))]
    )
    call = arguments(query, key, value, 0, mask)
    chain.output(*chain.call("llama.custom_sdpa.default", call, [(query.dtype, query.shape)]))
    graph = graph_of(device, chain)
    for rows in (1, 9, 50):
        x = tensors(1, rows, 4, 2, 16, 70)
        bias = random(rows, 70, seed=5)
        out = graph.execute([*sent(x, False), bias.t().contiguous().numpy()])[0]
        assert_close(out, reference(*x, 0, bias))


@pytest.mark.parametrize(("rows", "dim"), [(3, 16), (40, 16), (3, 6), (40, 6)])
def test_operands_in_one_buffer(device: Any, rows: int, dim: int) -> None:
    """Query, keys and values as slices of one tensor (a fused projection), with no copy."""
    chain = Chain()
    fused = chain.input("qkv", (2, rows, 4 + 2 + 2, dim))
    q, k, v = (
        chain.call(
            "aten.slice_copy.Tensor",
            {"self": fused, "dim": 2, "start": begin, "end": begin + heads, "step": 1},
            [(fused.dtype, (2, rows, heads, dim))],
        )[0]
        for begin, heads in ((0, 4), (4, 2), (6, 2))
    )
    call = arguments(q, k, v, 0, None, True)
    chain.output(*chain.call("llama.custom_sdpa.default", call, [(q.dtype, q.shape)]))
    graph = graph_of(device, chain)
    assert len(graph.program.steps) == 1
    x = random(2, rows, 8, dim)
    want = reference(x[:, :, :4], x[:, :, 4:6], x[:, :, 6:], 0, None, True)
    assert_close(graph.execute([x.numpy()])[0], want)


@pytest.mark.parametrize(("rows", "position"), [(4, 3), (37, 20)])
def test_agrees_with_the_cpu_kernel(device: Any, rows: int, position: int) -> None:
    """Without causal masking here, with it in test_kv_cache.py."""
    x = tensors(2, rows, 8, 2, 64, 64)
    graph = graph_of(device, sdpa_chain(x[0].shape, x[1].shape, position))
    out = graph.execute(sent(x, False))[0]
    assert_close(out, eager_sdpa(*x, position), 1e-5, 1e-5)


@pytest.mark.parametrize("rows", [1, 25])
def test_large_scores(device: Any, rows: int) -> None:
    """Scores in the thousands: one key takes everything, nothing overflows."""
    x = tensors(1, rows, 2, 2, 64, 80)
    x[0] *= 300
    graph = graph_of(device, sdpa_chain(x[0].shape, x[1].shape, 50, causal=True))
    assert_close(graph.execute(sent(x, False))[0], reference(*x, 50, None, True), 2e-3)


@pytest.mark.parametrize("rows", [1, 25])
def test_keys_out_of_sight_may_hold_anything(device: Any, rows: int) -> None:
    x = tensors(1, rows, 2, 2, 20, 80)
    want = reference(*x, 10, None, True)
    for t in x[1:]:
        t[:, 10 + rows :] = float("nan")
    graph = graph_of(device, sdpa_chain(x[0].shape, x[1].shape, 10, causal=True))
    assert_close(graph.execute(sent(x, False))[0], want)


def test_no_rows(device: Any) -> None:
    chain = Chain()
    live = chain.dim_of("S", 1, 0, 64)
    sdpa_chain((1, live, 4, 16), (1, 70, 2, 16), 5, chain=chain, causal=True)
    graph = graph_of(device, chain)
    for rows in (0, 3, 0):
        x = tensors(1, rows, 4, 2, 16, 70)
        out = graph.execute(sent(x, False))[0]
        assert tuple(out.shape) == (1, rows, 4, 16)
        if rows:
            assert_close(out, reference(*x, 5, None, True))


def test_positions_outside_of_the_cache_are_refused(device: Any) -> None:
    chain = Chain()
    start = chain.int_input("input_pos", -8, 100)
    live = chain.dim_of("S", 1, 1, 32)
    sdpa_chain((1, live, 2, 8), (1, 40, 2, 8), start, chain=chain, causal=True)
    graph = graph_of(device, chain)
    x = tensors(1, 3, 2, 2, 8, 40)
    with pytest.raises(
        InvalidInputError, match=r"input_pos 38 \+ 3 tokens exceeds .* 40 positions"
    ):
        graph.execute([38, *sent(x, False)])
    with pytest.raises(InvalidInputError, match="input_pos -1 is negative"):
        graph.execute([-1, *sent(x, False)])
    assert_close(graph.execute([37, *sent(x, False)])[0], reference(*x, 37, None, True))
