"""Every number of rows against every kernel: one graph with a live M runs them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.ops.call import Value

from harness import Chain, assert_close, run_op

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 24, 25, 31, 33, 64, 65, 127, 129)

#: (N, K): multiples of everything, of nothing, of 4 in one of them, smaller than a vec4.
SHAPES = (
    (1, 1), (2, 3), (4, 4), (5, 63), (63, 5), (64, 64), (65, 100), (576, 65), (100, 1536),
    (1536, 64), (4100, 100),
)  # fmt: skip


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


def weight(n: int, k: int) -> torch.Tensor:
    """Scaled so that results are of the order of 1 at any K."""
    return normal(n, k, seed=1) / k**0.5


def run_rows(graph: Any, x: torch.Tensor, golden: torch.Tensor, rows: tuple[int, ...]) -> None:
    for m in rows:
        (y,) = graph.execute([m, x[:m].numpy()])
        assert_close(y, golden[:m])


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_linear(device: Any, n: int, k: int) -> None:
    """The weight is read along k."""
    c = Chain()
    m = c.int_input("M", 1, max(ROWS))
    x = c.input("x", (m, k))
    w, bias = weight(n, k), normal(n)
    args = {"input": x, "weight": c.constant(w), "bias": c.constant(bias) if n % 2 else None}
    c.output(*c.call("aten.linear.default", args, [(x.dtype, (m, n))]))
    data = normal(max(ROWS), k)
    golden = data.double() @ w.double().T + (bias.double() if n % 2 else 0)
    run_rows(c.graph(device), data, golden, ROWS)


@pytest.mark.parametrize(("n", "k"), SHAPES[1::2])
def test_mm(device: Any, n: int, k: int) -> None:
    """The second factor is [K, N] and read along n."""
    c = Chain()
    m = c.int_input("M", 1, max(ROWS))
    x = c.input("x", (m, k))
    w = weight(n, k).T.contiguous()
    c.output(*c.call("aten.mm.default", {"self": x, "mat2": c.constant(w)}, [(x.dtype, (m, n))]))
    data = normal(max(ROWS), k)
    run_rows(c.graph(device), data, data.double() @ w.double(), ROWS)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 12, 64])
def test_static_rows(device: Any, m: int) -> None:
    """A fixed M has exactly the routes it can take."""
    x, w = normal(m, 100), weight(65, 100)
    golden = x.double() @ w.double().T
    (y,) = run_op(
        device,
        "aten.linear.default",
        {"input": x, "weight": w, "bias": None},
        golden.float(),
        ("weight",),
    )
    assert_close(y, golden)


def test_long_rows(device: Any) -> None:
    """K = 8192: 256 lanes a row, and sums of many terms."""
    n, k = 130, 8192
    c = Chain()
    m = c.int_input("M", 1, 70)
    x = c.input("x", (m, k))
    w = weight(n, k)
    args = {"input": x, "weight": c.constant(w), "bias": None}
    c.output(*c.call("aten.linear.default", args, [(x.dtype, (m, n))]))
    data = normal(70, k)
    run_rows(c.graph(device), data, data.double() @ w.double().T, (1, 3, 70))


def test_more_workgroups_than_one_dimension_holds(device: Any) -> None:
    """70,000 products of a row and a column: the grid folds into a second dimension."""
    x, w = normal(70000, 1, 20), normal(70000, 20, 1, seed=1)
    golden = torch.bmm(x.double(), w.double())
    (y,) = run_op(device, "aten.bmm.default", {"self": x, "mat2": w}, golden.float())
    assert_close(y, golden)


def test_who_splits_k(device: Any) -> None:
    """Few rows have small tiles; few tiles, up to 192, have their k split between workgroups."""
    n, k = 1090, 512
    c = Chain()
    m = c.int_input("M", 1, 700)
    x = c.input("x", (m, k))
    w = weight(n, k)
    args = {"input": x, "weight": c.constant(w), "bias": None}
    c.output(*c.call("aten.linear.default", args, [(x.dtype, (m, n))]))
    graph = c.graph(device)
    names = [route.name for route in graph.program.steps[-1].routes]
    assert names[-3:] == ["gemm_short", "gemm_split", "gemm"]
    data = normal(700, k)
    run_rows(graph, data, data.double() @ w.double().T, (32, 33, 640, 641, 700))


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 0), (0, 4, 8), (4, 0, 8), (70, 3, 0)])
def test_nothing_to_add_or_to_store(device: Any, m: int, n: int, k: int) -> None:
    x, w, bias = normal(m, k), normal(n, k), normal(n)
    golden = torch.nn.functional.linear(x, w, bias)
    args = {"input": x, "weight": w, "bias": bias}
    (y,) = run_op(device, "aten.linear.default", args, golden)
    assert_close(y, golden)


def test_rows_are_every_leading_dimension(device: Any) -> None:
    """[2, S, K] with a live S, and a 1-dim input."""
    c = Chain()
    s = c.int_input("S", 1, 9)
    x = c.input("x", (2, s, 12))
    w = weight(7, 12)
    args = {"input": x, "weight": c.constant(w), "bias": None}
    c.output(*c.call("aten.linear.default", args, [(x.dtype, (2, s, 7))]))
    graph = c.graph(device)
    for length in (1, 2, 9):
        data = normal(2, length, 12)
        (y,) = graph.execute([length, data.numpy()])
        assert_close(y, data.double() @ w.double().T)
    vector = normal(12)
    golden = vector.double() @ w.double().T
    args = {"input": vector, "weight": w, "bias": None}
    (y,) = run_op(device, "aten.linear.default", args, golden.float())
    assert_close(y, golden)


@pytest.mark.parametrize("shape", [(65,), (1,), (1, 65), (9, 1), (9, 65), (1, 1)])
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, -2.0), (0, 1), (2, 0)])
def test_addmm(device: Any, shape: tuple[int, ...], beta: float, alpha: float) -> None:
    bias = normal(*shape, seed=2)
    if beta == 0:
        bias = torch.full(shape, float("nan"))
    a, w = normal(9, 20), weight(65, 20).T.contiguous()
    golden = torch.addmm(bias.double(), a.double(), w.double(), beta=beta, alpha=alpha)
    args = {"self": bias, "mat1": a, "mat2": w, "beta": beta, "alpha": alpha}
    (y,) = run_op(device, "aten.addmm.default", args, golden.float(), ("mat2",))
    assert_close(y, golden)


@pytest.mark.parametrize("value", [float("inf"), 1e39])
def test_a_factor_that_is_no_f32_is_refused(value: float) -> None:
    c = Chain()
    x = c.input("x", (2, 2))
    args = {"self": x, "mat1": x, "mat2": x, "beta": 1, "alpha": value}
    c.output(*c.call("aten.addmm.default", args, [(x.dtype, (2, 2))]))
    with pytest.raises(NotImplementedError, match="not a finite f32"):
        c.lower()


def test_other_dtypes_are_refused_with_a_reason() -> None:
    c = Chain()
    x = c.input("x", (2, 2), torch.int32)
    c.output(*c.call("aten.mm.default", {"self": x, "mat2": x}, [(x.dtype, (2, 2))]))
    with pytest.raises(NotImplementedError, match="i32 is not supported here"):
        c.lower()


def test_a_factor_times_itself(device: Any) -> None:
    """One storage bound twice for reading."""
    c = Chain()
    x: Value = c.input("x", (36, 36))
    c.output(*c.call("aten.mm.default", {"self": x, "mat2": x}, [(x.dtype, (36, 36))]))
    data = normal(36, 36)
    (y,) = c.graph(device).execute([np.asarray(data)])
    assert_close(y, data.double() @ data.double())
