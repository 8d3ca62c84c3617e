"""The figures of graph passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from executorch_wgpu.backend.passes import OPTIONAL
from executorch_wgpu.scripts.bench import passes


def test_measured_passes_can_be_left_out() -> None:
    assert set(passes.MEASURED) <= set(OPTIONAL)


def test_a_row_for_each_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(passes, "MEASURED", ("join_linears", "fuse_rope_cache"))
    path = tmp_path / "figures.json"
    words = ["smollm2_135m", "--layers", "1", "--vocab", "64", "--rounds", "1", "--json", str(path)]
    result = CliRunner().invoke(passes.main, words)
    assert result.exit_code == 0, result.output
    rows = {row["passes"]: row for row in json.loads(path.read_text())["rows"]}
    assert list(rows) == ["all", "without join_linears", "without fuse_rope_cache", "none"]
    assert rows["all"]["dispatches"] == 8  # six a layer, and two
    assert all(row["dispatches"] > 8 for label, row in rows.items() if label != "all")
    assert all(row["ms"] > 0 and row["cpu_ms"] > 0 for row in rows.values())
