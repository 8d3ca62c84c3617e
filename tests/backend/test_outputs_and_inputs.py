"""What crosses the boundary in every odd way: each is right, or on the CPU with a reason."""

from __future__ import annotations

import pytest
import torch

from executorch_wgpu.backend.partitioner import explain_program

import exports


class Wrapped(torch.nn.Module):
    """A function of (module, *inputs) with a buffer and a parameter to use."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.5, 2.0]))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def doubled_twice(m, x):
    y = x * 2
    return y, y


def views_of(m, x):
    y = x * 2
    return y.t(), y.view(3, 2), y[1:], y[:, 1], y


X, Y = torch.randn(2, 3), torch.randn(2, 3)
LENGTH = torch.export.Dim("length", min=1, max=8)
WIDTH = torch.export.Dim("width", min=1, max=9)

#: name -> (function, example inputs, dynamic shapes, further inputs)
CASES = {
    "an input": (lambda m, x: (x * 2, x), (X,)),
    "a buffer": (lambda m, x: (x * 2, m.table), (X,)),
    "a parameter": (lambda m, x: (x * 2, m.weight), (X,)),
    "a duplicate": (doubled_twice, (X,)),
    "views": (views_of, (X,)),
    "views of an input": (lambda m, x: (x.t() + 1, x.t(), x[0]), (X,)),
    "a number": (lambda m, x: (x * 2, 3), (X,)),
    "nothing": (lambda m, x: (x * 2, None), (X,)),
    "one input twice": (lambda m, a, b: a * b, (X, X)),
    "an unread input": (lambda m, a, b: a * 2, (X, Y)),
    "an unread int": (lambda m, a, n: a * 2, (X, 3)),
    "0-dim": (lambda m, a, b: (a * b, a + 1), (torch.tensor(2.0), torch.tensor(3.0))),
    "0-dim with others": (lambda m, a, b: a * b, (X, torch.tensor(3.0))),
    "a permuted input": (lambda m, x: x * 2 + 1, (torch.randn(3, 2).t(),)),
    "zero size": (lambda m, x: (x * 2, x + 1), (torch.randn(0, 3),)),
    "an empty constant": (
        lambda m, x: (torch.cat([x, m.empty], 0) * 2, m.empty * 1.0),
        (torch.randn(2, 3),),
    ),
    "a slice of nothing": (lambda m, x: (x[0:0] * 2, x * 3), (X,)),
    "bools": (lambda m, a, b: (torch.logical_and(a, b), a), (X > 0, Y > 0)),
    "comparisons": (lambda m, a, b: (a > b, torch.where(a > b, a, b)), (X, Y)),
    "int64 as rows": (
        lambda m, i: torch.nn.functional.embedding(i, m.table),
        (torch.tensor([[0, 1, 1]]),),
    ),
    "int64 passed on": (
        lambda m, i: (i, i.view(3), i.to(torch.float32) * 2),
        (torch.tensor([[0, -(2**31), 2**31 - 1]]),),
    ),
    "int32 arithmetic": (
        lambda m, i: (i + i, i * 3),
        (torch.tensor([[0, 1, -7]], dtype=torch.int32),),
    ),
    "an infinite number": (lambda m, x: (x + float("inf"), x * 1e-42), (X,)),
    "an infinite mask": (lambda m, x: x.masked_fill(x > 0, float("-inf")), (X,)),
    "a tensor of infinities": (lambda m, x: (x * 2, torch.full((2, 2), float("-inf"))), (X,)),
    "whole reductions": (lambda m, x: (x.mean(), x.sum()), (X,)),
    "live cat": (
        lambda m, x: torch.cat([x, x * 2], 0),
        (X,),
        (({0: LENGTH},),),
        [(torch.randn(5, 3),), (torch.randn(1, 3),)],
    ),
    "live views": (
        lambda m, x: (x.unsqueeze(0).expand(4, -1, -1) + 1, x.reshape(-1) * 2),
        (X,),
        (({0: LENGTH},),),
        [(torch.randn(8, 3),), (torch.randn(1, 3),)],
    ),
    "the last of a live size": (
        lambda m, i: torch.nn.functional.embedding(i[:, -1:], m.table) * 2,
        (torch.tensor([[0, 1, 1]]),),
        (({1: LENGTH},),),
        [(torch.tensor([[1]]),), (torch.tensor([[0, 0, 0, 0, 1]]),)],
    ),
    "several live sizes": (
        lambda m, a, b: (a @ b, a.sum(1)),
        (torch.randn(3, 4), torch.randn(4, 5)),
        (({0: LENGTH, 1: WIDTH}, {0: WIDTH}),),
        [(torch.randn(8, 9), torch.randn(9, 5)), (torch.randn(1, 1), torch.randn(1, 5))],
    ),
    "a derived size": (
        lambda m, a, b: torch.cat([a, b], 0) * 2,
        (torch.randn(3, 4), torch.randn(6, 4)),
        (({0: LENGTH}, {0: 2 * LENGTH}),),
        [(torch.randn(8, 4), torch.randn(16, 4)), (torch.randn(1, 4), torch.randn(2, 4))],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_right(name):
    function, inputs, *rest = CASES[name]
    shapes, others = rest if rest else (None, [])
    module = Wrapped(function)
    method = exports.method(module, inputs, shapes)
    for given in (inputs, *others):
        expected = module(*given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        results = method.execute(list(given))
        assert len(results) == len(expected)
        for result, want in zip(results, expected, strict=True):
            if isinstance(want, torch.Tensor):
                assert result.dtype == want.dtype
                torch.testing.assert_close(result, want.detach(), atol=1e-5, rtol=1e-5)
            else:
                assert result == want


@pytest.mark.parametrize(
    "function, inputs, word",
    [
        (lambda m, x: x[0:0].sum(), (X,), "empty dimension"),
        (lambda m, i: (i + 1)[0].item() * m.table, (torch.tensor([1, 2]),), "computed"),
        (lambda m, i: i + 1, (torch.tensor([1, 2]),), "int64 arithmetic"),
        (lambda m, x: x.to(torch.int64), (X,), "int64"),
        (lambda m, x: torch.nonzero(x), (X,), "no lowering"),
    ],
)
def test_what_is_left_says_why(function, inputs, word):
    explanation = explain_program(exports.export(Wrapped(function), inputs))
    assert any(word in row.reason for row in explanation.on_cpu), explanation
