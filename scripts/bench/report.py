"""What ``bench`` found: as a document, and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch_wgpu.scripts import measure
from executorch_wgpu.scripts.console import Console, duration


def build_document(
    subjects: Sequence[measure.Subject], method_name: str, steps: int, warmup: int
) -> dict[str, Any]:
    """Everything that was measured, as plain data; see runtime/profiling/document.py."""
    from executorch_wgpu.runtime.device import capabilities
    from executorch_wgpu.runtime.profiling.document import about_device, document
    from executorch_wgpu.scripts.describe import dispatches_at

    subject = subjects[0]
    device = about_device(subject.plain.device)
    bandwidth = device["copy_bytes_per_s"]
    have = capabilities(subject.plain.device)
    groups = [group.describe(bandwidth) for group in subject.summary.groups]
    return document(
        device,
        groups,
        file=str(subject.file),
        method=method_name,
        scalars=subject.named_scalars,
        steps=steps,
        warmup=warmup,
        load_s=subject.load_s,
        load_parts_s=subject.load_parts,
        dispatches=len(dispatches_at(subject.plain.program, subject.scalars, have)),
        **measure.host_times(subject),
        against=measure.compare(subject, subjects[1]) if len(subjects) > 1 else None,
    )


def print_report(subject: measure.Subject, result: dict[str, Any], everything: bool) -> None:
    """Tables on standard output."""
    from executorch_wgpu.runtime.profiling.tables import notes, tables, without_empty_columns

    console = Console()
    scalars = ", ".join(f"{name} = {value}" for name, value in result["scalars"].items())
    console.line(f"{result['file']}: {result['method']}, {scalars or 'nothing live'}")
    copies = result["device"]["copy_bytes_per_s"]
    console.facts(
        [
            ("adapter", result["device"]["adapter"]),
            *([("copies at", f"{copies / 1e9:,.1f} GB/s")] if copies else []),
            ("load", f"{duration(result['load_s'])} ({_parts(result['load_parts_s'])})"),
            ("dispatches", f"{result['dispatches']} a call"),
            ("measured", f"{result['steps']} executes after {result['warmup']}, one at a time"),
        ]
    )
    console.line()
    _print_host(console, result)
    if subject.profiled is None:
        console.line("\nNot profiled: no times of dispatches.")
    for group in result["groups"]:
        routes = ", ".join(group["routes"])
        console.heading(f"on the GPU{f', {routes}' if routes else ''}")
        for note in notes(group)[1:]:
            console.line(note)
        for table in map(without_empty_columns, tables(group, everything)):
            if everything:
                console.heading(table.title)
            else:
                console.line()
            console.table(table.columns, table.rows)
    if result["against"] is not None:
        _print_comparison(console, result)


def _parts(seconds: dict[str, float]) -> str:
    return ", ".join(f"{part} {duration(taken)}" for part, taken in seconds.items())


def _print_host(console: Console, result: dict[str, Any]) -> None:
    rows = [
        ("execute", "execute_s"),
        ("  host: encode + submit", "encode_submit_s"),
        ("  wait + read outputs", "wait_read_s"),
        ("execute, profiled", "profiled_execute_s"),
        ("  what profiling adds", "profiling_overhead_s"),
    ]
    keys = ("mean", "p50", "p95", "min")
    console.table(
        ["", *(f"{key}>" for key in keys)],
        (
            (name, *(_time(result[key][which]) for which in keys))
            for name, key in rows
            if key in result
        ),
    )


def _time(seconds: float) -> str:
    return f"-{duration(-seconds)}" if seconds < 0 else duration(seconds)


def _print_comparison(console: Console, result: dict[str, Any]) -> None:
    found = result["against"]
    console.heading(f"{found['file']} over {result['file']}, turn by turn (below 1: faster)")
    rows: list[tuple[str, str, str, dict[str, float] | None]] = [
        ("execute", "", "", found["execute"]),
        ("on the GPU", "", "", found["span"]),
    ]
    kernels = sorted(found["kernels"].items(), key=lambda item: -item[1]["a_ns"])
    for name, pair in kernels:
        times = (duration(pair[key] * 1e-9) if pair[key] else "" for key in ("a_ns", "b_ns"))
        rows.append((f"  {name}", *times, pair["ratio"]))
    console.table(
        ["", "this>", "other>", "ratio p50>", "p5>", "p95>"],
        (
            (name, a, b, *(f"{r[key]:.3f}" if r else "" for key in ("p50", "p5", "p95")))
            for name, a, b, r in rows
        ),
    )
