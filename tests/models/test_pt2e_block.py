"""A transformer's block, quantized by ExecuTorch's XNNPACKQuantizer: one delegate, any length."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import nn

import exports
from harness import assert_close
from pt2e import quantized


class Block(nn.Module):
    """Attention and a gated MLP over [1, S, 33]; no size is a multiple of 4."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(33, 33, bias=bias) for bias in (True, False, True))
        self.o = nn.Linear(33, 33)
        self.gate, self.up = nn.Linear(33, 77, bias=False), nn.Linear(33, 77, bias=False)
        self.down = nn.Linear(77, 33, bias=False)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (3, 11)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        weights = (q @ k.transpose(-1, -2) / 11**0.5).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    "channels", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["channels", "tensor"]
)
def test_a_block(dynamic, channels):
    config = get_symmetric_quantization_config(is_dynamic=dynamic, is_per_channel=channels)
    shapes = ({1: torch.export.Dim("S", min=1, max=300)},)
    inputs = (torch.randn(1, 30, 33),)
    module = quantized(Block(), inputs, XNNPACKQuantizer().set_global(config), shapes)
    method = exports.method(module, inputs, shapes)
    for count in (1, 7, 129, 300, 1):  # of 300 rows one workgroup does not take the extremes alone
        x = torch.randn(1, count, 33, generator=torch.Generator().manual_seed(count))
        (got,) = method.execute([x])
        want = module(x).detach()
        # A value between two steps may fall to either side: a step of 1/255 of a range.
        assert_close(got, want, abs_tol=float(want.abs().max()) / 100)
        # Which few do.
        error = (torch.as_tensor(got) - want).abs()
        assert error.mean() < float(want.abs().max()) / 2000
