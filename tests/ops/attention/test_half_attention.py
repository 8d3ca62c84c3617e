"""Attention over caches of 16 bits, and queries, masks and results of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from models import arguments, eager_sdpa, graph_of, random, reference, sdpa_chain

import tint
from harness import DTYPES, Chain, assert_close

F32 = torch.float32
HALVES = [torch.float16, torch.bfloat16]
CALLS = (21, 1, 1, 1, 33, 1)


def close(actual: Any, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert_close(actual, expected, *(() if dtype == F32 else (2e-3, 1e-2)))


def dtypes_of(kind: str, half: torch.dtype) -> dict[str, torch.dtype]:
    """What is stored in 16 bits: the caches, or everything."""
    names = {"caches": ("k", "v"), "all": ("q", "k", "v", "mask", "out")}[kind]
    return dict.fromkeys(names, half)


@pytest.mark.parametrize(
    ("half", "kind", "heads", "kv_heads", "dim", "transposed"),
    [
        (torch.float16, "caches", 6, 2, 64, False),
        (torch.bfloat16, "all", 4, 4, 36, True),
        (torch.bfloat16, "caches", 4, 2, 6, True),
        (torch.float16, "all", 3, 1, 5, False),
    ],
)
def test_live_rows_and_position(
    device: Any, half: torch.dtype, kind: str, heads: int, kv_heads: int, dim: int, transposed: bool
) -> None:
    """All routes; head dimensions of whole vectors, of pairs, and odd ones."""
    capacity, dtypes = 140, dtypes_of(kind, half)
    chain = Chain()
    start = chain.int_input("input_pos", 0, capacity)
    live = chain.dim_of("S", 2 if transposed else 1, 1, 64)
    query, cache = (1, live, heads, dim), (1, capacity, kv_heads, dim)
    options = {"causal": True, "transposed": transposed, "dtypes": dtypes}
    graph = graph_of(device, sdpa_chain(query, cache, start, chain=chain, **options))
    for rows, position in ((1, 0), (1, 77), (7, 63), (40, 100), (1, 139)):
        shapes = ((1, rows, heads, dim), cache, cache)
        x = [
            random(*shape, seed=seed).to(dtypes.get(name, F32))
            for seed, (name, shape) in enumerate(zip("qkv", shapes, strict=True))
        ]
        given = [(t.transpose(1, 2) if transposed else t).contiguous() for t in x]
        (out,) = graph.execute([position, *given])
        assert out.dtype == dtypes.get("out", F32)
        close(out, reference(*x, position, None, True), out.dtype)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("rows", [1, 40])
def test_mask(device: Any, half: torch.dtype, rows: int) -> None:
    """-inf hides a key, a row that is hidden entirely is zeros, the largest numbers are numbers."""
    capacity, dtypes = 75, dtypes_of("all", half)
    q, k, v = (random(1, n, h, 8, seed=n).to(half) for n, h in ((rows, 4), (capacity, 2), (75, 2)))
    mask = random(rows, capacity, seed=9)
    mask[random(rows, capacity, seed=10) > 0.5] = -float("inf")
    mask[:, 3] = -torch.finfo(half).max
    if rows > 1:
        mask[1] = -float("inf")
    mask = mask.to(half)
    chain = sdpa_chain(q.shape, k.shape, 0, mask=True, dtypes=dtypes)
    (out,) = graph_of(device, chain).execute([q, k, v, mask])
    close(out, reference(q, k, v, 0, mask), half)


def cache_graph(
    device: Any,
    shape: tuple[int, ...],
    heads: int,
    half: torch.dtype,
    new: torch.dtype,
    fused: bool,
) -> Any:
    """Keys and values of dtype ``new`` go into caches of dtype ``half``; attention over these,
    query and result in dtype ``new``."""
    batch, capacity, kv_heads, dim = shape
    c, out = Chain(), DTYPES[new]
    start = c.int_input("input_pos", 0, capacity)
    live = c.dim_of("S", 1, 1, 64)
    q = c.input("q", (batch, live, heads, dim), new)
    k, v = (c.input(name, (batch, live, kv_heads, dim), new) for name in "kv")
    caches = [c.state(torch.zeros(shape, dtype=half), f"attention.{n}_cache") for n in "kv"]
    if fused:
        args = arguments(q, k, v, start, None, True)
        args |= {"key_cache": caches[0], "value_cache": caches[1], "seq_len": live}
        outputs = [(out, q.shape), *((DTYPES[half], shape) for _ in caches)]
        mutates = {1: "key_cache", 2: "value_cache"}
        c.output(c.call("llama.sdpa_with_kv_cache.default", args, outputs, mutates)[0])
    else:
        for index, value in enumerate((k, v)):
            args = {"value": value, "cache": caches[index], "start_pos": start}
            outputs = [(out, (1,)), (DTYPES[half], shape)]
            caches[index] = c.call("llama.update_cache.default", args, outputs, {1: "cache"})[1]
        args = arguments(q, *caches, start, None, True)
        c.output(*c.call("llama.custom_sdpa.default", args, [(out, q.shape)]))
    return graph_of(device, c)


@pytest.mark.parametrize(
    ("half", "same", "shape", "heads", "fused"),
    [
        (torch.float16, True, (1, 60, 3, 16), 6, True),
        (torch.bfloat16, False, (1, 60, 3, 16), 6, True),
        (torch.float16, False, (2, 60, 1, 5), 2, False),
        (torch.bfloat16, True, (2, 60, 1, 5), 2, False),
    ],
)
def test_conversation(
    device: Any, half: torch.dtype, same: bool, shape: tuple[int, ...], heads: int, fused: bool
) -> None:
    """Prompts and tokens in turn; positions of an odd number of elements share words. After each,
    the output and every bit of the caches."""
    batch, _, kv_heads, dim = shape
    new = half if same else F32
    graph = cache_graph(device, shape, heads, half, new, fused)
    caches = [torch.zeros(shape, dtype=half) for _ in "kv"]
    position = 0
    for turn, size in enumerate(CALLS):
        q = random(batch, size, heads, dim, seed=3 * turn).to(new)
        kv = [random(batch, size, kv_heads, dim, seed=3 * turn + n).to(new) for n in (1, 2)]
        for cache, values in zip(caches, kv, strict=True):
            cache[:, position : position + size] = values
        (out,) = graph.execute([position, q, *kv])
        close(out, reference(q, *caches, position, None, True), new)
        if same:
            eager = eager_sdpa(q, *caches, position, None, True)
            assert_close(out, eager, 2e-3, 2e-2)
        position += size
        for name, cache in zip("kv", caches, strict=True):
            found = np.asarray(graph.state.read(f"attention.{name}_cache"))
            want = cache.view(torch.int16).numpy().reshape(-1)
            assert np.array_equal(found.reshape(-1).view(np.int16)[: want.size], want)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("row", [(1, 5), (3, 4)])
def test_every_bit_reaches_the_cache(device: Any, half: torch.dtype, row: tuple[int, int]) -> None:
    """NaN with payloads, infinities, subnormals."""
    shape = (2, 41, *row)
    graph = cache_graph(device, shape, row[0], half, half, False)
    words = np.zeros(shape, np.int16)
    generator = np.random.default_rng(0)
    position = 0
    for size in (1, 7, 30, 3):
        x = generator.integers(-(1 << 15), 1 << 15, (2, size, *row), np.int16)
        words[:, position : position + size] = x
        value = torch.from_numpy(x).view(half)
        graph.execute([position, torch.zeros_like(value), value, value])
        position += size
        for name in "kv":
            found = np.asarray(graph.state.read(f"attention.{name}_cache")).reshape(-1)
            assert np.array_equal(found.view(np.int16)[: words.size], words.reshape(-1))


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
def test_tint_compiles_every_variant() -> None:
    programs = []
    for half in HALVES:
        for kind in ("caches", "all"):
            for dim in (5, 6, 64, 256):
                for mask in (False, True):
                    chain = Chain()
                    start = chain.int_input("input_pos", 0, 511)
                    live = chain.dim_of("S", 1, 1, 512)
                    shapes = (1, live, 6, dim), (1, 512, 2, dim)
                    options = {"mask": mask, "causal": not mask, "dtypes": dtypes_of(kind, half)}
                    sdpa_chain(*shapes, start, chain=chain, **options)
                    programs.append(chain.lower().program)
    errors = tint.validate(tint.sources_of(*programs))
    assert not any(errors), [error for error in errors if error]
