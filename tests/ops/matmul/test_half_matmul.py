"""Factors, biases and results of 16 bits: every kernel, against fp64 on the rounded factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.ops.matmul import pieces

import tint
from harness import DTYPES, Chain, assert_close, run_op

F32 = torch.float32
HALVES = [torch.float16, torch.bfloat16]


def normal(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(shape).standard_normal(shape, np.float32)).to(
        dtype
    )


def close(actual: Any, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert_close(actual, expected, *(() if dtype == F32 else (2e-3, 1e-2)))


def linear_chain(
    k: int, n: int, dtypes: tuple[torch.dtype, torch.dtype, torch.dtype], most: int = 600
) -> tuple[Chain, torch.Tensor, torch.Tensor]:
    """A linear of a live number of rows with its weight and bias: dtypes of input, weight and
    result."""
    a, w, out = dtypes
    weight, bias = normal(n, k, dtype=w), normal(n, dtype=w)
    c = Chain()
    m = c.int_input("M", 1, most)
    args = {"input": c.input("x", (m, k), a), "weight": c.constant(weight)}
    args["bias"] = c.constant(bias)
    c.output(*c.call("aten.linear.default", args, [(DTYPES[out], (m, n))]))
    return c, weight, bias


@pytest.mark.parametrize(
    ("half", "kinds", "k", "n"),
    [
        (torch.float16, "hhh", 64, 36),
        (torch.bfloat16, "hhh", 31, 35),
        (torch.float16, "fhf", 68, 33),
        (torch.bfloat16, "fhf", 64, 36),
        (torch.bfloat16, "fhh", 64, 33),
        (torch.float16, "fhh", 31, 36),
        (torch.float16, "hff", 64, 36),
        (torch.bfloat16, "ffh", 68, 35),
        (torch.float16, "hhh", 1, 1),
    ],
)
def test_linear(device: Any, half: torch.dtype, kinds: str, k: int, n: int) -> None:
    """Kinds: input, weight and bias, result. Rows of 8, of 4 and of single elements at a time, an
    odd number of columns, all routes."""
    a, w, out = (half if kind == "h" else F32 for kind in kinds)
    c, weight, bias = linear_chain(k, n, (a, w, out))
    graph = c.graph(device)
    for rows in (1, 3, 9, 70):
        x = normal(rows, k, dtype=a)
        (y,) = graph.execute([rows, x])
        assert y.dtype == out
        close(y, x.double() @ weight.double().T + bias.double(), out)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 31, 37), (5, 24, 40), (40, 31, 37)])
def test_bmm(device: Any, m: int, k: int, n: int) -> None:
    """[K, N] is read along n."""
    f16, bf16 = HALVES
    for a, w, out in ((f16, f16, f16), (F32, bf16, F32), (bf16, F32, bf16)):
        x, y = normal(3, m, k, dtype=a), normal(3, k, n, dtype=w)
        golden = x.double() @ y.double()
        (z,) = run_op(device, "aten.bmm.default", {"self": x, "mat2": y}, golden.to(out))
        close(z, golden, out)
        if m == 5:
            args = {"self": x[0], "mat2": y[0]}
            (z,) = run_op(device, "aten.mm.default", args, golden[0].to(out), ("mat2",))
            close(z, golden[0], out)


@pytest.mark.parametrize("half", HALVES)
def test_limits(device: Any, half: torch.dtype) -> None:
    """A sum beyond the largest f16 ends there; subnormal weights count."""
    x = torch.tensor([[1.0, 1.0]])
    w = torch.tensor([[60000.0, 60000.0], [-60000.0, -60000.0], [2.0**-24, 2.0**-15], [1.0, 0.0]])
    weight = w.to(half)
    golden = x.double() @ weight.double().T
    limit = torch.finfo(half).max
    args = {"input": x, "weight": weight, "bias": None}
    (y,) = run_op(device, "aten.linear.default", args, golden.to(half), ("weight",))
    want = golden.clamp(-limit, limit).to(half)
    assert torch.equal(torch.as_tensor(y), want)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("n", "k"), [(301, 96)])
def test_pieces(
    device: Any, monkeypatch: pytest.MonkeyPatch, half: torch.dtype, n: int, k: int
) -> None:
    """A weight in pieces of 128 rows; what goes with the rows is bound from 256 bytes on."""
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 32 << 10)
    for out in (half, F32):
        c, weight, bias = linear_chain(k, n, (F32, half, out), 24)
        graph = c.graph(device)
        assert len(graph.program.steps[-1].routes[-1].dispatches) > 1
        for rows in (1, 24):
            x = normal(rows, k)
            (y,) = graph.execute([rows, x])
            close(y, x.double() @ weight.double().T + bias.double(), out)


def test_a_large_weight_is_read_16_bytes_at_a_time(device: Any) -> None:
    c, _, _ = linear_chain(64, 36, (F32, torch.float16, F32))
    program = c.lower().program
    decode = program.steps[-1].routes[0].dispatches[0]
    assert "gemv1" in decode.label
    shader = program.shaders[program.kernels[decode.kernel].shader]
    assert "var<storage, read> w: array<vec4<u32>>" in shader.wgsl


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
def test_tint_compiles_every_variant() -> None:
    programs = []
    for kinds in ("hhh", "fhf", "hff", "ffh"):
        for half in HALVES:
            dtypes = tuple(half if kind == "h" else F32 for kind in kinds)
            for k, n in ((64, 36), (68, 33), (31, 35)):
                programs.append(linear_chain(k, n, dtypes)[0].lower().program)  # type: ignore
            for m, k, n in ((2, 24, 40), (70, 31, 37)):
                c = Chain()
                x, y = c.input("x", (3, m, k), dtypes[0]), c.input("y", (3, k, n), dtypes[1])
                out = [(DTYPES[dtypes[2]], (3, m, n))]
                c.output(*c.call("aten.bmm.default", {"self": x, "mat2": y}, out))
                programs.append(c.lower().program)
    errors = tint.validate(tint.sources_of(*programs))
    assert not any(errors), [error for error in errors if error]
