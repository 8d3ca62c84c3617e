"""What ExecuTorch's own llama exporter makes with ``-qmode`` and ``--embedding-quantize``: one
delegate, packed weights, eager's logits."""

from __future__ import annotations

import pytest
from executorch.examples.models.llama.source_transformation.quantize import (
    get_quant_embedding_transform,
    get_quant_weight_transform,
)

from executorch_wgpu.runtime import Runtime
from executorch_wgpu.scripts.quantization import quantization
from executorch_wgpu.scripts.recipes import llama, pte, whole

import model_runs as runs

ARGS = llama.model_args(
    dim=128,
    n_heads=4,
    n_kv_heads=2,
    hidden_dim=256,
    n_layers=1,
    vocab_size=70,
    max_seq_len=16,
    max_context_len=64,
)

#: qmode, group, embedding -> what inspect says of it
OPTIONS = {
    ("8da4w", 128, "4,32"): {"8da4w:128", "8da4w", "4w:32"},
    ("4w", 32, "8,0"): {"4w:32", "8w"},
    ("8da8w", 0, "2,32"): {"8da8w", "4w:32"},
    ("int8", None, "4,0"): {"8w", "4w"},
    ("8da4w", 32, "8,64"): {"8da4w:32", "8w:64"},
}
SLOW = list(OPTIONS)[1:]


@pytest.mark.parametrize(
    "options",
    [pytest.param(o, marks=pytest.mark.slow) if o in SLOW else o for o in OPTIONS],
    ids=str,
)
def test_a_model_is_one_delegate_and_right(options, tmp_path):
    qmode, group, embedding = options
    model = whole.build(ARGS, whole.random_weights(ARGS, std=0.1))
    model = get_quant_weight_transform(qmode, group)(model)
    model = get_quant_embedding_transform(embedding)(model)
    path = tmp_path / "model.pte"
    pte.write(pte.lower(model), path)
    rows = quantization(Runtime.get().load_program(path).dispatch_list("forward"))
    assert {row["scheme"] for row in rows} <= OPTIONS[options]
    # q, k and v joined, gate and up, wo, w2, output, the table.
    assert sum(row["weights"] for row in rows) == 6, rows
    runs.compare_quantized(model, runs.load(path), dynamic=qmode.startswith("8da"))
