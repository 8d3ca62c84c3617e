"""Every template and every operator: rendered without a GPU, compiled by both compilers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerGroup

from executorch_wgpu.backend.preprocess import lower_program
from executorch_wgpu.ops import registry, templates
from executorch_wgpu.ops.matmul import gemm_matrix
from executorch_wgpu.ops.sampling.operator import sample
from executorch_wgpu.scripts.memory_model import problems_in
from executorch_wgpu.scripts.operator_table import README, with_table
from executorch_wgpu.scripts.recipes import llama
from executorch_wgpu.serialization.dispatch_list import DType

import exports
import tint
from harness import Chain

ROOT = Path(__file__).parents[1]
TEMPLATES = sorted(str(path.relative_to(ROOT / "ops")) for path in (ROOT / "ops").rglob("*.wgsl"))


class Everything(torch.nn.Module):
    """One use of each operator family beside the llama layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(11, 24))
        self.norm = torch.nn.RMSNorm(24)
        self.centred = torch.nn.LayerNorm(24)
        self.linear = torch.nn.Linear(24, 7)

    def forward(self, x, tokens, mask):
        rows = torch.nn.functional.embedding(tokens, self.table)
        y = self.norm(self.centred(x + rows))
        y = torch.where(mask, y, -y)
        z = torch.bmm(y, y.transpose(1, 2)).softmax(-1)
        w = torch.cat([z, z * 2], 1)
        v = torch.div(torch.nn.functional.elu(w - 1), 0.3, rounding_mode="floor")
        u = torch.log1p(w), w.argmax(-1), torch.nn.functional.leaky_relu(w.amin(-1)).clamp(-1, 6)
        return self.linear(y), w.mean(1), w.amax(-1), torch.nn.functional.gelu(w), v, *u


class Quantized(torch.nn.Module):
    """Packed weights, with activations of f32 and of int8, and integers of 8 bits on their own."""

    def __init__(self) -> None:
        super().__init__()
        group = PerGroup(8)
        self.plain = torch.nn.Sequential(torch.nn.Linear(32, 24))
        quantize_(self.plain, IntxWeightOnlyConfig(torch.int4, group))
        self.dynamic = torch.nn.Sequential(torch.nn.Linear(24, 32))
        config = Int8DynamicActivationIntxWeightConfig(torch.int4, weight_granularity=group)
        quantize_(self.dynamic, config)
        self.table = torch.nn.Parameter(torch.ones(5, 7, dtype=torch.int8), requires_grad=False)
        self.large = torch.nn.Parameter(torch.randn(128, 128))

    def requantized(self, x):
        ops, byte = torch.ops.quantized_decomposed, (-128, 127, torch.int8)
        x = x.mean() * self.large  # nothing that is known ahead of time
        scale, point = ops.choose_qparams(x, -128, 127, 1e-5, torch.int8)
        y = ops.quantize_per_tensor(x, scale, point, *byte)
        y = ops.dequantize_per_tensor(y, scale, point, *byte)
        scales, points = ops.choose_qparams_per_token_asymmetric(y, torch.int8)
        y = ops.quantize_per_token(y, scales, points, *byte)
        return ops.dequantize_per_token(y, scales, points, *byte, torch.float32)

    def forward(self, x):
        weight = self.plain[0].weight.dequantize()
        rows = torch.nn.functional.embedding(x[:, 0].int(), weight)
        return (
            self.dynamic(self.plain(x)),
            rows,
            weight * 2,
            self.table.T.float(),
            self.requantized(x),
        )


class Sampling(torch.nn.Module):
    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k

    def forward(self, logits, temperature, top_p):
        first = sample(logits, temperature, top_p, 1, 0, 0)
        return first, sample(logits.half(), temperature, top_p, self.top_k, 3, 4)


@pytest.fixture(scope="module")
def programs():
    """Dispatch lists that together use every template."""
    used, render = set[str](), templates.render
    templates.render = lambda name, *args: (used.add(name), render(name, *args))[1]
    try:
        found = lowered_programs()
    finally:
        templates.render = render
    kernels = {name for name in TEMPLATES if "fn main" in (ROOT / "ops" / name).read_text()}
    assert kernels - used == set()
    return found


def long_products():
    """A product along k, which workgroups split, and one with the columns of its second factor side
    by side."""
    c = Chain()
    m = c.int_input("M", 1, 200)
    a, w = c.input("a", (1, m, 512)), c.input("w", (1, 512, 36))
    c.output(*c.call("aten.bmm.default", {"self": a, "mat2": w}, [(a.dtype, (1, m, 36))]))
    return c.lower().program


def packed_product():
    """Rows times a packed weight with its scales 32 codes apart, normed before."""
    c = Chain()
    x = c.input("x", (c.dim_of("M", 0, 1, 9), 64))
    args = {
        "x": x,
        "weight": c.constant(torch.zeros(6, 8, dtype=torch.int32)),
        "scales": c.constant(torch.ones(6, 2, dtype=torch.float16)),
        "zeros": None,
        "bits": 4,
        "group": 32,
        "k": 64,
        "zero": 8,
        "formula": None,
        "operands": [],
        "pairs": False,
        "norm_weight": c.constant(torch.ones(64)),
        "norm_eps": 1e-5,
    }
    c.output(*c.call("wgpu.linear_q", args, [(x.dtype, (x.shape[0], 6))]))
    return c.lower().program


def long_range():
    """One scale for more elements than one workgroup reads."""
    c = Chain()
    x = c.input("x", (c.dim_of("M", 0, 1, 400), 100))
    args = {"input": x, "quant_min": -128, "quant_max": 127, "eps": 2**-12, "dtype": torch.int8}
    outputs = [(x.dtype, (1,)), (DType.I64, (1,))]
    c.output(*c.call("quantized_decomposed.choose_qparams.tensor", args, outputs))
    return c.lower().program


def matrix_products():
    """Rows times a packed and a dense weight, with routes for matrix units, in tiles that fit into
    the workgroup memory of WebGPU's default limits."""
    small = gemm_matrix.MatrixConfig(bm=32, bn=64, sm=16, sn=32, bk=32)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm_matrix, "TILES", dict.fromkeys(gemm_matrix.MODES, (small, small)))
        for mode in gemm_matrix.MODES:
            c = Chain()
            c.chain.matrix_units = mode
            x = c.input("x", (c.dim_of("M", 0, 1, 300), 256))
            args = {"x": x, "formula": None, "operands": [], "pairs": False}
            weight = c.constant(torch.zeros(512, 256))
            c.output(
                *c.call("wgpu.linear", args | {"weight": weight}, [(x.dtype, (x.shape[0], 512))])
            )
            found.append(c.lower().program)
    return found


def lowered_programs():
    S = torch.export.Dim("S", min=1, max=9)
    inputs = (
        torch.randn(1, 5, 24),
        torch.zeros(1, 5, dtype=torch.int64),
        torch.ones(1, 5, 1, dtype=torch.bool),
    )
    shapes = ({1: S}, {1: S}, {1: S})
    sampling = (torch.randn(1, 1, 77), torch.ones(1), torch.ones(1))
    found = [lower_program(exports.edge(Everything(), inputs, shapes)).program]
    found += [long_products(), packed_product(), long_range(), *matrix_products()]
    found.append(lower_program(exports.edge(Quantized(), (torch.randn(3, 32),), ({0: S},))).program)
    for top_k in (0, 9):
        found.append(lower_program(exports.edge(Sampling(top_k), sampling)).program)
    for fused in (False, True):
        args = llama.model_args(
            dim=36, n_heads=6, n_kv_heads=2, hidden_dim=44, max_seq_len=64, max_context_len=128
        )
        layer = llama.random_layer(args, fused=fused)
        edge = exports.edge(layer, llama.example_inputs(layer), llama.dynamic_shapes(layer))
        found.append(lower_program(edge).program)
    return found


def test_tint_compiles_them(programs):
    """Dawn's null device has WebGPU's default limits and needs no driver."""
    sources = [source for program in programs for source in tint.sources_of(program)]
    assert len(sources) > 20
    errors = tint.validate(sources)
    assert not [e for e in errors if e], errors


def test_naga_compiles_them(programs, device):
    """Loading compiles every route that the device can take."""
    from executorch_wgpu.runtime.graph import WebGPUGraph

    for program in programs:
        keys = {b.data_key: bytes(b.size) for b in program.buffers if b.data_key}
        WebGPUGraph(device, program, keys, "templates")


def test_no_workgroup_reads_what_another_writes(programs):
    """Here the dispatch lists; tests/conftest.py has the same asked of each kernel that any test
    renders."""
    assert [problem for program in programs for problem in problems_in(program)] == []


def test_every_dispatch_says_where_it_came_from(programs):
    for program in programs:
        for step in program.steps:
            for route in step.routes:
                for dispatch in route.dispatches:
                    assert dispatch.label and dispatch.op, dispatch
                    assert dispatch.label.startswith(dispatch.module_path)


def test_shaders_hold_the_house_rules():
    """No directives (the replayer writes them), no loops but counted ones; the rest about memory is
    asked of what is rendered, see scripts/memory_model.py."""
    for name in TEMPLATES:
        text = re.sub(r"\{#.*?#\}", "", (ROOT / "ops" / name).read_text(), flags=re.S)
        assert not re.search(r"^\s*(enable|requires|diagnostic)\b", text, flags=re.M), name
        # Integer atomics, for two elements of 16 bits that share a word, and for a maximum.
        assert "atomic" not in text or name in ("halves.wgsl", "matmul/matrix_rows.wgsl"), name
        code = re.sub(r"//.*", "", text)
        assert not re.search(r"\b(while|loop)\b\s*[({]", code), name


def test_the_readme_lists_the_operators():
    """Regenerate with: python -m executorch_wgpu.scripts.operator_table --write"""
    text = README.read_text()
    assert with_table(text) == text


def test_every_operator_is_named_in_a_test():
    """An operator that no test names is one that nobody tried."""
    from executorch_wgpu.ops.elementwise.operators import POINTWISE

    text = "\n".join(path.read_text() for path in (ROOT / "tests" / "ops").rglob("*.py"))
    # The pointwise table is walked whole by tests/ops/elementwise; reductions and softmax are
    # named there by parts of their names.
    names = [op for op in registry.registered_ops() if op not in POINTWISE]
    missing = [op for op in names if op not in text and f'"{op.split(".")[1]}' not in text]
    assert len(missing) == 0, missing
