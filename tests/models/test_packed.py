"""Whole models over packed weights: as one delegate, equal to eager over the same weights."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from torch import nn

from executorch_wgpu.backend.preprocess import lower_program
from executorch_wgpu.ops.quant.layout import PackedWeight
from executorch_wgpu.scripts.quantization import quantization
from executorch_wgpu.scripts.recipes import llama, pte, whole
from executorch_wgpu.scripts.recipes import packed as packed_recipe
from executorch_wgpu.scripts.recipes.packed import (
    PackedEmbedding,
    PackedLinear,
    Packer,
    Scheme,
    pack,
    parse,
)
from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.pte import PteFile
from executorch_wgpu.serialization.reader import deserialize

import exports
import model_runs as runs
from harness import assert_close

ARGS = llama.model_args(
    dim=96,
    n_heads=6,
    n_kv_heads=2,
    hidden_dim=160,
    n_layers=1,
    vocab_size=70,
    max_seq_len=16,
    max_context_len=64,
)


def tied_weights(layers=1):
    weights = whole.random_weights(dataclasses.replace(ARGS, n_layers=layers), std=0.1)
    return {**weights, "output.weight": weights["tok_embeddings.weight"]}


@pytest.mark.parametrize("text", ["4w:32", "8w", "8da4w:32", "8da8w", "8w:64"])
def test_a_scheme_is_written_as_it_is_read(text):
    assert parse(text) == parse(str(parse(text)))


@pytest.mark.parametrize("text", ["5w", "4w:31", "w", "", "16da4w"])
def test_other_schemes_are_refused(text):
    with pytest.raises(ValueError, match="quantization"):
        parse(text)


@pytest.mark.parametrize("text", ["4w:32", "4w:64", "8w", "8w:32", "8da4w:32"])
def test_packing_rounds_to_the_nearest(text):
    weight = torch.randn(17, 100)
    packed = pack(weight, parse(text))
    steps = packed.scales.float()[:, torch.arange(100) // packed.group]
    error = (packed.dequantize() - weight).abs()
    # Half a step; the largest are 2^(bits - 1) - 1/2 steps of a scale rounded to f16.
    assert (error <= steps * 0.57).all()


def test_rows_are_packed_in_turns(monkeypatch):
    weight = torch.randn(17, 100)
    whole = pack(weight, Scheme(4, 32))
    monkeypatch.setattr(packed_recipe, "_ROWS", 5)
    parts = pack(weight, Scheme(4, 32))
    assert torch.equal(whole.packed, parts.packed) and torch.equal(whole.scales, parts.scales)


def test_rows_of_zeros_stay_zero():
    assert not pack(torch.zeros(3, 40), Scheme(4, 32)).dequantize().any()


class One(nn.Module):
    def __init__(self, packed: PackedWeight, dynamic: bool) -> None:
        super().__init__()
        self.layer = PackedLinear(packed, torch.randn(packed.packed.shape[0]), dynamic)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("scheme", [Scheme(4, 32), Scheme(8, 0), Scheme(4, 32, True)], ids=str)
def test_a_layer(scheme):
    module = One(pack(torch.randn(40, 96), scheme), scheme.dynamic)
    x = torch.randn(1, 5, 96)
    (got,) = exports.method(module, (x,)).execute([x])
    assert_close(got, module(x), abs_tol=1e-3)


def packed_bytes(model):
    """Of all packed weights, each once: codes in words, scales, zero points."""
    tensors = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for module in model.modules()
        if isinstance(module, (PackedEmbedding, PackedLinear))
        for tensor in (module.weight, module.scales, module.zeros)
        if tensor is not None
    }
    return sum(tensors.values())


QUICK = [("4w:32", "4:32")]
SLOW = [("8da4w:32", "none"), ("8w", "8"), ("8da8w", "none"), ("4w:64", "4:64"), ("8w:32", "4:32")]


@pytest.mark.parametrize(
    ("scheme", "embedding"), [*QUICK, *(pytest.param(*s, marks=pytest.mark.slow) for s in SLOW)]
)
def test_a_model_is_one_delegate_and_right(scheme, embedding, tmp_path):
    packer = Packer(scheme, embedding)
    model = whole.build(ARGS, tied_weights(), pack=packer, dynamic=packer.dynamic)
    path = tmp_path / "packed.pte"
    pte.write(pte.lower(model, methods=["forward"]), path)
    with PteFile.open(path) as file:
        # Nothing but what delegates read is in the file: no second copy of a tied table.
        named = sum(len(file.named_data(key)) for key in file.named_data_keys)
        delegate = file.method("forward").sole_delegate()
        # (Of RoPE's tables there is one: cos and sin, 64 positions by 8.)
        others = sum(size for _, size in file.segments) - named - len(delegate.data)
        assert others <= 2 * 64 * 8 * 4
        program = deserialize(delegate.data)
    # On the GPU: packed weights with their scales, norms, RoPE's tables, and an embedding in f32
    # where it is not quantized. No weight is there dequantized.
    constants = sum(b.size for b in program.buffers if b.kind is BufferKind.CONSTANT)
    table = 70 * 96 * 4 if embedding == "none" else 0
    rows = quantization(program)
    assert constants == sum(row["bytes"] for row in rows) + 3 * 96 * 4 + 2 * 64 * 8 * 4 + table
    assert sum(row["bytes"] for row in rows) == packed_bytes(model)
    schemes = {parse(row["scheme"]) for row in rows}
    assert schemes == {parse(scheme), *([parse(embedding)] if embedding != "none" else [])}
    runs.compare_quantized(model, runs.load(path), dynamic=packer.dynamic)


def steps(layers, **options):
    """Labels of a model's dispatches."""
    model = whole.build(dataclasses.replace(ARGS, n_layers=layers), tied_weights(layers), **options)
    edge = to_edge(
        whole.export_methods(model, ["forward"])["forward"],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    program = lower_program(edge.exported_program()).program
    return [step.routes[0].dispatches[0].label for step in program.steps]


def test_as_many_dispatches_as_in_f32():
    """q, k and v are joined, gates too; residuals, RoPE and caches are taken in."""
    found = steps(2, pack=Packer("4w:32", "4:32"))
    assert len(found) <= 6 * 2 + 2
    assert "layers.1.attention.wq+wk+wv/linear_w4g32_digits" in found
    # One quantization for q, k and v, one for the gates; norms stand before it.
    integers = steps(2, pack=Packer("8da4w:32"), dynamic=True)
    assert len(integers) == len(found) + 2 * (4 * 2 + 1) + 2 * 2 + 1


class Tied(nn.Module):
    """An embedding and an output matrix by one packing."""

    def __init__(self, packed: PackedWeight) -> None:
        super().__init__()
        self.table, self.output = PackedEmbedding(packed), PackedLinear(packed, None)

    def forward(self, tokens):
        return self.output(self.table(tokens))


def test_a_tied_table_is_one_constant():
    module = Tied(pack(torch.randn(70, 96), Scheme(4, 32)))
    edge = exports.edge(module, (torch.tensor([[1, 2, 69]]),))
    lowered = lower_program(edge)
    assert sum(len(content) * content.itemsize for content in lowered.data.values()) == (
        70 * 48 + 70 * 3 * 2
    )
    assert len(lowered.data) == 2


def test_schemes_are_shared_where_they_are_equal():
    weight = torch.randn(70, 96)

    def maker():
        return weight

    packer = Packer("4w:32", "4:32")
    table = packer("tok_embeddings.weight", maker)
    assert packer("output.weight", maker) is table
    assert Packer("none", "4:32")("output.weight", maker) is None
    assert Packer("keep", "keep")("output.weight", maker) is None  # floats
