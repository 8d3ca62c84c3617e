"""aten.native_layer_norm.default against fp64."""

from __future__ import annotations

import pytest
import torch

import exports
from harness import DTYPES, Chain, assert_close, run_op

OP = "aten.native_layer_norm.default"


def reference(x, shape, weight, bias, eps):
    wide = [None if t is None else t.double() for t in (weight, bias)]
    return torch.ops.aten.native_layer_norm(x.double(), shape, *wide, eps)


def check(device, x, shape, weight, bias, eps=1e-5, **tolerance):
    expected = reference(x, shape, weight, bias, eps)
    args = {"input": x, "normalized_shape": list(shape), "weight": weight, "bias": bias, "eps": eps}
    given = [n for n in ("weight", "bias") if args[n] is not None]
    found = run_op(device, OP, args, [t.to(x.dtype) for t in expected], given)
    for got, want in zip(found, expected, strict=True):
        assert_close(got, want, **tolerance)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 33, 100, 768, 1023, 4096])
@pytest.mark.parametrize("weighted, biased", [(True, True), (True, False), (False, False)])
def test_sizes(device, dim, weighted, biased):
    for lead in ((1,), (2, 3)):
        x = torch.randn(*lead, dim) * 2 + 1
        weight = torch.randn(dim) if weighted else None
        # One element alone is its mean; what is left is rounding, blown up by 1 / sqrt(eps).
        check(device, x, (dim,), weight, torch.randn(dim) if biased else None)


def test_several_dimensions(device):
    x = torch.randn(3, 5, 6, 2)
    check(device, x, (5, 6, 2), torch.randn(5, 6, 2), torch.randn(5, 6, 2))
    check(device, x, (6, 2), None, None)


def test_rows_far_from_zero_keep_their_digits(device):
    """The variance of 1e3 + noise, which a difference of squares would lose."""
    for width in (256, 255, 4096):
        x = torch.randn(4, width) + 1000
        check(device, x, (width,), torch.randn(width), torch.randn(width))
    check(device, torch.full((2, 8), 7.0), (8,), None, None)
    check(device, torch.randn(2, 64) * 1e4, (64,), None, None)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 3, 64, 130])
def test_halves(device, half, dim):
    x, weight, bias = (torch.randn(s).to(half) for s in ((3, 5, dim), (dim,), (dim,)))
    check(device, x, (dim,), weight, bias, abs_tol=2e-3, rel_tol=1e-2)


def test_strided_rows_and_a_live_count(device):
    chain = Chain()
    S = chain.dim_of("S", 0, 1, 70)
    x = chain.input("x", (S, 24))
    part = {"self": x, "dim": 1, "start": 8, "end": 20, "step": 1}
    (inner,) = chain.call("aten.slice_copy.Tensor", part, [(x.dtype, (S, 12))])
    weight, bias = torch.randn(12), torch.randn(12)
    args = {
        "input": inner,
        "normalized_shape": [12],
        "weight": chain.constant(weight),
        "bias": chain.constant(bias),
        "eps": 1e-5,
    }
    shapes = [(DTYPES[torch.float32], s) for s in ((S, 12), (S, 1), (S, 1))]
    chain.output(*chain.call(OP, args, shapes))
    graph = chain.graph(device)
    for size in (1, 7, 70):
        a = torch.randn(size, 24)
        for got, want in zip(
            graph.execute([a.numpy()]),
            reference(a[:, 8:20], (12,), weight, bias, 1e-5),
            strict=True,
        ):
            assert_close(got, want)


def test_a_transformer_s_block_is_one_delegate():
    """torch's own encoder layer, whose norms have weights and biases."""
    torch.manual_seed(0)
    block = torch.nn.Sequential(
        torch.nn.LayerNorm(24), torch.nn.Linear(24, 48), torch.nn.GELU(), torch.nn.LayerNorm(48)
    ).eval()
    x = torch.randn(2, 5, 24)
    (y,) = exports.method(block, (x,)).execute([x])
    with torch.no_grad():
        assert_close(y, block.double()(x.double()))
