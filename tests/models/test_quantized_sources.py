"""``export-llama --quantize`` from every kind of checkpoint, and GGUF's blocks as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from click.testing import CliRunner

from executorch_wgpu.scripts.cli import main
from executorch_wgpu.scripts.recipes import pte
from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint, hf, meta
from executorch_wgpu.scripts.recipes.checkpoints import gguf as gguf_files

import model_files as files
import model_reference as reference
import model_runs as runs

CONFIG = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
CONFIG |= {"num_hidden_layers": 1, "tie_word_embeddings": True}


def source(kind: str, folder: Path) -> tuple[list[Any], Checkpoint]:
    """(the options that name a checkpoint, the checkpoint); ``kind``: of a GGUF file's blocks, or
    another format."""
    c = reference.config("llama", **CONFIG)
    if kind.endswith("_K"):  # of blocks of 256
        c |= {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    if kind == "meta":  # which has no tied matrices
        c["tie_word_embeddings"] = False
    weights = reference.random_weights(c)
    if kind == "hf":
        folder = files.write_hf(folder / "model", c, weights)
        return ["--hf", folder], hf.open_hf(folder)
    if kind == "meta":
        path, params = files.write_meta(folder, c, weights)
        return ["--checkpoint", path, "--params", params], meta.open_meta(path, params)
    path = files.write_gguf(folder / "tiny.gguf", c, weights, kind=gguf.GGMLQuantizationType[kind])
    return ["--gguf", path], gguf_files.open_gguf(path)


def exported(words: list[Any], path: Path) -> tuple[set[str], Any]:
    """(schemes that inspect shows, the method)."""
    words = ["export-llama", *words, "--out", path, "--max-context", 32, "--max-seq-len", 8]
    result = CliRunner().invoke(main, [str(word) for word in [*words, "--all-logits"]])
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(main, ["inspect", str(path), "--json"])
    (delegate,) = json.loads(shown.stdout)["methods"][0]["delegates"]
    rows = delegate["dispatch_list"]["quantization"]
    assert "quantized" in CliRunner().invoke(main, ["inspect", str(path)]).stdout
    return {row["scheme"] for row in rows}, runs.load(path)


SIZES = {"max_seq_len": 8, "max_context": 32, "all_logits": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "linear", "table"),
    [
        ("hf", "4w:32", "4:32"),
        ("hf", "8da4w:32", "4:32"),
        ("meta", "8w", "8"),
        ("F32", "8da4w:32", "none"),
        ("Q8_0", "4w:32", "8:32"),
    ],
)
def test_every_source_is_quantized(kind: str, linear: str, table: str, tmp_path: Path) -> None:
    words, checkpoint = source(kind, tmp_path)
    words += ["--quantize", linear, "--embedding-quantize", table]
    schemes, method = exported(words, tmp_path / "model.pte")
    tables = {"none": set(), "8": {"8w"}, "4:32": {"4w:32"}, "8:32": {"8w:32"}}
    assert schemes == {linear} | tables[table]
    model = pte.checkpoint_model(checkpoint, quantize=linear, embedding_quantize=table, **SIZES)
    runs.compare_quantized(model, method, dynamic="8da" in linear)


KEPT = {"Q4_0": "4w:32", "Q4_1": "4w:32", "Q5_0": "8w:32", "Q5_1": "8w:32", "Q8_0": "8w:32"}
KEPT |= {"Q4_K": "4w:32", "Q6_K": "8w:16"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k != "Q4_1" else k for k in KEPT]
)
def test_blocks_stay_what_they_are(kind: str, tmp_path: Path) -> None:
    """Without an option: beside eager in f32 on the values of the blocks."""
    words, checkpoint = source(kind, tmp_path)
    schemes, method = exported(words, tmp_path / "model.pte")
    assert schemes == {KEPT[kind]}
    # The scales of Q4_K are rounded to f16.
    loose = 1e-2 if kind == "Q4_K" else 1e-3
    model = pte.checkpoint_model(checkpoint, dtype=torch.float32, **SIZES)
    runs.compare_quantized(model, method, loose=loose)


def test_wrong_schemes_are_refused(tmp_path: Path) -> None:
    words, _ = source("hf", tmp_path)
    for option in (["--quantize", "3w"], ["--embedding-quantize", "8da4w:32"]):
        path = tmp_path / "no.pte"
        line = ["export-llama", *words, "--out", path, "--max-context", 32, *option]
        result = CliRunner().invoke(main, [str(word) for word in line])
        assert result.exit_code != 0 and option[1] in result.output
        assert not path.exists()
