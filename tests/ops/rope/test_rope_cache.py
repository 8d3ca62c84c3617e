"""wgpu.rope_update_cache against fp64: rotations, norms, and what lands in the caches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.registry import unsupported_reason
from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close

F32 = DType.F32
CONTEXT = 24


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x, cos, sin, interleaved):
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Case:
    """One graph with a live position and a live number of positions."""

    def __init__(self, device, heads, kv_heads, dim, *, interleaved, joined, norms, batch=1):
        c = Chain()
        self.heads, self.kv_heads, self.dim, self.batch = heads, kv_heads, dim, batch
        self.interleaved, self.joined = interleaved, joined
        start = c.int_input("input_pos", 0, 2 * CONTEXT)
        S = c.dim_of("S", 1, 1, 16)
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
        self.tables = [torch.randn(3 * CONTEXT, width), torch.randn(3 * CONTEXT, width)]
        rows = []
        for table in self.tables:
            args = {"self": c.constant(table), "dim": 0, "start": start, "end": None, "step": 1}
            (part,) = c.call("aten.slice_copy.Tensor", args, [(F32, (S, width))])
            view = {"self": part, "size": []}
            rows += c.call("aten.view_copy.default", view, [(F32, (S, 1, width))])
        shape = (batch, CONTEXT, kv_heads, dim)
        caches = [torch.randn(shape), torch.randn(shape)]
        states = [c.state(t, f"{n}_cache") for t, n in zip(caches, "kv", strict=True)]
        self.caches = [t.clone().double() for t in caches]
        args = {"q": q, "k": k, "v": v, "cos": rows[0], "sin": rows[1], "start_pos": start}
        args |= {"k_cache": states[0], "v_cache": states[1], "interleaved": interleaved}
        self.norms = {}
        for name in "qk":
            weight = torch.randn(dim) if name in norms else None
            eps = 1e-5 if name == "q" else 1e-2
            self.norms[name] = (weight, eps)
            args[f"{name}_norm"] = None if weight is None else c.constant(weight)
            args[f"{name}_eps"] = None if weight is None else eps
        outputs = [(F32, shapes[0]), (F32, shape), (F32, shape)]
        results = c.call("wgpu.rope_update_cache", args, outputs, {1: "k_cache", 2: "v_cache"})
        c.output(results[0])
        self.graph = c.graph(device)

    def step(self, at: int, rows: int) -> None:
        parts = [
            torch.randn(self.batch, rows, count * self.dim)
            for count in (self.heads, self.kv_heads, self.kv_heads)
        ]
        inputs = [torch.cat(parts, -1)] if self.joined else parts
        (y,) = self.graph.execute([at, *(t.numpy() for t in inputs)])
        q, k, v = (p.double().view(self.batch, rows, -1, self.dim) for p in parts)
        cos, sin = (t[at : at + rows].double().unsqueeze(1) for t in self.tables)
        done = []
        for name, x in (("q", q), ("k", k)):
            weight, eps = self.norms[name]
            x = x if weight is None else norm(x, weight.double(), eps)
            done.append(rotated(x, cos, sin, self.interleaved))
        assert_close(y, done[0])
        for cache, new in zip(self.caches, (done[1], v), strict=True):
            cache[:, at : at + rows] = new
        for name, cache in zip("kv", self.caches, strict=True):
            assert_close(self.graph.state.read(f"{name}_cache"), cache)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("norms", ["", "qk", "k"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 6), (4, 4, 64), (9, 3, 80)])
def test_steps(device, heads, kv_heads, dim, norms, interleaved):
    case = Case(device, heads, kv_heads, dim, interleaved=interleaved, joined=True, norms=norms)
    assert len(case.graph.program.steps) == 1
    for at, rows in ((0, 7), (7, 1), (8, 16), (3, 2), (CONTEXT - 1, 1)):
        case.step(at, rows)


@pytest.mark.parametrize("dim", [2, 4, 128, 256])
def test_head_dimensions(device, dim):
    case = Case(device, 2, 1, dim, interleaved=False, joined=True, norms="qk", batch=2)
    for at, rows in ((0, 5), (5, 1)):
        case.step(at, rows)


@pytest.mark.parametrize("norms", ["", "q", "qk"])
def test_q_k_and_v_apart(device, norms):
    """Three buffers leave no room for the weights of norms: those become dispatches."""
    case = Case(device, 6, 2, 8, interleaved=False, joined=False, norms=norms)
    assert len(case.graph.program.steps) == 1 + len(norms)
    dispatches = [d for s in case.graph.program.steps for d in s.routes[0].dispatches]
    assert max(len(d.bindings) for d in dispatches) <= 8
    for at, rows in ((0, 3), (3, 1), (4, 16)):
        case.step(at, rows)


def test_refused_calls_change_nothing(device):
    case = Case(device, 2, 1, 4, interleaved=True, joined=True, norms="")
    case.step(0, 4)
    before = case.graph.state.read("k_cache").copy()
    x = np.zeros((1, 2, 16), np.float32)
    for at, message in ((CONTEXT - 1, "exceeds the cache of 24"), (-1, "input_pos")):
        with pytest.raises(InvalidInputError, match=message):
            case.graph.execute([at, x])
    np.testing.assert_array_equal(case.graph.state.read("k_cache"), before)


def test_what_is_not_supported():
    def value(*shape):
        return Value(F32, shape)

    good = {
        "q": value(1, 3, 4, 8), "k": value(1, 3, 2, 8), "v": value(1, 3, 2, 8),
        "cos": value(3, 1, 8), "sin": value(3, 1, 8), "interleaved": False, "start_pos": 0,
        "k_cache": value(1, 9, 2, 8), "v_cache": value(1, 9, 2, 8),
        "q_norm": None, "q_eps": None, "k_norm": None, "k_eps": None,
    }  # fmt: skip

    def reason(**args):
        args = {**good, **args}
        outputs = (args["q"], args["k_cache"], args["v_cache"])
        mutates = {1: "k_cache", 2: "v_cache"}
        return unsupported_reason(OpCall("wgpu.rope_update_cache", args, outputs, mutates=mutates))

    assert reason() is None
    assert reason(cos=value(3, 4, 8))  # for each head
    assert reason(cos=value(5, 1, 8))  # other positions
    assert reason(cos=value(3, 1, 4))  # pairs of the other layout
    assert reason(v=value(1, 3, 1, 8)) and reason(k=value(1, 2, 2, 8))
    assert reason(q=value(1, 3, 4, 6)) and reason(q=value(2, 3, 4, 8))
    assert reason(k_cache=value(1, 2, 2, 8))  # too short
    assert reason(k_norm=value(4))
    assert reason(v_cache=good["k_cache"])
