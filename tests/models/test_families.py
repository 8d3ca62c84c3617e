"""The families at their real head counts and widths, random weights, two layers and few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executorch_wgpu.scripts.recipes import families

import model_runs as runs

#: Prompts and single steps, up to where the rotary scaling and the split of decoding matter.
MIX = [5, 1, 64, 1, 1, 33, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3_2_1b", "qwen3_0_6b", "qwen2_5_0_5b", "llama2_7b"])
def test_two_layers(name: str, tmp_path: Path) -> None:
    args = families.model_args(
        name, n_layers=2, vocab_size=1000, max_seq_len=64, max_context_len=256
    )
    model = runs.export(args, tmp_path / "model.pte")
    # Positions differ enough for a wrong rotation to show.
    error = runs.compare_steps(model, runs.load(tmp_path / "model.pte"), MIX)
    print(f"{name}: largest error {error:.2e}")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama2_7b", 6_738_415_616),
        ("llama3_8b", 8_030_261_248),
        ("llama3_1_8b", 8_030_261_248),
        ("llama3_2_1b", 1_235_814_400),
        ("llama3_2_3b", 3_212_749_824),
        ("smollm2_135m", 134_515_008),
        ("qwen2_5_0_5b", 494_032_768),
        ("qwen3_0_6b", 596_049_920),
    ],
)
def test_sizes(name: str, parameters: int) -> None:
    """As published."""
    from executorch_wgpu.scripts.recipes.whole import Llama

    args = families.model_args(name, max_seq_len=2, max_context_len=2)
    shapes: dict[str, Any] = {n: p.shape for n, p in Llama(args).named_parameters()}
    if families.is_tied(name):
        del shapes["output.weight"]
    assert sum(shape.numel() for shape in shapes.values()) == parameters
