"""The dispatches of one attention: labelled and timed, without torch where they are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from executorch_wgpu.scripts.bench import sdpa


@pytest.mark.slow
def test_the_four_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("executorch.exir")
    monkeypatch.setattr(sdpa, "SETTINGS", ((1, 511), (128, 0)))
    file, out = str(tmp_path / "sdpa.pte"), tmp_path / "out.json"
    runner = CliRunner()
    made = runner.invoke(sdpa.main, [file, "--make"])
    assert made.exit_code == 0, made.output
    result = runner.invoke(sdpa.main, [file, "--steps", "2", "--warmup", "1", "--json", str(out)])
    assert result.exit_code == 0, result.output
    decode, prefill = (d["groups"][0]["dispatches"] for d in json.loads(out.read_text()))
    assert [(d["kernel"], d["route"]) for d in decode] == [
        ("update_cache_k", "only"),
        ("update_cache_v", "only"),
        ("sdpa_decode_split", "decode"),
        ("sdpa_decode_reduce", "decode"),
    ]
    assert [(d["kernel"], d["route"]) for d in prefill][2:] == [("sdpa_prefill", "prefill")]
    for d in (*decode, *prefill):
        assert d["mean"] > 0 and d["bytes_per_s"] and d["module"] == "layers.0.attention"
        assert d["label"] in result.output
