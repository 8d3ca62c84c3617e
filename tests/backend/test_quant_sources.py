"""Quantized models as different tools leave them, and what is not quite a pattern: from packed
weights where the layout holds them, right in any case."""

from __future__ import annotations

import pytest
import torch
import torchao.quantization.quant_primitives  # noqa: F401
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401
from torchao.prototype.quantization.embedding.api import EmbeddingQuantizer
from torchao.quantization import IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.quant_primitives import MappingType
from torchao.utils import unwrap_tensor_subclass

from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.lowering import lower_chain
from executorch_wgpu.backend.passes import run_passes
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import BufferKind

import exports
from harness import assert_close

decomposed, torchao_ops = torch.ops.quantized_decomposed, torch.ops.torchao
GROUPED = {"4 bits": (torch.int4, PerGroup(32)), "8 bits": (torch.int8, PerGroup(16))}
GROUPED |= {"rows": (torch.int4, PerAxis(0))}


def check(device, module, inputs, rel=1e-3):
    """Runs it; returns the operators after the passes and the bytes of the constants."""
    chain = run_passes(GraphReader(exports.edge(module, inputs)).chain())
    lowered = lower_chain(chain)
    graph = WebGPUGraph(device, lowered.program, lowered.data, "test")
    got = graph.execute([x.numpy() for x in inputs])
    with torch.no_grad():
        want = module(*inputs)
    for one, right in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        most = float(right.abs().max())
        assert_close(one, right, abs_tol=rel * most / 4 + 1e-6, rel_tol=rel)
    buffers = {b.data_key: b.size for b in lowered.program.buffers if b.kind is BufferKind.CONSTANT}
    return [call.op for call in chain.calls], sum(buffers.values())


# -- embeddings -----------------------------------------------------------------------------------


class Table(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 64)
        self.output = nn.Linear(64, 50, bias=False) if tied else None
        if tied:
            self.output.weight = self.table.weight

    def forward(self, tokens):
        rows = self.table(tokens)
        return rows * 2 if self.output is None else self.output(rows)


TOKENS = torch.tensor([[3, 49, 0]])


@pytest.mark.parametrize(
    ("form", "mapping"),
    [
        ("4 bits", MappingType.ASYMMETRIC),
        ("8 bits", MappingType.SYMMETRIC),
        ("rows", MappingType.SYMMETRIC),
    ],
)
def test_torchaos_embeddings(device, form, mapping):
    dtype, granularity = GROUPED[form]
    module = Table()
    EmbeddingQuantizer(dtype, granularity, mapping, use_fallback=True).quantize(module)
    ops, _ = check(device, module, (TOKENS,))
    assert ops == ["wgpu.embedding_q", "aten.mul.Tensor"]


def test_a_tied_embedding_and_output_matrix(device):
    """Each quantized on its own: one constant, since they are equal."""
    module = Table(tied=True)
    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
    quantize_(module, config, lambda m, name: isinstance(m, (nn.Embedding, nn.Linear)))
    ops, size = check(device, module, (TOKENS,))
    assert sorted(ops) == ["wgpu.embedding_q", "wgpu.linear_q"]
    assert size == 50 * 32 + 50 * 2 * 4


# -- quantized_decomposed -------------------------------------------------------------------------


class Decomposed(nn.Module):
    """A linear layer written down with quantized_decomposed: ``weight`` and ``activations`` say
    how each is quantized."""

    def __init__(self, weight, activations="", bits=4, bias=True, asymmetric=False):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        low, high = (-8, 7) if bits == 4 else (-128, 127)
        self.limits, self.kind, self.activations = (low, high), weight, activations
        codes = torch.randint(low, high + 1, (24, 64), generator=generator)
        count = {"tensor": (), "channel": (24,), "group": (24, 2)}[weight]
        self.register_buffer("weight", codes.to(torch.int8))
        self.register_buffer("scales", torch.rand(count, generator=generator) / 10 + 0.01)
        points = torch.randint(low // 2, high // 2, count, generator=generator)
        points = points if asymmetric else torch.zeros_like(points)
        self.register_buffer("points", points.int() if weight == "group" else points)
        self.bias = nn.Parameter(torch.randn(24, generator=generator)) if bias else None
        self.register_buffer("row_scales", torch.tensor([[0.03], [0.02], [0.04]]))
        self.register_buffer("row_points", torch.tensor([[5], [-3], [0]]))

    def forward(self, x):
        limits = (*self.limits, torch.int8)
        if self.kind == "tensor":
            weight = decomposed.dequantize_per_tensor(self.weight, 0.05, 0, *limits)
        elif self.kind == "channel":
            args = self.scales, self.points, 0, *limits
            weight = decomposed.dequantize_per_channel(self.weight, *args)
        else:
            args = self.scales, self.points, *limits, 32, torch.float32
            weight = decomposed.dequantize_per_channel_group(self.weight, *args)
        byte = (-128, 127, torch.int8)
        if self.activations == "token":
            scales, points = self.row_scales, self.row_points
            x = decomposed.quantize_per_token(x, scales, points, *byte)
            x = decomposed.dequantize_per_token(x, scales, points, *byte, torch.float32)
        elif self.activations == "static":
            x = decomposed.quantize_per_tensor(x, 0.03, 5, *byte)
            x = decomposed.dequantize_per_tensor(x, 0.03, 5, *byte)
        elif self.activations == "tensors":
            scale, point = self.row_scales[0], self.row_points[0]
            x = decomposed.quantize_per_tensor.tensor(x, scale, point, *byte)
            x = decomposed.dequantize_per_tensor.tensor(x, scale, point, *byte)
        return nn.functional.linear(x, weight, self.bias)


@pytest.mark.parametrize(
    ("weight", "bits", "asymmetric"),
    [("tensor", 4, False), ("channel", 8, True), ("group", 4, False), ("group", 8, True)],
)
def test_weights(device, weight, bits, asymmetric):
    module = Decomposed(weight, bits=bits, asymmetric=asymmetric)
    ops, _ = check(device, module, (torch.randn(3, 64),))
    assert ops == ["wgpu.linear_q"]


@pytest.mark.parametrize("activations", ["", "static"])
@pytest.mark.parametrize("points", ["fractions", "far"])
def test_zero_points_that_are_no_codes_become_offsets(device, points, activations):
    """And then 8-bit activations are multiplied as floats."""
    module, generator = Decomposed("channel", activations), torch.Generator().manual_seed(0)
    values = torch.rand(24, generator=generator) * 6 - 3
    module.points = values if points == "fractions" else (values * 100).long()
    ops, _ = check(device, module, (torch.randn(3, 64),))
    assert ops[-1] == "wgpu.linear_q"


@pytest.mark.parametrize("activations", ["token", "static", "tensors"])
def test_activations(device, activations):
    ops, _ = check(device, Decomposed("group", activations), (torch.randn(3, 64),))
    assert "wgpu.linear_8da" in ops and not any("dequantize" in op for op in ops)


def test_8_bit_weights_with_zero_points_multiply_as_floats(device):
    module = Decomposed("channel", "static", bits=8, asymmetric=True)
    ops, _ = check(device, module, (torch.randn(3, 64),))
    assert "wgpu.linear_q" in ops and "wgpu.linear_8da" not in ops


class Unfolded(nn.Module):
    """A weight that the graph quantizes itself: as PT2E leaves it with ``fold_quantize=False``, or
    by scales that it chooses."""

    def __init__(self, form):
        super().__init__()
        self.form, generator = form, torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(24, 64, generator=generator))
        self.register_buffer("scales", torch.rand(24, generator=generator) / 20 + 0.01)
        self.register_buffer("points", torch.randint(-9, 9, (24,), generator=generator))

    def forward(self, x):
        byte = (-128, 127, torch.int8)
        if self.form == "channels":
            args = self.scales, self.points, 0, *byte
            codes = decomposed.quantize_per_channel(self.weight, *args)
            weight = decomposed.dequantize_per_channel(codes, *args)
        elif self.form == "chosen":
            scale, point = decomposed.choose_qparams(self.weight, -128, 127, 1e-5, torch.int8)
            codes = decomposed.quantize_per_tensor(self.weight, scale, point, *byte)
            weight = decomposed.dequantize_per_tensor(codes, scale, point, *byte)
        else:
            scales, points = self.scales[:, None], torch.zeros(24, 1, dtype=torch.int32)
            args = scales.expand(24, 2), points.expand(24, 2), -8, 7, torch.int8, 32
            codes = decomposed.quantize_per_channel_group(self.weight, *args)
            weight = decomposed.dequantize_per_channel_group(codes, *args, torch.float32)
        return nn.functional.linear(x, weight)


@pytest.mark.parametrize("form", ["channels", "chosen"])
def test_weights_that_the_graph_quantizes(device, form):
    ops, size = check(device, Unfolded(form), (torch.randn(3, 64),))
    assert ops == ["wgpu.linear_q"]
    # Of the float weight nothing is left.
    assert size <= 24 * 64 + 24 * 4 * 2


def test_scales_that_are_computed_stay_so(device):
    ops, _ = check(device, Unfolded("groups"), (torch.randn(3, 64),))
    assert "quantized_decomposed.quantize_per_channel_group.default" in ops


# -- what is not quite a pattern ------------------------------------------------------------------


class Odd(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        generator = torch.Generator().manual_seed(0)
        weight = torch.randint(-8, 8, (16, 24), generator=generator)
        self.register_buffer("weight", weight.to(torch.int8))
        self.block = [1, 2] if form == "groups of 2" else [1, 24]
        shape = (16, 24 // self.block[1])
        self.register_buffer("scales", torch.rand(shape, generator=generator) + 0.1)
        self.register_buffer("points", torch.zeros(shape, dtype=torch.int64))

    def forward(self, x):
        numbers = self.scales, self.points, torch.int8, -8, 7
        weight = torchao_ops.dequantize_affine(self.weight, self.block, *numbers)
        if self.form == "columns":
            return x[:, :16] @ weight
        if self.form == "read twice":
            return nn.functional.linear(x, weight) + weight.sum()
        if self.form == "changed":
            return nn.functional.linear(x, weight * 2)
        if self.form == "activations by groups":
            block, scales = [1, 6], torch.full((3, 4), 0.05)
            points = torch.zeros(3, 4, dtype=torch.int64)
            x = torchao_ops.quantize_affine(x, block, scales, points, torch.int8)
            x = torchao_ops.dequantize_affine(x, block, scales, points, torch.int8)
        return nn.functional.linear(x, weight)


#: form -> what multiplies
ODD = {
    "groups of 2": "aten.mm.default",
    "columns": "aten.mm.default",
    "read twice": "wgpu.linear_q",
    "changed": "aten.mm.default",
    "activations by groups": "wgpu.linear_q",
}


@pytest.mark.parametrize("form", ODD)
def test_what_is_not_quite_a_pattern_is_right(device, form):
    ops, _ = check(device, Odd(form), (torch.randn(3, 24),))
    assert ODD[form] in ops and "wgpu.linear_8da" not in ops


class Live(nn.Module):
    """A weight that is quantized at run time is no constant."""

    def forward(self, x, weight):
        block = [1, 8]
        scales, points = torch.full((16, 3), 0.05), torch.zeros(16, 3, dtype=torch.int64)
        codes = torchao_ops.quantize_affine(weight, block, scales, points, torch.int8)
        weight = torchao_ops.dequantize_affine(codes, block, scales, points, torch.int8)
        return nn.functional.linear(x, weight)


def test_a_weight_that_is_no_constant(device):
    ops, _ = check(device, Live(), (torch.randn(3, 24), torch.randn(16, 24)))
    assert "wgpu.linear_q" not in ops


def test_unwrapped_subclasses(device):
    """As ExecuTorch's exporter unwraps them for older versions of torch.export."""
    module = nn.Sequential(nn.Linear(64, 24))
    quantize_(module, IntxWeightOnlyConfig(torch.int4, PerGroup(32)))
    ops, _ = check(device, unwrap_tensor_subclass(module), (torch.randn(3, 64),))
    assert ops == ["wgpu.linear_q"]
