"""``executorch-wgpu bench``: what one execute costs. Needs no torch."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--method", "method_name", default="forward", show_default=True, metavar="NAME")
@click.option("--steps", default=50, show_default=True, help="Measured executes.")
@click.option("--warmup", default=5, show_default=True, help="Executes before them.")
@click.option("--seq-len", default=1, show_default=True, help="Every live size of an input.")
@click.option(
    "--input-pos", default=0, show_default=True, help="Every live int or element of an input."
)
@click.option("--set", "settings", multiple=True, metavar="SCALAR=VALUE", help="One live scalar.")
@click.option("--device", help="Part of the adapter's name (see devices).")
@click.option("--device-time", is_flag=True, help="Time every dispatch on the device, too.")
@click.option("--json", "as_json", is_flag=True, help="The numbers as JSON.")
def bench(
    file: Path,
    method_name: str,
    steps: int,
    warmup: int,
    seq_len: int,
    input_pos: int,
    settings: tuple[str, ...],
    device: str | None,
    device_time: bool,
    as_json: bool,
) -> None:
    """Measure what one execute costs.

    A method of FILE, a .pte, is executed over and over on random inputs. Live scalars that are
    out of their bounds are moved to the nearest bound; nothing is initialised between executes,
    so states hold what earlier ones left."""
    from executorch_wgpu.runtime import Runtime
    from executorch_wgpu.runtime.device import capabilities
    from executorch_wgpu.scripts.describe import dispatches_at

    if steps < 1:
        raise click.BadParameter("at least 1", param_hint="--steps")
    loading = time.perf_counter()
    # Without profiling, whatever the environment says: its commands cost more.
    program = Runtime.get().load_program(file, device=device, profile=False)
    graph = _load(program, method_name)
    loading = time.perf_counter() - loading
    scalars = choose_scalars(graph.program, seq_len, input_pos, settings)
    inputs = random_inputs(graph.program, scalars)
    result = {
        "file": str(file),
        "method": method_name,
        "adapter": graph.device.adapter.summary,
        "scalars": {s.name: v for s, v in zip(graph.program.symints, scalars, strict=True)},
        "load_s": loading,
        "dispatches": len(dispatches_at(graph.program, scalars, capabilities(graph.device))),
        **measure(graph, inputs, steps, warmup),
    }
    if device_time:
        program = Runtime.get().load_program(file, device=device, profile=True)
        profiled = _load(program, method_name)
        result["device_time"] = measure_device(profiled, inputs, max(steps // 5, 3))
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result)


def _load(program: Any, method_name: str) -> Any:
    """The graph of a method, ready to run."""
    graph = program.load_method(method_name).graph
    if graph is None:
        raise click.ClickException(f"method {method_name!r} computes nothing: it is all constants")
    return graph


# -- inputs ----------------------------------------------------------------------------------


def choose_scalars(
    program: Any, seq_len: int, input_pos: int, settings: tuple[str, ...]
) -> list[int]:
    """A value for each live scalar of a dispatch list: sizes, positions, then single settings.

    Raises click.BadParameter for a setting that names none or is out of bounds.
    """
    from executorch_wgpu.scripts.describe import scalars_at

    scalars = scalars_at(program, seq_len, input_pos)
    names = [symint.name for symint in program.symints]
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in names or not text.lstrip("-").isdigit():
            raise click.BadParameter(
                f"{setting!r}: expected NAME=VALUE with one of {', '.join(names) or 'no names'}",
                param_hint="--set",
            )
        position, value = names.index(name), int(text)
        symint = program.symints[position]
        if not symint.lo <= value <= symint.hi:
            raise click.BadParameter(
                f"{setting!r} is outside {symint.lo}..{symint.hi}", param_hint="--set"
            )
        scalars[position] = value
    return scalars


def random_inputs(program: Any, scalars: list[int], seed: int = 0) -> list[Any]:
    """Arguments for a dispatch list at these live scalars: normal floats, and zeros for integers,
    which may be indices into something."""
    import numpy as np

    from executorch_wgpu.serialization.dispatch_list import SymSource, ValueKind
    from executorch_wgpu.serialization.expressions import evaluate

    dtypes = {"f32": "float32", "f16": "float16", "bf16": "uint16", "i32": "int32", "i64": "int64"}
    generator = np.random.default_rng(seed)
    values = evaluate(program.exprs, scalars)
    inputs: list[Any] = []
    for spec in program.inputs:
        if spec.kind is ValueKind.INT:
            inputs.append(0 if spec.index < 0 else scalars[spec.index])
            continue
        tensor = program.tensors[spec.index]
        shape = [values[index] for index in tensor.shape]
        dtype = dtypes.get(tensor.dtype.name.lower(), "bool")
        floats = generator.standard_normal(shape, np.float32)
        if dtype == "uint16":  # bfloat16 by its bits: the upper half of an f32
            inputs.append((floats.view(np.uint32) >> 16).astype(np.uint16))
        elif dtype.startswith("float"):
            inputs.append(floats.astype(dtype))
        else:
            inputs.append(np.zeros(shape, dtype))
    for symint, value in zip(program.symints, scalars, strict=True):
        if symint.source is SymSource.TENSOR_ELEMENT:
            inputs[symint.input].flat[symint.index] = value
    return inputs


# -- measuring -------------------------------------------------------------------------------


def measure(graph: Any, inputs: list[Any], steps: int, warmup: int) -> dict[str, Any]:
    """Wall time of executes one after the other, and how it splits: on the host until the work
    is handed to the driver, and from there until the outputs are read."""
    whole, host = [], []
    for step in range(warmup + steps):
        begin = time.perf_counter()
        pending = graph.submit(inputs)
        submitted = time.perf_counter()
        pending.result()
        end = time.perf_counter()
        if step >= warmup:
            whole.append(end - begin)
            host.append(submitted - begin)
    return {
        "steps": steps,
        "execute_s": spread(whole),
        "encode_submit_s": spread(host),
        "wait_read_s": spread([a - b for a, b in zip(whole, host, strict=True)]),
    }


def spread(values: list[float]) -> dict[str, float]:
    """The median, the 95th percentile and the least of some values."""
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))],
        "least": ordered[0],
    }


def measure_device(graph: Any, inputs: list[Any], steps: int) -> dict[str, Any] | None:
    """Times of every dispatch on the device, medians over some steps; None where the device has
    no timestamps."""
    totals, durations = [], []
    for _ in range(steps + 1):
        graph.execute(inputs)
        last = graph.last_profile()
        if last is None:
            return None
        totals.append(last.span_ns)
        durations.append([record.duration_ns for record in last])
    medians = [statistics.median(column) for column in zip(*durations[1:], strict=True)]
    return {
        "steps": steps,
        "total_ns": spread(totals[1:]),
        "dispatches": [
            {
                "label": record.label,
                "route": record.route,
                "ns": ns,
                "grid": list(record.global_workgroups),
            }
            for record, ns in zip(last, medians, strict=True)
        ],
    }


# -- text ------------------------------------------------------------------------------------


def _print(result: dict[str, Any]) -> None:
    from executorch_wgpu.scripts.console import Console, duration

    console = Console()
    scalars = ", ".join(f"{name} = {value}" for name, value in result["scalars"].items())
    console.line(f"{result['file']}: {result['method']}, {scalars or 'nothing live'}")
    console.facts(
        [
            ("adapter", result["adapter"]),
            ("load", duration(result["load_s"])),
            ("dispatches", f"{result['dispatches']} a call"),
            ("measured", f"{result['steps']} executes, one after the other"),
        ]
    )
    console.line()
    console.table(
        ["", "median>", "p95>", "least>"],
        (
            (name, *(duration(result[key][which]) for which in ("median", "p95", "least")))
            for name, key in (
                ("execute", "execute_s"),
                ("  host: encode + submit", "encode_submit_s"),
                ("  wait + read outputs", "wait_read_s"),
            )
        ),
    )
    if "device_time" not in result:
        return
    profile = result["device_time"]
    if profile is None:
        console.line("\nThe device has no timestamps: no times of dispatches.")
        return
    total = profile["total_ns"]["median"]
    console.heading(f"on the device: {duration(total * 1e-9)}, each dispatch in its own pass")
    console.table(
        ["label", "route", "grid", "median>", "share>"],
        (
            (
                entry["label"],
                entry["route"],
                " x ".join(str(n) for n in entry["grid"]),
                duration(entry["ns"] * 1e-9),
                f"{entry['ns'] / total:.0%}" if total else None,
            )
            for entry in profile["dispatches"]
        ),
    )
