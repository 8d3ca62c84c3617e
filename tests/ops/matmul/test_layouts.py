"""Operands as views: permuted, sliced, stepped, broadcast, with live sizes anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executorch_wgpu.ops.call import Value
from executorch_wgpu.ops.symbolic import Scalar

from harness import Chain, assert_close


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator)


def permute(c: Chain, x: Value, dims: list[int]) -> Value:
    shape = tuple(x.shape[d] for d in dims)
    return c.call("aten.permute_copy.default", {"self": x, "dims": dims}, [(x.dtype, shape)])[0]


def slice_(c: Chain, x: Value, dim: int, start: int, end: int, step: int = 1) -> Value:
    shape = list(x.shape)
    shape[dim] = (end - start + step - 1) // step
    args = {"self": x, "dim": dim, "start": start, "end": end, "step": step}
    return c.call("aten.slice_copy.Tensor", args, [(x.dtype, shape)])[0]


def expand(c: Chain, x: Value, shape: list[Scalar]) -> Value:
    args = {"self": x, "size": shape, "implicit": False}
    return c.call("aten.expand_copy.default", args, [(x.dtype, shape)])[0]


#: How a [R, C] operand is made from a larger input, the same in the chain and in torch.
LAYOUTS = {
    "plain": lambda r, c: (r, c),
    "permuted": lambda r, c: (c, r),
    "shifted by a row": lambda r, c: (r + 1, c),
    "shifted by a column": lambda r, c: (r, c + 1),
    "shifted by four columns": lambda r, c: (r, c + 4),
    "every second row": lambda r, c: (2 * r, c),
    "every second column": lambda r, c: (r, 2 * c),
    "permuted and shifted": lambda r, c: (c + 1, r),
    "one row for all": lambda r, c: (1, c),
    "one column for all": lambda r, c: (r, 1),
}


def view(c: Chain, x: Value, layout: str, rows: int, columns: int) -> Value:
    if layout == "permuted":
        return permute(c, x, [1, 0])
    if layout == "shifted by a row":
        return slice_(c, x, 0, 1, rows + 1)
    if layout == "shifted by a column":
        return slice_(c, x, 1, 1, columns + 1)
    if layout == "shifted by four columns":
        return slice_(c, x, 1, 4, columns + 4)
    if layout == "every second row":
        return slice_(c, x, 0, 0, 2 * rows, 2)
    if layout == "every second column":
        return slice_(c, x, 1, 0, 2 * columns, 2)
    if layout == "permuted and shifted":
        return permute(c, slice_(c, x, 0, 1, columns + 1), [1, 0])
    if layout in ("one row for all", "one column for all"):
        return expand(c, x, [rows, columns])
    return x


def view_of(x: torch.Tensor, layout: str, rows: int, columns: int) -> torch.Tensor:
    return {
        "plain": lambda: x,
        "permuted": lambda: x.T,
        "shifted by a row": lambda: x[1:],
        "shifted by a column": lambda: x[:, 1:],
        "shifted by four columns": lambda: x[:, 4:],
        "every second row": lambda: x[::2],
        "every second column": lambda: x[:, ::2],
        "permuted and shifted": lambda: x[1:].T,
        "one row for all": lambda: x.expand(rows, columns),
        "one column for all": lambda: x.expand(rows, columns),
    }[layout]()


@pytest.mark.parametrize("m", [1, 3, 37])
@pytest.mark.parametrize("right", LAYOUTS)
def test_views_on_the_right(device: Any, right: str, m: int) -> None:
    check_mm(device, "plain", right, m)


@pytest.mark.parametrize("m", [1, 3, 37])
@pytest.mark.parametrize("right", ["plain", "permuted", "every second row"])
@pytest.mark.parametrize("left", ["permuted", "every second column", "one row for all"])
def test_views_on_both_sides(device: Any, left: str, right: str, m: int) -> None:
    check_mm(device, left, right, m)


def check_mm(device: Any, left: str, right: str, m: int) -> None:
    k, n = 68, 36
    c = Chain()
    a, w = c.input("a", LAYOUTS[left](m, k)), c.input("w", LAYOUTS[right](k, n))
    args = {"self": view(c, a, left, m, k), "mat2": view(c, w, right, k, n)}
    c.output(*c.call("aten.mm.default", args, [(a.dtype, (m, n))]))
    data_a, data_w = normal(*a.shape), normal(*w.shape, seed=1)
    (y,) = c.graph(device).execute([data_a.numpy(), data_w.numpy()])
    golden = view_of(data_a, left, m, k).double() @ view_of(data_w, right, k, n).double()
    assert_close(y, golden)


@pytest.mark.parametrize("left", LAYOUTS)
def test_views_on_the_left(device: Any, left: str) -> None:
    """The hot path keeps reading the weight four elements at a time, whatever ``input`` is."""
    k, n = 68, 36
    c = Chain()
    w = normal(n, k, seed=1)
    for m in (1, 5):
        a = c.input(f"a{m}", LAYOUTS[left](m, k))
        args = {"input": view(c, a, left, m, k), "weight": c.constant(w), "bias": None}
        c.output(*c.call("aten.linear.default", args, [(a.dtype, (m, n))]))
    one, five = normal(*LAYOUTS[left](1, k)), normal(*LAYOUTS[left](5, k))
    results = c.graph(device).execute([one.numpy(), five.numpy()])
    for y, data, m in zip(results, (one, five), (1, 5), strict=True):
        assert_close(y, view_of(data, left, m, k).double() @ w.double().T)


@pytest.mark.parametrize("heads", [1, 6])
def test_scores_and_values_of_attention(device: Any, heads: int) -> None:
    """q [S, H, D] by k [T, H, D] and the result by v [T, H, D], heads moved to the front by
    views: T is live as N, then live as K; S is live as M."""
    dim = 20
    c = Chain()
    s, t = c.int_input("S", 1, 40), c.int_input("T", 1, 70)
    q, k, v = (
        c.input("q", (s, heads, dim)),
        c.input("k", (t, heads, dim)),
        c.input("v", (t, heads, dim)),
    )
    qh, kh, vh = permute(c, q, [1, 0, 2]), permute(c, k, [1, 2, 0]), permute(c, v, [1, 0, 2])
    (p,) = c.call("aten.bmm.default", {"self": qh, "mat2": kh}, [(q.dtype, (heads, s, t))])
    (o,) = c.call("aten.bmm.default", {"self": p, "mat2": vh}, [(q.dtype, (heads, s, dim))])
    c.output(p, o)
    graph = c.graph(device)
    for length, context in ((1, 1), (1, 70), (3, 64), (40, 7), (33, 65), (4, 33), (5, 32)):
        data = [
            normal(length, heads, dim),
            normal(context, heads, dim),
            normal(context, heads, dim),
        ]
        scores, result = graph.execute([length, context, *(x.numpy() for x in data)])
        q64, k64, v64 = (x.double().permute(1, 0, 2) for x in data)
        assert_close(scores, q64 @ k64.mT)
        assert_close(result, q64 @ k64.mT @ v64, abs_tol=1e-3)


@pytest.mark.parametrize("m", [1, 2, 40])
def test_heads_that_share_a_factor(device: Any, m: int) -> None:
    """Grouped queries: the second factor is broadcast over a batch dimension, then folded."""
    c = Chain()
    a, w = c.input("a", (6, m, 24)), c.input("w", (1, 24, 17))
    args = {"self": a, "mat2": expand(c, w, [6, 24, 17])}
    c.output(*c.call("aten.bmm.default", args, [(a.dtype, (6, m, 17))]))
    data_a, data_w = normal(6, m, 24), normal(1, 24, 17)
    (y,) = c.graph(device).execute([data_a.numpy(), data_w.numpy()])
    assert_close(y, data_a.double() @ data_w.double())


def test_live_rows_that_are_a_product(device: Any) -> None:
    """M = S * H, as when heads are folded into rows."""
    c = Chain()
    s = c.int_input("S", 1, 30)
    x = c.input("x", (s, 3, 8))
    shape = (s * 3, 8)
    (flat,) = c.call("aten.view_copy.default", {"self": x, "size": shape}, [(x.dtype, shape)])
    w = normal(10, 8)
    mat2 = permute(c, c.constant(w), [1, 0])
    c.output(*c.call("aten.mm.default", {"self": flat, "mat2": mat2}, [(x.dtype, (s * 3, 10))]))
    graph = c.graph(device)
    for length in (1, 2, 30):
        data = normal(length, 3, 8)
        (y,) = graph.execute([length, data.numpy()])
        assert_close(y, data.double().reshape(-1, 8) @ w.double().T)
