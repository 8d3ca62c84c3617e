"""8-bit activations beside ExecuTorch's XNNPACK backend: within one step of a quantization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch import nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup

import exports
from pt2e import quantized

CONFIGS = {
    "8da4w": Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)),
    "8da8w": Int8DynamicActivationIntxWeightConfig(torch.int8, PerAxis(0)),
}
SLOW = pytest.param("8da8w", marks=pytest.mark.slow)
FORMS = ["8da4w", SLOW, "PT2E, dynamic", "PT2E, static"]


def quantized_layer(form: str, x: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 33)).eval()
    if form in CONFIGS:
        quantize_(module, CONFIGS[form])
        return module
    dynamic = form == "PT2E, dynamic"
    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    return quantized(module, (x,), XNNPACKQuantizer().set_global(config))


def by_xnnpack(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    partitioners: list[Any] = [XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner()]
    lowered = to_edge_transform_and_lower(exports.export(module, (x,)), partitioner=partitioners)
    assert exports.delegates(lowered) and not exports.cpu_operators(lowered)
    program = bytes(lowered.to_executorch().buffer)
    return Runtime.get().load_program(program).load_method("forward").execute([x])[0]


@pytest.mark.parametrize("form", FORMS)
def test_one_step(form: str) -> None:
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(0))
    module = quantized_layer(form, x)
    eager = module(x).detach()
    (got,) = exports.method(module, (x,)).execute([x])
    got = torch.as_tensor(got)
    # XNNPACK lowers in place what it is given.
    other = by_xnnpack(quantized_layer(form, x), x)
    # A step of the activations, where each row has its own scale the largest.
    step = float(x.max() - x.min()) / 255
    if form == "PT2E, static":  # whose results have steps, too
        step = max(step, float(eager.max() - eager.min()) / 200)
    assert ((got - other).abs() <= step).all(), float((got - other).abs().max())
    # Eager's integers are ours, bit by bit, and so are its results to rounding in f32.
    assert ((got - eager).abs() <= (step if form == "PT2E, static" else 1e-5)).all()
