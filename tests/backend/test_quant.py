"""What torchao, ExecuTorch and PT2E leave of a quantized model runs from packed weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.quant_primitives import MappingType

from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.lowering import lower_chain
from executorch_wgpu.backend.passes import run_passes
from executorch_wgpu.scripts.recipes import llama
from executorch_wgpu.serialization.dispatch_list import BufferKind

import exports
from harness import assert_close

SYMMETRIC, ASYMMETRIC = MappingType.SYMMETRIC, MappingType.ASYMMETRIC


def lowered(module, inputs, dynamic_shapes=None):
    """(operators after the passes, program)."""
    chain = run_passes(GraphReader(exports.edge(module, inputs, dynamic_shapes)).chain())
    return [call.op for call in chain.calls], lower_chain(chain).program


def constant_bytes(program):
    """Bytes of the constants on the GPU, pieces of others left out."""
    keys = {}
    for buffer in program.buffers:
        if buffer.kind is BufferKind.CONSTANT:
            keys[buffer.data_key] = max(keys.get(buffer.data_key, 0), buffer.size)
    return sum(keys.values())


def run(module, inputs, rel=1e-3):
    with torch.no_grad():
        want = module(*inputs)
    (got,) = exports.method(module, inputs).execute(list(inputs))
    assert_close(got, want, abs_tol=rel * float(want.abs().max()) / 4, rel_tol=rel)


def linear(k=256, n=96, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(k, n, bias=bias))


WEIGHT_ONLY = {
    "4 bits, groups of 32": (torch.int4, PerGroup(32), SYMMETRIC),
    "4 bits, groups of 64, asymmetric": (torch.int4, PerGroup(64), ASYMMETRIC),
    "4 bits, groups of 128": (torch.int4, PerGroup(128), SYMMETRIC),
    "4 bits, groups of 256": (torch.int4, PerGroup(256), ASYMMETRIC),
    "4 bits, channels": (torch.int4, PerAxis(0), SYMMETRIC),
    "8 bits, groups of 32": (torch.int8, PerGroup(32), SYMMETRIC),
    "8 bits, channels": (torch.int8, PerAxis(0), SYMMETRIC),
    "8 bits, groups of 64, asymmetric": (torch.int8, PerGroup(64), ASYMMETRIC),
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("form", WEIGHT_ONLY)
def test_weight_only(form, bias):
    dtype, granularity, mapping = WEIGHT_ONLY[form]
    module = linear(bias=bias)
    quantize_(
        module,
        IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity, mapping_type=mapping),
    )
    inputs = (torch.randn(3, 256),)
    ops, program = lowered(module, inputs)
    assert ops == ["wgpu.linear_q"]
    bits = 4 if dtype is torch.int4 else 8
    groups = 256 // granularity.group_size if isinstance(granularity, PerGroup) else 1
    most = 96 * 256 * bits // 8 + 96 * groups * 4 + 4 * 96 * bias
    if mapping is ASYMMETRIC:
        most += 96 * -(-groups // 4) * 4
    assert constant_bytes(program) == most
    run(module, inputs)


def test_a_scale_after_the_product_becomes_the_weights():
    module = linear()
    quantize_(module, Int8WeightOnlyConfig())
    inputs = (torch.randn(3, 256),)
    ops, program = lowered(module, inputs)
    assert computing(ops) == ["wgpu.linear_q"]
    assert constant_bytes(program) == 96 * 256 + 2 * 96 * 4
    run(module, inputs)


class Scales(nn.Module):
    """Integers times what is, or is not, a scale of their rows."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.register_buffer("weight", torch.randint(-128, 128, (8, 16), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(8))

    def forward(self, x):
        y = nn.functional.linear(x, self.weight.float())
        if self.form == "one for all":
            return y * self.scales[:1]
        if self.form == "more rows":
            return y[:1] * self.scales.expand(3, 8)
        return (y * self.scales) + (y if self.form == "read twice" else 0)


@pytest.mark.parametrize("form", ["one for all", "more rows", "read twice", "plain"])
def test_what_is_no_scale_of_rows_is_multiplied(form):
    module, inputs = Scales(form), (torch.randn(3, 16),)
    run(module, inputs)


@pytest.mark.parametrize("rows", [1, 4, 129])
@pytest.mark.parametrize("k", [96, 288])
@pytest.mark.parametrize("bits", [4, 8])
def test_dynamic_activations(bits, k, rows):
    dtype = torch.int4 if bits == 4 else torch.int8
    granularity = PerGroup(32) if bits == 4 else PerAxis(0)
    module = linear(k)
    quantize_(
        module,
        Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=granularity),
    )
    inputs = (torch.randn(1, rows, k),)
    ops, _ = lowered(module, inputs)
    assert "wgpu.linear_8da" in ops
    assert not any("dequantize" in op or "mm" in op for op in ops)
    run(module, inputs)


STORED = {
    "4 bits": IntxWeightOnlyConfig(torch.int4, PerGroup(32)),
    "8 bits, channels": Int8WeightOnlyConfig(),
}
STORED |= {
    "8da4w": Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", STORED)
def test_a_model_in_16_bits(form, dtype):
    """Its scales are in 16 bits, too, and activations are quantized from them."""
    module = linear(96, 31).to(dtype)
    quantize_(module, STORED[form])
    inputs = (torch.randn(1, 5, 96).to(dtype),)
    ops, _ = lowered(module, inputs)
    assert ("wgpu.linear_8da" if form == "8da4w" else "wgpu.linear_q") in ops
    assert not any("dequantize" in op or "mm" in op or "to_copy" in op for op in ops)
    with torch.no_grad():
        want = module(*inputs)
    (got,) = exports.method(module, inputs).execute(list(inputs))
    assert str(torch.as_tensor(got).dtype) == str(dtype)
    # Eager rounds the weight, the scales and, with 8da4w, each step of a quantization.
    loose = 0.03 if form == "8da4w" and dtype is torch.bfloat16 else 0.01
    assert_close(torch.as_tensor(got), want, abs_tol=loose * float(want.abs().max()), rel_tol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scales_in_16_bits(dtype):
    module = linear()
    quantize_(module, IntxWeightOnlyConfig(torch.int4, PerGroup(32), scale_dtype=dtype))
    assert lowered(module, (torch.randn(3, 256),))[0] == ["wgpu.linear_q"]
    run(module, (torch.randn(3, 256),))


def test_an_odd_number_of_columns():
    module = linear(77, 31)
    quantize_(
        module,
        Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerAxis(0)
        ),
    )
    inputs = (torch.randn(5, 77),)
    assert "wgpu.linear_8da" in lowered(module, inputs)[0]
    run(module, inputs)


class Tied(nn.Module):
    """An embedding and an output layer over one quantized table."""

    def __init__(self, vocabulary=200, dim=64):
        super().__init__()
        self.table = nn.Linear(dim, vocabulary, bias=False)
        quantize_(
            self.table,
            IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        )

    def forward(self, tokens):
        weight = self.table.weight.dequantize()
        return nn.functional.linear(nn.functional.embedding(tokens, weight), weight)


def test_a_tied_table_is_one_constant():
    module, tokens = Tied(), torch.tensor([3, 199, 0, 7])
    ops, program = lowered(module, (tokens,))
    assert sorted(ops) == ["wgpu.embedding_q", "wgpu.linear_q"]
    assert constant_bytes(program) == 200 * 64 // 2 + 200 * 2 * 4
    run(module, (tokens,))


@pytest.mark.parametrize("rows", [1, 2, 129])
def test_live_rows(rows):
    module = linear()
    quantize_(module, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    shapes = ({0: torch.export.Dim("S", min=1, max=160)},)
    method = exports.method(module, (torch.randn(3, 256),), shapes)
    x = torch.randn(rows, 256)
    (got,) = method.execute([x])
    assert_close(got, module(x).detach())


# -- fusions: as of f32 ----------------------------------------------------------------------------

LAYER = [
    *("wgpu.linear_q", "wgpu.rope_attention", "wgpu.linear_q", "wgpu.linear_q", "wgpu.linear_q"),
]


def llama_layer(config=None, **overrides):
    args = llama.model_args(
        **{"dim": 64, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 96, "max_seq_len": 16,
           "max_context_len": 40, **overrides}
    )  # fmt: skip
    layer = llama.random_layer(args, 1)
    if config is not None:
        quantize_(layer, config)
    return layer


def computing(ops):
    views = ("view", "permute", "split", "slice", "select", "squeeze", "expand")
    return [op for op in ops if not any(view in op for view in views)]


@pytest.mark.parametrize(("mapping", "bias"), [(SYMMETRIC, True), (ASYMMETRIC, False)], ids=str)
def test_a_layer_has_as_many_dispatches_as_in_f32(mapping, bias):
    config = IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=mapping
    )
    layer = llama_layer(config, attention_qkv_bias=bias)
    inputs, shapes = llama.example_inputs(layer), llama.dynamic_shapes(layer)
    assert computing(lowered(layer, inputs, shapes)[0]) == LAYER
    method, position = exports.method(layer, inputs, shapes), 0
    for size in (7, 1, 16):
        x, at = torch.randn(1, size, 64), torch.tensor([position])
        (got,) = method.execute([x, at])
        with torch.no_grad():
            assert_close(got, layer(x, at), abs_tol=1e-3, rel_tol=1e-3)
        position += size


class Two(nn.Module):
    def __init__(self, one, two):
        super().__init__()
        self.a, self.b = nn.Linear(64, 32, bias=False), nn.Linear(64, 32, bias=False)
        for layer, config in ((self.a, one), (self.b, two)):
            if config is not None:
                quantize_(layer, config)

    def forward(self, x):
        return self.a(x), self.b(x)


def weight_only(dtype=torch.int4, group=32, mapping=SYMMETRIC):
    return IntxWeightOnlyConfig(
        weight_dtype=dtype, granularity=PerGroup(group), mapping_type=mapping
    )


@pytest.mark.parametrize(
    "other",
    [weight_only(torch.int8), weight_only(group=64), weight_only(mapping=ASYMMETRIC), None],
    ids=["bits", "group", "zeros", "floats"],
)
def test_other_kinds_of_weights_are_not_joined(other):
    module, inputs = Two(weight_only(), other), (torch.randn(1, 3, 64),)
    ops, _ = lowered(module, inputs)
    assert len(computing(ops)) == 2
    results = exports.method(module, inputs).execute(list(inputs))
    for got, want in zip(results, module(*inputs), strict=True):
        assert_close(got, want.detach(), abs_tol=1e-3)


class Scaled(nn.Module):
    """A dequantized constant that no product takes."""

    def __init__(self):
        super().__init__()
        self.linear = linear(64, 8)[0]
        quantize_(
            self.linear, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
        )

    def forward(self, x):
        return self.linear.weight.dequantize() * x


def test_what_does_not_match_stays_apart_and_right():
    module, inputs = Scaled(), (torch.randn(8, 64),)
    assert lowered(module, inputs)[0] == ["torchao.dequantize_affine.default", "aten.mul.Tensor"]
    run(module, inputs)
