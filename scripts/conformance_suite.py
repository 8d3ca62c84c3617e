"""Runs ExecuTorch's operator tests through our delegate, and makes the table of what came of it.

scripts/conformance [--filter abs] [--table docs/CONFORMANCE.md --summary README.md]
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

#: Bookkeeping that the exporter adds; no operator of the model.
_QUIET = ("sym_size", "_assert_scalar", "_local_scalar_dense", "alias_copy")


@dataclass
class Line:
    """One operator's tests. ``whole``, ``part``, ``none``: of those that passed, how much of the
    program was delegated. ``worse``: tests that fail with us alone. ``neither``: those that fail
    with nothing delegated, too. ``skipped``: by the suite. ``on_cpu``: operators left there."""

    whole: int = 0
    part: int = 0
    none: int = 0
    neither: int = 0
    skipped: int = 0
    worse: list[str] = field(default_factory=list)
    on_cpu: set[str] = field(default_factory=set)

    @property
    def passed(self) -> int:
        """Tests that passed."""
        return self.whole + self.part + self.none

    def __add__(self, other: Line) -> Line:
        return Line(
            self.whole + other.whole,
            self.part + other.part,
            self.none + other.none,
            self.neither + other.neither,
            self.skipped + other.skipped,
            self.worse + other.worse,
            self.on_cpu | other.on_cpu,
        )


def run_suite(flow: str, pattern: str | None, out: Path, arguments: Sequence[str] = ()) -> int:
    """Runs the suite through a flow of the plugin; returns pytest's exit code."""
    spec = importlib.util.find_spec("executorch.backends.test.suite.operators")
    assert spec is not None and spec.origin is not None
    select = [] if pattern is None else ["-k", pattern]
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "pytest.ini"
        empty.write_text("[pytest]\n")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--no-header", "-c", str(empty)),
            *("-p", "executorch_wgpu.scripts.conformance_plugin", "-p", "no:cacheprovider"),
            *("--conformance-out", str(out), "-W", "ignore", "--tb=no", "-rN"),
            *("-m", f"flow_{flow}", *select),
            *arguments,
            str(Path(spec.origin).parent),
        ]
        return subprocess.run(command, cwd=folder).returncode


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What the plugin wrote, one dict a subtest."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def summarize(
    rows: Iterable[dict[str, Any]], baseline: Iterable[dict[str, Any]]
) -> dict[str, Line]:
    """One Line an operator, from the rows of our flow and those with nothing delegated."""
    alone = {(row["test"], row["subtest"]): row["result"] for row in baseline}
    lines: dict[str, Line] = defaultdict(Line)
    for row in rows:
        line = lines[row["test"].split("::")[0]]
        left = {op for op in row["on_cpu"] if not any(word in op for word in _QUIET)}
        line.on_cpu |= left
        if row["result"] == "skip":
            line.skipped += 1
        elif row["result"] == "fail":
            if alone.get((row["test"], row["subtest"])) == "fail":
                line.neither += 1
            else:
                line.worse.append(row["test"])
        elif not any(row["delegated"].values()):
            line.none += 1
        elif left:
            line.part += 1
        else:
            line.whole += 1
    return dict(sorted(lines.items()))


def summary(lines: dict[str, Line]) -> str:
    """The sums, as a sentence or three."""
    total = sum(lines.values(), Line())
    return (
        f"{total.passed} cases pass: {total.whole} delegated as a whole, {total.part} in part, "
        f"{total.none} with nothing delegated. {len(total.worse)} fail that pass with nothing "
        f"delegated. {total.neither} fail either way, and {total.skipped} are skipped by the "
        "suite: tests that it has switched off, and those with an operator left over that it knows "
        "ExecuTorch to have no CPU kernel for."
    )


def markdown(lines: dict[str, Line]) -> str:
    """The table, with the sums above it."""
    return f"{summary(lines)}\n\n{by_operator(lines)}"


def folded(lines: dict[str, Line]) -> str:
    """The sums, and the table where a reader asks for it."""
    head = "<details><summary>By operator</summary>"
    return f"{summary(lines)}\n\n{head}\n\n{by_operator(lines)}\n\n</details>"


def by_operator(lines: dict[str, Line]) -> str:
    """The table alone."""
    text = [
        "| tests of | pass | delegated | in part | on CPU | fail | fail either way | skipped "
        "| left on the CPU |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, line in lines.items():
        counts = (line.passed, line.whole, line.part, line.none, len(line.worse))
        cells = [name, *map(str, counts), str(line.neither), str(line.skipped)]
        left = ", ".join(f"`{op.removeprefix('aten::')}`" for op in sorted(line.on_cpu))
        text.append(f"| {' | '.join(cells)} | {left} |")
    return "\n".join(text)


def write_between(path: Path, content: str) -> None:
    """Puts ``content`` between the marks of a Markdown file.

    Raises ValueError where the marks are missing."""
    begin, end = "<!-- conformance: begin -->", "<!-- conformance: end -->"
    text = path.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"{path} has no {begin} ... {end}")
    before, after = text.split(begin)[0], text.split(end)[1]
    path.write_text(f"{before}{begin}\n{content}\n{end}{after}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--filter", "pattern", help="Only tests that match, as pytest -k understands it.")
@click.option("--table", type=click.Path(path_type=Path), help="Markdown file for the table.")
@click.option(
    "--summary", "sums", type=click.Path(path_type=Path), help="One for the sums; table folded."
)
@click.option("--reuse", is_flag=True, help="Run nothing: tables of the last run's results.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=Path("build/conformance"),
    show_default=True,
    help="Folder for wgpu.jsonl and portable.jsonl.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(
    pattern: str | None,
    table: Path | None,
    sums: Path | None,
    reuse: bool,
    results: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run ExecuTorch's operator tests through our delegate. ARGUMENTS go to pytest.

    What fails is run again with nothing delegated. Fails when that passes.
    """
    results = results.absolute()
    results.mkdir(parents=True, exist_ok=True)
    ours, alone = results / "wgpu.jsonl", results / "portable.jsonl"
    if not reuse:
        run_suite("wgpu", pattern, ours, arguments)
        alone.write_text("")
    failed = [row for row in read_rows(ours) if row["result"] == "fail"]
    if failed and not reuse:
        click.echo(f"{len(failed)} failed; the same with nothing delegated:", err=True)
        names = {row["test"].split("::")[1].split("[")[0] for row in failed}
        run_suite("portable", " or ".join(sorted(names)), alone, arguments)
    lines = summarize(read_rows(ours), read_rows(alone))
    text = markdown(lines)
    click.echo(text)
    if table is not None:
        write_between(table, text)
    if sums is not None:
        write_between(sums, folded(lines))
    worse = {test for line in lines.values() for test in line.worse}
    for row in failed:
        if row["test"] in worse:
            click.echo(f"failed: {row['test']}: {row['detail'][:300]}", err=True)
    if worse or not lines:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
