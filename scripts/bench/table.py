"""The table of docs/PERFORMANCE.md in one run: Llama-3.2-1B's shape beside its goals.

    L="python -m executorch_wgpu.scripts.bench.llama llama3_2_1b --max-context 4096"
    L="$L --max-seq-len 512"
    Q="--quantize 4w:32 --embedding-quantize 4:32"
    $L $Q --list lists/q4.list
    $L $Q --method generate --list lists/q4_generate.list
    $L $Q --kv-dtype f16 --list lists/q4_f16_kv.list
    $L --kv-dtype f16 --list lists/f16.list
    python -m executorch_wgpu.scripts.bench.table lists --json table.json

The lists are made where torch and executorch are; the last command wants wgpu, and torch for rows
of kernels. A list that is not there leaves its rows out. After each row the JSON is written anew,
so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

logger = logging.getLogger("executorch_wgpu")

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)

GREEDY = ("top_k=1", "temperature=0")


@dataclass(frozen=True)
class Target:
    """A row: what is measured, in which ``unit``, and what is to be reached: at least where the
    unit is tokens/s, else at most."""

    what: str
    unit: str
    goal: float

    def reached(self, value: float) -> bool:
        return value >= self.goal if self.unit == "tokens/s" else value <= self.goal


@dataclass(frozen=True)
class ModelTarget(Target):
    """``length`` tokens at ``position`` of the list ``file``. ``figure``: of
    :meth:`.ModelBench.row`, or ``tokens_s``: those of ``step_ms``."""

    file: str
    length: int
    position: int
    figure: str = "tokens_s"
    settings: tuple[str, ...] = ()


MODEL = (
    ModelTarget("decode, 4-bit, f32 KV, at 511", "tokens/s", 1050, "q4", 1, 511),
    ModelTarget("the same at 2,047", "tokens/s", 900, "q4", 1, 2047),
    ModelTarget("one step alone, logits on the host", "ms", 1.5, "q4", 1, 511, "alone_ms"),
    ModelTarget("the host's part: until it is submitted", "ms", 0.5, "q4", 1, 511, "submit_ms"),
    ModelTarget("dispatches of a step", "", 114, "q4", 1, 511, "dispatches"),
    ModelTarget("prefill of 128, 4-bit", "ms", 12, "q4", 128, 0, "step_ms"),
    ModelTarget("prefill of 512, 4-bit", "ms", 30, "q4", 512, 0, "step_ms"),
    ModelTarget(
        "decode, greedy, fed back, at 511",
        "tokens/s",
        1050,
        "q4_generate",
        1,
        511,
        "tokens_s",
        GREEDY,
    ),
    ModelTarget("the same at 2,047", "tokens/s", 900, "q4_generate", 1, 2047, "tokens_s", GREEDY),
    ModelTarget("decode, 4-bit, f16 KV, at 2,047", "tokens/s", 950, "q4_f16_kv", 1, 2047),
    ModelTarget("decode, f16 weights and KV, at 511", "tokens/s", 880, "f16", 1, 511),
    ModelTarget("the same at 2,047", "tokens/s", 800, "f16", 1, 2047),
)

#: Case of scripts.bench.kernels -> microseconds in a row.
KERNELS = {
    "linear q4 1 x 2048 x 2048": 4.5,
    "linear q4 1 x 8192 x 2048": 8.5,
    "linear q4 1 x 2048 x 8192": 9,
    "linear q4 1 x 128256 x 2048": 60,
    "linear f16 1 x 2048 x 2048": 5.7,
    "linear f16 1 x 8192 x 2048": 8.7,
    "linear f16 1 x 2048 x 8192": 13.1,
    "linear f16 1 x 128256 x 2048": 128,
    "linear q4 128 x 8192 x 2048": 110,
    "linear f32 128 x 8192 x 2048": 110,
    "attention f32 1 at 511": 14,
    "attention f32 1 at 2047": 25,
    "attention f16 1 at 511": 12,
    "attention f16 1 at 2047": 16,
    "attention f32 128 at 0": 45,
}

LOADS = {
    "first": Target("load of the file, first", "s", 3),
    "again, after both": Target("load of the file, again", "s", 1.5),
}


@click.command()
@click.argument("lists", type=_FOLDER)
@click.option("--pte", type=_FILE, help="A file whose loading is measured, too.")
@click.option("--kernels/--no-kernels", default=True, help="Kernels alone (needs torch).")
@click.option("--warmup", default=1.0, show_default=True, help="Seconds, see scripts.bench.model.")
@click.option("--steps", default=100, show_default=True, help="Of decode; a fifth of prefill.")
@click.option(
    "--seconds", default=500.0, show_default=True, help="Rows begun after that are left out."
)
@click.option("--device", help="Part of the adapter's name (see devices).")
@click.option("--json", "json_path", type=_OUT, metavar="PATH", help="Everything as JSON.")
def main(
    lists: Path,
    pte: Path | None,
    kernels: bool,
    warmup: float,
    steps: int,
    seconds: float,
    device: str | None,
    json_path: Path | None,
) -> None:
    """Fill the table from the dispatch lists in LISTS."""
    from executorch_wgpu.runtime.device import resolve_device
    from executorch_wgpu.scripts.bench.about import about
    from executorch_wgpu.scripts.console import Console

    used = resolve_device(device)
    console = Console()
    result: dict[str, Any] = {**about(used), "warmup_s": warmup, "steps": steps, "rows": []}
    console.line(f"{used.adapter.summary}; {result['implementation_version']}")
    end = time.monotonic() + seconds
    sources: list[Iterator[tuple[Target, Callable[[], tuple[float, Any]]]]] = []
    if pte is not None:
        sources.append(_load_rows(pte, used))
    sources.append(_model_rows(lists, used, warmup, steps))
    if kernels:
        sources.append(_kernel_rows(used))
    for source in sources:
        for target, measure in source:
            if time.monotonic() > end:
                console.line(f"{target.what:44s} left out: {seconds:.0f} s have gone")
                continue
            try:
                value, more = measure()
            except Exception as error:  # the other rows are worth having
                logger.exception("%s", target.what)
                console.line(f"{target.what:44s} failed: {error}")
                continue
            row = {"what": target.what, "unit": target.unit, "value": value, "goal": target.goal}
            result["rows"].append({**row, "reached": target.reached(value), "measured": more})
            said = "" if target.reached(value) else "  not reached"
            console.line(
                f"{target.what:44s} {value:10,.2f} {target.unit:9s} goal {target.goal:7,g}{said}"
            )
            if json_path is not None:
                json_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


_Rows = Iterator[tuple[Target, Callable[[], tuple[float, Any]]]]


def _load_rows(file: Path, device: Any) -> _Rows:
    """Loads of a ``.pte``."""
    from executorch_wgpu.scripts.bench.loading import measure_loads

    found: dict[str, Any] = {}
    for what, target in LOADS.items():

        def measure(what: str = what) -> tuple[float, Any]:
            if not found:
                found.update(measure_loads(file, device=device)[1])
            load = next(load for load in found["loads"] if load["what"] == what)
            return load["total_s"], load

        yield target, measure


def _model_rows(folder: Path, device: Any, warmup: float, steps: int) -> _Rows:
    """Steps of models: each list is loaded, and each step measured, once."""
    from executorch_wgpu.scripts.bench.model import ModelBench

    bench: Any = None
    loaded: tuple[Any, ...] = ()
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for target in MODEL:
        file = folder / f"{target.file}.list"
        if not file.is_file():
            logger.info("%s: there is no %s", target.what, file)
            continue

        def measure(target: ModelTarget = target, file: Path = file) -> tuple[float, Any]:
            nonlocal bench, loaded
            if loaded != (file, target.settings):
                bench = None  # its memory goes before the next one comes
                bench = ModelBench(file, device, warmup, target.settings)
                loaded = (file, target.settings)
                rows.clear()
            step = (target.length, target.position)
            if step not in rows:
                rows[step] = bench.row(*step, steps)
            row = rows[step]
            figures = {**row, "tokens_s": target.length * 1e3 / row["step_ms"]}
            return figures[target.figure], row

        yield target, measure


def _kernel_rows(device: Any) -> _Rows:
    """Kernels in a row."""
    from executorch_wgpu.scripts.bench.kernels import KernelBench, cases

    bench = KernelBench(device, 9)
    for name, goal in KERNELS.items():

        def measure(name: str = name) -> tuple[float, Any]:
            (case,) = cases(1, 120_000_000, lambda other: other == name)
            row = bench.row(case)
            return row["in_a_row_us"], row

        yield Target(name, "us", goal), measure


if __name__ == "__main__":
    main()
