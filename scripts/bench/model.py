"""Steps of a model, by its ``.pte`` or its dispatch list alone: what decode and prefill cost.

    python -m executorch_wgpu.scripts.bench.llama llama3_2_1b --quantize 4w:32 \\
        --embedding-quantize 4:32 --max-context 4096 --max-seq-len 512 --list 1b.list
    python -m executorch_wgpu.scripts.bench.model 1b.list

The second command needs neither torch nor executorch, nor the weights, which are random then: the
machine that measures gets half a megabyte. A ``.pte`` has its own, and is loaded as users load it:
``loads`` says how long that took. Results are not looked at here; the same kernels are tested with
real numbers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--method", default="forward", show_default=True, help="Of a .pte.")
@click.option("--cold", is_flag=True, help="The system forgets a .pte before it is loaded.")
@click.option("--positions", default="511,2047", show_default=True, help="Of decode steps.")
@click.option("--prompts", default="128,512", show_default=True, help="Lengths of prefills.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A live scalar, or all of a tensor's elements.",
)
@click.option(
    "--steps",
    default=100,
    show_default=True,
    help="Measured steps of decode; of a prefill a fifth of them.",
)
@click.option("--warmup", default=1.0, show_default=True, help="Seconds of steps before them.")
@click.option("--kernels/--no-kernels", default=True, help="Also times by kernel.")
@click.option("--device", help="Part of the adapter's name (see devices).")
@click.option("--json", "json_path", type=_PATH, metavar="PATH", help="Everything as JSON.")
def main(
    file: Path,
    method: str,
    cold: bool,
    positions: str,
    prompts: str,
    settings: tuple[str, ...],
    steps: int,
    warmup: float,
    kernels: bool,
    device: str | None,
    json_path: Path | None,
) -> None:
    """Measure FILE, a .pte or a serialized dispatch list."""
    from executorch_wgpu.runtime.device import resolve_device

    shapes = [(1, int(p)) for p in positions.split(",") if p]
    shapes += [(int(p), 0) for p in prompts.split(",") if p]
    bench = ModelBench(file, resolve_device(device), warmup, settings, method, cold)
    rows = [bench.row(length, position, steps) for length, position in shapes]
    result = {**bench.about(), "rows": rows}
    print_rows(result)
    if kernels:
        result["kernels"] = bench.kernels(shapes)
        print_kernels(result["kernels"])
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


class ModelBench:
    """A method of a ``.pte`` on a device, or a dispatch list filled with random numbers.

    Args:
        file: as ``scripts.bench.llama`` writes it, with or without ``--list``.
        warmup: seconds of steps before those alone and before the others: devices raise their
            clocks under load.
        settings: "NAME=VALUE" of live scalars and tensors.
        method, cold: of a ``.pte``, see :func:`.loading.measure_loads`.
    """

    def __init__(
        self,
        file: Path,
        device: Any,
        warmup: float,
        settings: tuple[str, ...] = (),
        method: str = "forward",
        cold: bool = False,
    ) -> None:
        from executorch_wgpu.scripts.bench.loading import measure_loads, timed_load

        self.file, self.device, self.warmup, self.settings = file, device, warmup, settings
        if file.suffix == ".pte":
            self.graph, self._loads = measure_loads(file, method, device, cold)
            self._make = lambda profile: timed_load(file, method, device, profile)[0]
            self.program = self.graph.program
        else:
            self._load_list(file)

    def _load_list(self, file: Path) -> None:
        from executorch_wgpu.runtime.graph import WebGPUGraph
        from executorch_wgpu.scripts.bench.fill import random_data
        from executorch_wgpu.serialization.reader import deserialize

        self.program = deserialize(file.read_bytes())
        self._make = lambda profile: WebGPUGraph(
            self.device, self.program, random_data(self.program), file.stem, profile=profile
        )
        loads = []
        for what in ("first", "again"):  # the first one goes when the second is there
            begin = time.perf_counter()
            self.graph = self._make(False)
            total = time.perf_counter() - begin
            loads.append({"what": what, "total_s": total, "parts": self.graph.load_seconds})
        self._loads = {"loads": loads}

    def about(self) -> dict[str, Any]:
        """What was measured, and on what. Of several loads ``load_again_s`` is the last."""
        from executorch_wgpu.scripts.bench.about import about

        loads = self._loads["loads"]
        return {
            "file": self.file.name,
            **about(self.device),
            **self._loads,
            "load_s": loads[0]["total_s"],
            "load_again_s": loads[-1]["total_s"],
            "gpu_bytes": sum(self.graph.allocated().values()),
        }

    def inputs(self, length: int, position: int) -> list[Any]:
        """Arguments of a step."""
        from executorch_wgpu.scripts.measure import random_inputs

        scalars = self._scalars(length, position)
        return random_inputs(self.program, scalars, settings=self.settings)

    def _scalars(self, length: int, position: int) -> list[int]:
        from executorch_wgpu.scripts.measure import choose_scalars

        return choose_scalars(self.program, length, position, self.settings)

    def row(self, length: int, position: int, steps: int) -> dict[str, Any]:
        """One setting: a step alone with its results on the host; of it the time until it is
        submitted, the GPU's time in one pass and the process's CPU time; and steps one behind the
        other with none read back, three in flight, each fed the last one's output where the program
        feeds back (on Dawn the queue runs dry every third step, for it is waited for as a whole).
        Milliseconds: medians, of CPU time the mean, of steps in flight the least mean of three
        rounds."""
        from executorch_wgpu.runtime.device import capabilities
        from executorch_wgpu.scripts.describe import dispatches_at

        inputs = self.inputs(length, position)
        steps = steps if length == 1 else max(5, steps // 5)
        self._warm(lambda: self.graph.execute(inputs))
        begin = time.process_time()
        alone = [_timed(lambda: self.graph.execute(inputs)) for _ in range(steps)]
        cpu = (time.process_time() - begin) / steps
        self._warm(lambda: self.graph.execute(inputs, outputs=()))
        scalars = self._scalars(length, position)
        dispatches = dispatches_at(self.program, scalars, capabilities(self.device))
        gpu = self._one_pass(inputs, min(steps, 20))
        encode = [_timed(lambda: self._submit_and_wait(inputs)) for _ in range(steps)]
        return {
            "length": length,
            "position": position,
            "dispatches": len(dispatches),
            "alone_ms": statistics.median(alone),
            "cpu_ms": cpu * 1e3,
            "gpu_ms": gpu,
            "submit_ms": statistics.median(encode),
            "step_ms": min(self._in_flight(self._fed(inputs, length), steps) for _ in range(3)),
        }

    def _one_pass(self, inputs: Sequence[Any], repeats: int) -> float | None:
        """Milliseconds on the GPU, None where it has no timestamps."""
        from executorch_wgpu.runtime.profiling.one_pass import OnePass

        if "timestamp-query" not in self.device.features:
            return None
        one_pass = OnePass(self.graph)
        return statistics.median(one_pass.measure(inputs) for _ in range(repeats)) / 1e6

    def _fed(self, inputs: Sequence[Any], length: int) -> list[Any]:
        """The inputs, with the last step's outputs where a step of one position may take them."""
        from executorch_wgpu.runtime.boundary import FED_BACK

        fed = {pair.input for pair in self.program.feedback} if length == 1 else set()
        return [FED_BACK if i in fed else value for i, value in enumerate(inputs)]

    def _submit_and_wait(self, inputs: Sequence[Any]) -> float:
        begin = time.perf_counter()
        pending = self.graph.submit(inputs, outputs=())
        spent = time.perf_counter() - begin
        pending.result()
        return spent * 1e3

    def _in_flight(self, inputs: Sequence[Any], steps: int) -> float:
        """Milliseconds a step, steps being encoded while others run."""
        waiting: list[Any] = []
        begin = time.perf_counter()
        for _ in range(steps):
            waiting.append(self.graph.submit(inputs, outputs=()))
            if len(waiting) > 2:
                waiting.pop(0).result()
        for pending in waiting:
            pending.result()
        return (time.perf_counter() - begin) / steps * 1e3

    def _warm(self, step: Callable[[], Any]) -> None:
        end = time.perf_counter() + self.warmup
        step()
        step()
        while time.perf_counter() < end:
            step()

    def kernels(self, settings: Sequence[tuple[int, int]], steps: int = 7) -> list[dict[str, Any]]:
        """Device time by kernel. Every dispatch is in a pass of its own here, which adds some
        microseconds to each: shares are to be read, not sums."""
        graph = self._make(True)
        found = []
        for length, position in settings:
            inputs = self.inputs(length, position)
            self._warm(partial(self.graph.execute, inputs, outputs=()))
            times: dict[str, list[float]] = {}
            spans = []
            for _ in range(steps):
                graph.execute(inputs, outputs=())
                profile = graph.last_profile()
                if profile is None:
                    return []
                spans.append(profile.span_ns / 1e6)
                for dispatch in profile.dispatches:
                    times.setdefault(_kind(dispatch.label), []).append(dispatch.duration_ns / 1e3)
            rows = [
                {
                    "kernel": kind,
                    "dispatches": len(values) // steps,
                    "median_us": statistics.median(values),
                    "total_ms": sum(values) / steps / 1e3,
                }
                for kind, values in times.items()
            ]
            rows.sort(key=lambda row: -row["total_ms"])
            found.append(
                {
                    "length": length,
                    "position": position,
                    "span_ms": statistics.median(spans),
                    "rows": rows,
                }
            )
        return found


def _timed(call: Callable[[], Any]) -> float:
    """Milliseconds that ``call`` takes, or what it says it took."""
    begin = time.perf_counter()
    result = call()
    return result if isinstance(result, float) else (time.perf_counter() - begin) * 1e3


def _kind(label: str) -> str:
    """A label without the number of its layer."""
    path, _, name = label.rpartition("/")
    return "/".join([*(".".join(p for p in path.split(".") if not p.isdigit()),), name])


def print_rows(result: dict[str, Any]) -> None:
    """The rows, for people."""
    from executorch_wgpu.scripts.bench.loading import print_loads
    from executorch_wgpu.scripts.console import Console, size

    console = Console()
    console.line(f"{result['file']} on {result['adapter']} {result['driver']}")
    console.line(
        f"{result['implementation']} {result['implementation_version']}, "
        f"{size(result['gpu_bytes'])} on the GPU"
    )
    print_loads(result)
    columns = ("step", "dispatches", "alone ms", "CPU ms", "to submit ms", "GPU ms", "in flight ms")
    console.table(
        (*columns, "tokens/s"),
        [
            (
                f"decode at {r['position']}" if r["length"] == 1 else f"prefill of {r['length']}",
                r["dispatches"],
                f"{r['alone_ms']:.3f}",
                f"{r['cpu_ms']:.3f}",
                f"{r['submit_ms']:.3f}",
                "-" if r["gpu_ms"] is None else f"{r['gpu_ms']:.3f}",
                f"{r['step_ms']:.3f}",
                f"{r['length'] * 1e3 / r['step_ms']:,.0f}",
            )
            for r in result["rows"]
        ],
    )


def print_kernels(found: Sequence[dict[str, Any]]) -> None:
    """Times by kernel, for people."""
    from executorch_wgpu.scripts.console import Console

    console = Console()
    for setting in found:
        console.line(
            f"\n{setting['length']} at {setting['position']}: {setting['span_ms']:.2f} ms, every "
            "dispatch in a pass of its own"
        )
        console.table(
            ("kernel", "dispatches", "median us", "total ms"),
            [
                (r["kernel"], r["dispatches"], f"{r['median_us']:.2f}", f"{r['total_ms']:.3f}")
                for r in setting["rows"][:12]
            ],
        )


if __name__ == "__main__":
    main()
