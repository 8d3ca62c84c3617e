"""ExecuTorch's operator tests through our delegate: the table, and a few of them run."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from executorch_wgpu.scripts import conformance_suite as suite


def row(test: str, result: str = "pass", delegated: int = 0, on_cpu: Any = ()) -> dict[str, Any]:
    return {
        "test": test,
        "subtest": 0,
        "result": result,
        "detail": "",
        "delegated": {"aten::abs": delegated} if delegated else {},
        "on_cpu": dict.fromkeys(on_cpu, 1),
    }


def test_lines_tell_ours_from_theirs():
    rows = [
        row("abs::a", delegated=1),
        row("abs::b", delegated=1, on_cpu=["aten::conv", "aten::sym_size.int"]),
        row("abs::c", on_cpu=["aten::conv"]),
        row("abs::d", "skip"),
        row("exp::e", "fail"),
        row("exp::f", "fail"),
        # What the exporter adds is nothing left on the CPU.
        row("exp::g", delegated=2, on_cpu=["aten::sym_size.int"]),
    ]
    lines = suite.summarize(rows, [row("exp::e", "fail"), row("exp::f")])
    assert list(lines) == ["abs", "exp"]
    line = lines["abs"]
    assert (line.whole, line.part, line.none, line.skipped, line.passed) == (1, 1, 1, 1, 3)
    assert line.on_cpu == {"aten::conv"}
    assert (lines["exp"].whole, lines["exp"].neither, lines["exp"].worse) == (1, 1, ["exp::f"])
    text = suite.markdown(lines)
    assert text.startswith("4 cases pass: 2 delegated as a whole, 1 in part, 1 with nothing")
    assert "| abs | 3 | 1 | 1 | 1 | 0 | 0 | 1 | `conv` |" in text.splitlines()


def test_a_table_goes_between_its_marks(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- conformance: begin -->\nold\n<!-- conformance: end -->\nz\n")
    suite.write_between(path, "new")
    assert path.read_text() == "a\n<!-- conformance: begin -->\nnew\n<!-- conformance: end -->\nz\n"
    path.write_text("a")
    with pytest.raises(ValueError, match="conformance: begin"):
        suite.write_between(path, "new")


@pytest.mark.slow
def test_a_few_of_them(tmp_path):
    """Delegated, not just passed."""
    done = CliRunner().invoke(
        suite.main, ["--filter", "test_hardtanh or test_argmax", "--results", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    lines = suite.summarize(suite.read_rows(tmp_path / "wgpu.jsonl"), [])
    assert set(lines) == {"argmax", "hardtanh"}
    assert all(line.whole > 0 and line.part == line.none == 0 for line in lines.values())
