"""wgpu.rope_attention against fp64: rotation, caches and attention as one step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.serialization.dispatch_list import DType

from harness import DTYPES, Chain, assert_close

F32 = DType.F32


def rotated(x, cos, sin, interleaved):
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Case:
    """One graph with a live position and a live number of positions."""

    def __init__(
        self, device, heads, kv_heads, dim, context, *,
        interleaved=True, joined=True, batch=1, stored=torch.float32, norm=False, causal=True,
    ):  # fmt: skip
        c = Chain()
        self.heads, self.kv_heads, self.dim, self.batch = heads, kv_heads, dim, batch
        self.interleaved, self.joined, self.stored, self.causal = (
            interleaved, joined, stored, causal
        )  # fmt: skip
        start = c.int_input("input_pos", 0, 2 * context)
        S = c.dim_of("S", 1, 1, 40)
        counts = (heads, kv_heads, kv_heads)
        widths = [count * dim for count in counts]
        if joined:
            x = c.input("qkv", (batch, S, sum(widths)))
            args = {"self": x, "split_sizes": widths, "dim": -1}
            parts = c.call(
                "aten.split_with_sizes_copy.default", args, [(F32, (batch, S, w)) for w in widths]
            )
        else:
            parts = [c.input(n, (batch, S, w)) for n, w in zip("qkv", widths, strict=True)]
        shapes = [(batch, S, count, dim) for count in counts]
        q, k, v = (
            c.call("aten.view_copy.default", {"self": part, "size": []}, [(F32, shape)])[0]
            for part, shape in zip(parts, shapes, strict=True)
        )
        width = dim // 2 if interleaved else dim
        angles = torch.rand(3 * context, width) * 6
        self.tables = [angles.cos(), angles.sin()]
        rows = []
        for table in self.tables:
            args = {"self": c.constant(table), "dim": 0, "start": start, "end": None, "step": 1}
            (part,) = c.call("aten.slice_copy.Tensor", args, [(F32, (S, width))])
            view = {"self": part, "size": []}
            rows += c.call("aten.view_copy.default", view, [(F32, (S, 1, width))])
        shape = (batch, context, kv_heads, dim)
        caches = [torch.randn(shape).to(stored), torch.randn(shape).to(stored)]
        states = [c.state(t, f"{n}_cache") for t, n in zip(caches, "kv", strict=True)]
        self.caches = [t.clone().double() for t in caches]
        self.weight = torch.rand(dim) + 0.5 if norm else None
        args = {"q": q, "k": k, "v": v, "cos": rows[0], "sin": rows[1], "start_pos": start}
        args |= {"k_cache": states[0], "v_cache": states[1], "interleaved": interleaved}
        args |= {"attn_mask": None, "is_causal": causal, "scale": None, "rope_dtype": F32}
        for name in "qk":
            args[f"{name}_norm"] = c.constant(self.weight) if norm else None
            args[f"{name}_eps"] = 1e-5 if norm else None
        outputs = [(F32, shapes[0]), (DTYPES[stored], shape), (DTYPES[stored], shape)]
        results = c.call("wgpu.rope_attention", args, outputs, {1: "k_cache", 2: "v_cache"})
        c.output(results[0])
        self.graph = c.graph(device)

    def decode(self):
        """Labels of the decode route's dispatches."""
        (step,) = self.graph.program.steps
        return [d.label.rsplit("/")[-1] for d in step.routes[0].dispatches]

    def step(self, at: int, rows: int) -> None:
        parts = [
            torch.randn(self.batch, rows, count * self.dim)
            for count in (self.heads, self.kv_heads, self.kv_heads)
        ]
        inputs = [torch.cat(parts, -1)] if self.joined else parts
        (y,) = self.graph.execute([at, *(t.numpy() for t in inputs)])
        q, k, v = (p.double().view(self.batch, rows, -1, self.dim) for p in parts)
        if self.weight is not None:
            q, k = (
                x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight.double()
                for x in (q, k)
            )
        cos, sin = (t[at : at + rows].double().unsqueeze(1) for t in self.tables)
        q, k = (rotated(x, cos, sin, self.interleaved) for x in (q, k))
        for cache, new in zip(self.caches, (k, v), strict=True):
            cache[:, at : at + rows] = new.to(self.stored).double()
        keys, values = (
            c[:, : at + rows].repeat_interleave(self.heads // self.kv_heads, 2).transpose(1, 2)
            for c in self.caches
        )
        scores = q.transpose(1, 2) @ keys.transpose(2, 3) * self.dim**-0.5
        if self.causal:
            seen = torch.ones(rows, at + rows, dtype=torch.bool).tril(at)
            scores = scores.masked_fill(~seen, -torch.inf)
        want = (scores.softmax(-1) @ values).transpose(1, 2)
        half = self.stored is not torch.float32
        assert_close(y, want, *((2e-3, 1e-2) if half else (1e-4, 1e-3)))
        for name, cache in zip("kv", self.caches, strict=True):
            found = self.graph.state.read(f"{name}_cache")
            if found.dtype == np.uint16:  # bfloat16 by its bits
                found = torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)
            found, end = torch.as_tensor(found), at + rows
            assert_close(found[:, :end], cache[:, :end], *((2e-3, 1e-2) if half else (1e-4, 1e-3)))
            # What is ahead stays as it was.
            np.testing.assert_allclose(found[:, end:].double(), cache[:, end:], 1e-2, 2e-3)


STEPS = ((0, 1), (1, 7), (8, 1), (9, 17), (25, 40), (63, 1), (64, 1), (65, 1), (200, 1))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "stored", "interleaved"),
    [
        (8, 2, 32, torch.float32, True),
        (4, 4, 64, torch.float32, False),
        (9, 1, 80, torch.float16, False),
        (12, 1, 128, torch.float32, False),
        (2, 1, 8, torch.float16, True),
        (4, 1, 4, torch.bfloat16, True),
    ],
)
def test_steps(device, heads, kv_heads, dim, stored, interleaved):
    case = Case(device, heads, kv_heads, dim, 201, interleaved=interleaved, stored=stored)
    assert case.decode() == ["sdpa_rope_cache_split", "sdpa_decode_reduce"]
    for at, rows in STEPS:
        case.step(at, rows)


def test_a_long_context_in_growing_splits(device):
    """More tiles than splits: a split walks several, and the fresh position is in the last."""
    case = Case(device, 4, 1, 16, 64 * 64 + 200)
    for at in (64 * 64 - 1, 64 * 64, 64 * 64 + 130):
        case.step(at, 1)


def test_a_batch(device):
    case = Case(device, 4, 2, 16, 80, batch=3)
    for at, rows in ((0, 5), (5, 1), (6, 30), (36, 1), (79, 1)):
        case.step(at, rows)


@pytest.mark.parametrize(
    "form", [{"joined": False}, {"norm": True}, {"dim": 6}, {"dim": 12, "interleaved": False}],
    ids=str,
)  # fmt: skip
def test_what_needs_a_dispatch_of_its_own(device, form):
    case = Case(device, 4, 2, form.pop("dim", 16), 80, **form)
    assert case.decode() == [
        *("rope_update_cache_kv", "sdpa_decode_split", "sdpa_decode_reduce"),
    ]
    for at, rows in ((0, 5), (5, 1), (6, 30), (79, 1)):
        case.step(at, rows)


def test_a_refused_call_changes_nothing(device):
    case = Case(device, 2, 1, 8, 24)
    case.step(0, 4)
    before = case.graph.state.read("k_cache").copy()
    with pytest.raises(InvalidInputError, match="exceeds the cache of 24"):
        case.graph.execute([24, np.zeros((1, 1, 32), np.float32)])
    np.testing.assert_array_equal(case.graph.state.read("k_cache"), before)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_what_is_ahead_in_the_caches_does_not_matter(device, stored):
    """Not even NaN: a decode reads only positions that were written. Rows of more than one tile,
    heads side by side, the first and the last position."""
    case = Case(device, 24, 2, 16, 80, stored=stored)
    for name, cache in zip("kv", case.caches, strict=True):
        cache.fill_(torch.nan)
        filled = np.full(cache.shape, np.nan, np.float16 if stored is torch.float16 else np.float32)
        case.graph.state.write(f"{name}_cache", filled)
    for at, rows in ((0, 1), (1, 1), (2, 3), (5, 1), (6, 30), (36, 1), (37, 27), (64, 15), (79, 1)):
        case.step(at, rows)


def test_caches_of_one_position(device):
    """Nothing is beside it, so the kernel that reads beside what it writes is not taken."""
    case = Case(device, 4, 2, 16, 1)
    assert "sdpa_rope_cache_split" not in case.decode()
    case.step(0, 1)


def test_caches_of_two_positions(device):
    case = Case(device, 4, 2, 16, 2, batch=2)
    assert "sdpa_rope_cache_split" in case.decode()
    for at in (0, 1, 0):
        case.step(at, 1)
