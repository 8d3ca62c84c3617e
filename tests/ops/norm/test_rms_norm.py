"""wgpu.rms_norm against fp64, over rows that lie in every way."""

from __future__ import annotations

import pytest
import torch

from harness import Chain, assert_close


def reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    x = x.double()
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.double()


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 33, 64, 100, 576, 1023, 4096])
@pytest.mark.parametrize("weighted", [True, False])
def test_sizes(device, dim, weighted):
    for lead in ((1,), (5,), (2, 3)):
        x, weight = torch.randn(*lead, dim), torch.randn(dim)
        chain = Chain()
        value = chain.input("x", x.shape)
        args = {"x": value, "weight": chain.constant(weight) if weighted else None, "eps": 1e-5}
        chain.output(*chain.call("wgpu.rms_norm", args, [(value.dtype, x.shape)]))
        (y,) = chain.graph(device).execute([x.numpy()])
        assert_close(y, reference(x, weight if weighted else None, 1e-5))


def test_extremes(device):
    """Tiny rows are ruled by eps, large ones must not overflow where their squares do not."""
    for scale in (0.0, 1e-12, 1e-3, 1e4, 1e17):
        x = torch.randn(3, 64) * scale
        chain = Chain()
        value = chain.input("x", x.shape)
        args = {"x": value, "weight": None, "eps": 1e-6}
        chain.output(*chain.call("wgpu.rms_norm", args, [(value.dtype, x.shape)]))
        (y,) = chain.graph(device).execute([x.numpy()])
        assert_close(y, reference(x, None, 1e-6))


def test_strided_rows_and_a_live_count(device):
    """A slice of wider rows is read in place; a transposed tensor is copied first."""
    chain = Chain()
    S = chain.dim_of("S", 0, 1, 70)
    x = chain.input("x", (S, 24))
    part = {"self": x, "dim": 1, "start": 8, "end": 20, "step": 1}
    (inner,) = chain.call("aten.slice_copy.Tensor", part, [(x.dtype, (S, 12))])
    weight = torch.randn(12)
    args = {"x": inner, "weight": chain.constant(weight), "eps": 1e-5}
    (y,) = chain.call("wgpu.rms_norm", args, [(x.dtype, (S, 12))])
    (t,) = chain.call(
        "aten.permute_copy.default", {"self": x, "dims": [1, 0]}, [(x.dtype, (24, S))]
    )
    args = {"x": t, "weight": None, "eps": 1e-5}
    (z,) = chain.call("wgpu.rms_norm", args, [(x.dtype, (24, S))])
    chain.output(y, z)
    graph = chain.graph(device)
    for size in (1, 7, 70):
        a = torch.randn(size, 24)
        first, second = graph.execute([a.numpy()])
        assert_close(first, reference(a[:, 8:20], weight, 1e-5))
        assert_close(second, reference(a.t(), None, 1e-5))
