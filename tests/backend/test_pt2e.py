"""Models that PT2E's quantizers made, every flavour of theirs: whole, from packed weights; and
dynamic scales that are used in another way."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.vulkan.quantizer import vulkan_quantizer as vulkan
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401
from torchao.quantization.pt2e.quantizer import ComposableQuantizer
from torchao.quantization.pt2e.quantizer.embedding_quantizer import EmbeddingQuantizer

from executorch_wgpu.backend import CompileOptions
from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.lowering import lower_chain
from executorch_wgpu.backend.partitioner import explain_program
from executorch_wgpu.backend.passes import run_passes
from executorch_wgpu.runtime.graph import WebGPUGraph

import exports
from harness import assert_close
from pt2e import quantized

decomposed = torch.ops.quantized_decomposed


class Layers(nn.Module):
    """Odd sizes; two layers over one input; a look-up in front."""

    def __init__(self, table=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 33) if table else None
        self.first = nn.Linear(33, 47)
        self.left, self.right = nn.Linear(47, 21, bias=False), nn.Linear(47, 21)
        self.last = nn.Linear(21, 5)

    def forward(self, x):
        x = torch.relu(self.first(x if self.table is None else self.table(x)))
        return self.last(self.left(x) * torch.sigmoid(self.right(x)))


def check(device, module, inputs, rel):
    """Runs it; returns the operators after the passes."""
    chain = run_passes(GraphReader(exports.edge(module, inputs)).chain())
    lowered = lower_chain(chain)
    (got,) = WebGPUGraph(device, lowered.program, lowered.data, "test").execute(
        [x.numpy() for x in inputs]
    )
    want = module(*inputs).detach()
    assert_close(got, want, abs_tol=rel * float(want.abs().max()), rel_tol=1e-4)
    return [call.op for call in chain.calls]


#: name -> arguments of get_symmetric_quantization_config
XNNPACK = {
    "dynamic": {"is_dynamic": True, "is_per_channel": True},
    "dynamic, one scale a weight": {"is_dynamic": True},
    "dynamic, 4 bits": {
        "is_dynamic": True,
        "is_per_channel": True,
        "weight_qmin": -8,
        "weight_qmax": 7,
    },
    "dynamic, trained": {"is_dynamic": True, "is_per_channel": True, "is_qat": True},
    "static": {"is_per_channel": True},
    "static, one scale a weight": {},
    "static, trained": {"is_per_channel": True, "is_qat": True},
}


QUICK = ("dynamic", "dynamic, one scale a weight", "static")


@pytest.mark.parametrize(
    "flavour",
    [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in XNNPACK],
)
def test_xnnpacks_quantizer(device, flavour):
    config = xnnpack.get_symmetric_quantization_config(**XNNPACK[flavour])
    qat = "trained" in flavour
    inputs = (torch.randn(7, 33),)
    quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
    model = Layers().train(qat)
    module = quantized(model, inputs, quantizer, qat=qat)
    # A value between two steps of an activation may fall to either side.
    ops = check(device, module, inputs, 0.01)
    # left and right are one, with what follows them, unless they are quantized in between.
    layers = 3 if "dynamic" in flavour else 4
    assert ops.count("wgpu.linear_8da") == layers and "wgpu.linear" not in ops
    if "dynamic" in flavour:
        assert ops.count("quantized_decomposed.choose_qparams.tensor") == 3
        assert ops.count("quantized_decomposed.quantize_per_tensor.tensor") == 3
        assert not any("dequantize" in op for op in ops)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dynamic", [False, True])
def test_vulkans_quantizer(device, dynamic, bits):
    """Weights alone, or activations, too."""
    config = vulkan.get_symmetric_quantization_config(is_dynamic=dynamic, weight_bits=bits)
    inputs = (torch.randn(3, 33),)
    module = quantized(Layers(), inputs, vulkan.VulkanQuantizer().set_global(config))
    ops = check(device, module, inputs, 0.01 if dynamic else 1e-5)
    assert ops.count("wgpu.linear_8da" if dynamic else "wgpu.linear_q") == 3


def test_embeddings(device):
    """ExecuTorch's ``--pt2e_quantize xnnpack_dynamic_qc4,embedding``; zero points of the table are
    no integers."""
    config = xnnpack.get_symmetric_quantization_config(**XNNPACK["dynamic, 4 bits"])
    linear = xnnpack.XNNPACKQuantizer().set_global(config)
    inputs = (torch.tensor([[3, 49, 0]]),)
    quantizer = ComposableQuantizer([EmbeddingQuantizer(), linear])
    ops = check(device, quantized(Layers(table=True), inputs, quantizer), inputs, 0.01)
    assert ops[0] == "wgpu.embedding_q" and ops.count("wgpu.linear_8da") == 3


# -- dynamic scales in other places ---------------------------------------------------------------


class Scales(nn.Module):
    """``form``: what is done with an f64 scale beside quantizing."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        x = x * 2
        byte = (-128, 127, torch.int8)
        if self.form == "tokens":
            scale, point = decomposed.choose_qparams_per_token_asymmetric(x, torch.int8)
            y = decomposed.quantize_per_token(x, scale, point, *byte)
            return decomposed.dequantize_per_token(y, scale, point, *byte, torch.float32) + 1
        scale, point = decomposed.choose_qparams(x, -128, 127, 2**-12, torch.int8)
        y = decomposed.quantize_per_tensor(x, scale, point, *byte)
        y = decomposed.dequantize_per_tensor(y, scale, point, *byte) + 1
        if self.form == "returned":
            return y, scale
        if self.form == "added to":
            return y + (scale + 1).to(torch.float32)
        if self.form == "converted":
            return y + scale.to(torch.float32)
        if self.form == "point returned":
            return y, point
        return y


INPUTS = (torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),)


@pytest.mark.parametrize("form", ["plain", "point returned", "tokens"])
def test_scales_that_stay_inside(form):
    explanation = explain_program(exports.export(Scales(form), INPUTS))
    assert not explanation.on_cpu, str(explanation)
    method = exports.method(Scales(form), INPUTS)
    want = Scales(form)(*INPUTS)
    for got, right in zip(
        method.execute(list(INPUTS)), want if isinstance(want, tuple) else (want,), strict=True
    ):
        assert_close(got, right)
        assert str(torch.as_tensor(got).dtype) == str(right.dtype)


@pytest.mark.parametrize("form", ["returned", "added to", "converted"])
def test_scales_that_would_cross_as_f64_stay_outside(form):
    """With all that takes them; the rest is delegated."""
    options = CompileOptions(call_cost_us=0)
    explanation = explain_program(exports.export(Scales(form), INPUTS), options)
    outside = {row.op: row.reason for row in explanation.on_cpu}
    for op in ("choose_qparams", "quantize_per_tensor", "dequantize_per_tensor"):
        reason = outside[f"quantized_decomposed.{op}.tensor"]
        assert "f64" in reason or "float64" in reason
    assert explanation.delegates


def test_what_else_keeps_an_operator_outside_keeps_its_scale_there():
    options = CompileOptions(
        call_cost_us=0, operator_blocklist=["quantized_decomposed.dequantize_per_tensor.tensor"]
    )
    explanation = explain_program(exports.export(Scales("plain"), INPUTS), options)
    assert len(explanation.on_cpu) == 3 and explanation.delegates == 2
