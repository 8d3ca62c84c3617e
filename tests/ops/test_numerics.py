"""What docs/NUMERICS.md promises and no operator's own tests hold: bits through fused kernels,
numbers near the limits of f16, the same bits from run to run, chunkings that agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.runtime.device import request_device
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import NONE

import tint
from harness import DTYPES, Chain, assert_close, run_op

HALF_MAX = 65504.0
F32 = torch.float32
DTYPE_IDS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class Layer:
    """Rotation, cache updates and attention as one step over a joined [1, S, heads * D], with a
    live S and position; ``dtype``: of the input and the caches."""

    HEADS, KV_HEADS, DIM, CONTEXT = 4, 2, 16, 96

    def __init__(self, dtype: torch.dtype = F32) -> None:
        c = Chain()
        kind = DTYPES[dtype]
        start = c.int_input("input_pos", 0, self.CONTEXT)
        rows = c.dim_of("S", 1, 1, self.CONTEXT)
        counts = (self.HEADS, self.KV_HEADS, self.KV_HEADS)
        widths = [count * self.DIM for count in counts]
        x = c.input("qkv", (1, rows, sum(widths)), dtype)
        args: dict[str, Any] = {"self": x, "split_sizes": widths, "dim": -1}
        outputs: list[Any] = [(kind, (1, rows, width)) for width in widths]
        parts = c.call("aten.split_with_sizes_copy.default", args, outputs)
        shapes = [(1, rows, count, self.DIM) for count in counts]
        q, k, v = (
            c.call("aten.view_copy.default", {"self": part, "size": []}, [(kind, shape)])[0]
            for part, shape in zip(parts, shapes, strict=True)
        )
        angles = torch.arange(self.CONTEXT * self.DIM // 2, dtype=F32).reshape(self.CONTEXT, -1)
        tables = []
        for table in (angles.cos(), angles.sin()):
            args = {"self": c.constant(table), "dim": 0, "start": start, "end": None, "step": 1}
            half = self.DIM // 2
            (part,) = c.call("aten.slice_copy.Tensor", args, [(DTYPES[F32], (rows, half))])
            view = {"self": part, "size": []}
            tables += c.call("aten.view_copy.default", view, [(DTYPES[F32], (rows, 1, half))])
        cache = (1, self.CONTEXT, self.KV_HEADS, self.DIM)
        states = [c.state(torch.zeros(cache, dtype=dtype), f"{name}_cache") for name in "kv"]
        args = {"q": q, "k": k, "v": v, "cos": tables[0], "sin": tables[1], "start_pos": start}
        args |= {"k_cache": states[0], "v_cache": states[1], "interleaved": True}
        args |= {"attn_mask": None, "is_causal": True, "scale": None, "rope_dtype": DTYPES[F32]}
        args |= {"q_norm": None, "k_norm": None, "q_eps": None, "k_eps": None}
        results = [(DTYPES[F32], shapes[0]), (kind, cache), (kind, cache)]
        out = c.call("wgpu.rope_attention", args, results, {1: "k_cache", 2: "v_cache"})
        c.output(out[0])
        self.lowered = c.lower()

    def graph(self, device: Any) -> WebGPUGraph:
        return WebGPUGraph(device, self.lowered.program, self.lowered.data, "layer")


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("dtype", [F32, torch.float16, torch.bfloat16], ids=DTYPE_IDS.get)
def test_values_reach_the_cache_bit_for_bit(device, dtype, rows):
    """Through the kernels that rotate keys on the way: NaN with payloads, infinities, subnormals,
    -0. Keys are computed."""
    layer = Layer(dtype)
    graph = layer.graph(device)
    width = (layer.HEADS + 2 * layer.KV_HEADS) * layer.DIM
    kv = layer.KV_HEADS * layer.DIM
    word = np.uint32 if dtype is F32 else np.uint16
    x = np.zeros((1, rows, width), word)
    generator = np.random.default_rng(0)
    x[..., -kv:] = generator.integers(0, 1 << 8 * x.itemsize, (1, rows, kv), word)
    special = [0x7FC00001, 0xFFFFFFFF, 0x7F800000, 0x00000001, 0x80000000, 0x7F800001]
    if dtype is torch.float16:
        special = [0x7E01, 0xFFFF, 0x7C00, 0x0001, 0x8000, 0x7C01]
    elif dtype is torch.bfloat16:
        special = [0x7FC1, 0xFFFF, 0x7F80, 0x0001, 0x8000, 0x7F81]
    x[0, 0, -kv:][: len(special)] = special
    signed = x.view(np.int32 if dtype is F32 else np.int16)
    graph.execute([3, torch.from_numpy(signed).view(dtype)])
    found = np.asarray(graph.state.read("v_cache")).view(word).reshape(layer.CONTEXT, kv)
    np.testing.assert_array_equal(found[3 : 3 + rows], x[0, :, -kv:])
    assert not found[:3].any() and not found[3 + rows :].any()


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
def test_tint_compiles_it_in_every_dtype():
    programs = [Layer(dtype).lowered.program for dtype in DTYPE_IDS]
    errors = tint.validate(tint.sources_of(*programs))
    assert not any(errors), [error for error in errors if error]


# -- near the limits -------------------------------------------------------------------------------

LARGE = [
    [HALF_MAX, HALF_MAX, -HALF_MAX, 0.0],
    [HALF_MAX, 65472.0, 65440.0, -HALF_MAX],
    [-HALF_MAX, -HALF_MAX, -HALF_MAX, -HALF_MAX],
    [-65472.0, -HALF_MAX, -HALF_MAX, -65472.0],
    [1e-7, 6e-8, -6e-8, 0.0],
]


@pytest.mark.parametrize("dtype", [F32, torch.float16], ids=DTYPE_IDS.get)
@pytest.mark.parametrize("op", ["_softmax", "_log_softmax"])
def test_logits_near_the_limit_of_f16(device, op, dtype):
    x = torch.tensor(LARGE).to(dtype)
    expected = getattr(torch.ops.aten, op).default(x.double(), -1, False)
    args = {"self": x, "dim": -1, "half_to_float": False}
    (y,) = run_op(device, f"aten.{op}.default", args, expected.to(dtype))
    if dtype is torch.float16:
        expected = expected.clamp(-HALF_MAX, HALF_MAX)
    assert_close(y, expected, *tolerance(dtype))


@pytest.mark.parametrize("dtype", [F32, torch.float16], ids=DTYPE_IDS.get)
@pytest.mark.parametrize("op", ["_softmax", "_log_softmax"])
def test_softmax_of_masked_scores(device, op, dtype):
    """-inf in some places, in all but one; a row of nothing else (NaN in eager) harms no other."""
    x = torch.randn(6, 77, generator=torch.Generator().manual_seed(0)) * 5
    x[0, ::2] = x[1, 1:] = x[2, :-1] = x[3] = -torch.inf
    x[4, 3:] = -HALF_MAX
    x = x.to(dtype)
    expected = getattr(torch.ops.aten, op).default(x.double(), -1, False)
    args = {"self": x, "dim": -1, "half_to_float": False}
    (y,) = run_op(device, f"aten.{op}.default", args, expected.to(dtype))
    shown = torch.as_tensor(y).double()[expected.isfinite()]
    assert_close(shown, expected[expected.isfinite()], *tolerance(dtype))
    assert expected.isfinite().sum() > 150


@pytest.mark.parametrize("dtype", [F32, torch.float16], ids=DTYPE_IDS.get)
def test_the_largest_of_them(device, dtype):
    x = torch.tensor(LARGE).to(dtype)
    args = {"self": x, "dim": -1, "keepdim": False}
    (y,) = run_op(device, "aten.argmax.default", args, x.argmax(-1))
    assert torch.equal(torch.as_tensor(y).long(), x.argmax(-1))
    args = {"self": x, "dim": [-1], "keepdim": False}
    (y,) = run_op(device, "aten.amax.default", args, x.amax(-1))
    assert torch.equal(torch.as_tensor(y), x.amax(-1))


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    return (1e-4, 1e-3) if dtype is F32 else (2e-3, 1e-2)


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("dtype", [F32, torch.float16], ids=DTYPE_IDS.get)
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_near_the_limit_of_f16(device, rows, dtype, sign):
    """q k of about 60000 at every position, equal or a step apart, in each route."""
    heads, dim, context = 2, 16, 90
    c = Chain()
    kinds = {"q": (1, rows, heads, dim), "k": (1, context, 1, dim), "v": (1, context, 1, dim)}
    q, k, v = (c.input(name, shape, dtype) for name, shape in kinds.items())
    args = {"query": q, "key": k, "value": v, "start_pos": context - rows, "attn_mask": None}
    args |= {"drpout_p": 0.0, "is_causal": True, "scale": 1.0}
    c.output(*c.call("llama.custom_sdpa.default", args, [(DTYPES[F32], kinds["q"])]))
    query = torch.full(kinds["q"], 128.0)
    key = torch.full(kinds["k"], sign * 29.25)  # 128 * 29.25 * 16 = 59904
    key[:, ::7] = sign * 29.28125  # 59968
    value = torch.randn(kinds["v"], generator=torch.Generator().manual_seed(0))
    given = [t.to(dtype) for t in (query, key, value)]
    (y,) = c.graph(device).execute(given)
    wide = [t.double().transpose(1, 2) for t in given]
    scores = wide[0] @ wide[1].transpose(-1, -2)
    hidden = torch.arange(context) > torch.arange(rows)[:, None] + context - rows
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    assert scores.abs().min() > 59000
    assert_close(y, (weights @ wide[2]).transpose(1, 2), *tolerance(dtype))


# -- again, and in other ways ----------------------------------------------------------------------

MIX = (17, 1, 1, 40, 1, 5)


def walk(graph: WebGPUGraph, sizes: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Outputs of successive calls over the same rows, in one."""
    width = (Layer.HEADS + 2 * Layer.KV_HEADS) * Layer.DIM
    x = np.random.default_rng(1).standard_normal((1, sum(MIX), width), np.float32) * scale
    at, outs = 0, []
    for size in sizes:
        outs.append(graph.execute([at, x[:, at : at + size]])[0])
        at += size
    return np.concatenate(outs, 1)


def results(graph: WebGPUGraph) -> tuple[bytes, ...]:
    """All bits that a walk leaves: outputs and caches."""
    y = walk(graph, MIX)
    return (y.tobytes(), *(graph.state.read(f"{name}_cache").tobytes() for name in "kv"))


def test_the_same_bits_again(device):
    """A prefill, decodes and chunks: in the same graph, and in another."""
    layer = Layer()
    seen = set()
    for _ in range(2):
        graph = layer.graph(device)
        for _ in range(3):
            graph.state.reset()
            seen.add(results(graph))
    assert len(seen) == 1


def test_the_same_bits_on_another_device(device):
    """Of the same adapter."""
    layer = Layer()
    other = request_device()
    assert other is not device
    assert results(layer.graph(device)) == results(layer.graph(other))


def test_chunkings_agree(device):
    """One prefill, chunks of any size, one position at a time: other routes, equal results."""
    layer = Layer()
    whole = walk(layer.graph(device), (sum(MIX),))
    for sizes in (MIX, (1,) * sum(MIX), (16, 16, 16, 16, 1), (33, 32)):
        y = walk(layer.graph(device), sizes)
        assert_close(y, torch.from_numpy(whole))


def test_routes_agree(device):
    """Each route alone, where its guard would not have chosen it."""
    layer = Layer()
    (step,) = layer.lowered.program.steps
    assert len(step.routes) == 3
    want = walk(layer.graph(device), MIX)
    for route in step.routes[1:]:
        steps = (replace(step, routes=(replace(route, guard=NONE),)),)
        program = replace(layer.lowered.program, steps=steps)
        y = walk(WebGPUGraph(device, program, layer.lowered.data, "layer"), (1,) * sum(MIX))
        assert_close(y, torch.from_numpy(want))
