"""How long a method of a ``.pte`` takes to load: first and again, by part. Needs no torch."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

_CHUNK = 8 << 20


def timed_load(
    file: Path, method: str = "forward", device: Any = None, profile: bool = False
) -> tuple[Any, dict[str, float]]:
    """Load a method. ``device``: as ``Runtime.load_program`` takes it.

    Returns:
        The method's graph, and seconds by part: "device" (the adapter and the device, where there
        were none), "file" (mapped; its tables and the dispatch list read), then those of
        :attr:`.WebGPUGraph.load_seconds`. What of the file is not in memory is read when it is
        first touched, which for weights is while "buffers" are filled.

    Raises click.ClickException where there is nothing to run, and what loading raises.
    """
    from executorch_wgpu.runtime import Runtime
    from executorch_wgpu.runtime.device import resolve_device
    from executorch_wgpu.runtime.laps import Laps

    laps = Laps()
    device = resolve_device(device)
    laps.mark("device")
    program = Runtime.get().load_program(file, device=device, profile=profile)
    program.metadata(method)
    laps.mark("file")
    graph = program.load_method(method).graph
    if graph is None:
        raise click.ClickException(f"method {method!r} computes nothing: it is all constants")
    return graph, laps.seconds | graph.load_seconds


def measure_loads(
    file: Path, method: str = "forward", device: Any = None, cold: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Load a method three times.

    Args:
        cold: have the system forget the file before the first, see :func:`forget`.

    Returns:
        The last graph, and ``{"file_bytes", "cold", "read_s", "loads"}``. ``read_s``: reading the
        whole file, forgotten before if ``cold``: what the first load cannot do without. ``loads``:
        a ``{"what", "total_s", "parts"}`` each: the first; one beside it, which shares its device,
        constants and pipelines, as a second method of a file does; one after both are gone, which
        makes all of them anew but the device. What the driver has compiled it keeps.
    """
    if cold:
        forget(file)
    begin = time.perf_counter()
    size = _read(file)
    read_s = time.perf_counter() - begin
    found: dict[str, Any] = {"file_bytes": size, "cold": cold, "read_s": read_s, "loads": []}
    if cold:
        forget(file)

    def load(what: str, on: Any) -> Any:
        begin = time.perf_counter()
        graph, parts = timed_load(file, method, on)
        total = time.perf_counter() - begin
        found["loads"].append({"what": what, "total_s": total, "parts": parts})
        return graph

    first = load("first", device)
    used = first.device
    beside = load("again, beside it", used)
    del first, beside
    gc.collect()
    return load("again, after both", used), found


def forget(file: Path) -> None:
    """Have the system drop its copy of a file that is on disk (Linux; not all file systems do).

    Raises click.UsageError where there is no way to ask for that.
    """
    if not hasattr(os, "posix_fadvise"):
        raise click.UsageError("--cold: this system cannot be asked to forget a file")
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())  # what is not written yet stays
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(file: Path) -> int:
    buffer, size = bytearray(_CHUNK), 0
    with open(file, "rb", buffering=0) as opened:
        while count := opened.readinto(buffer):
            size += count
    return size


def print_loads(found: dict[str, Any]) -> None:
    """A table, for people."""
    from executorch_wgpu.scripts.console import Console, duration, size

    console = Console()
    loads: Sequence[dict[str, Any]] = found["loads"]
    if "read_s" in found:
        rate = found["file_bytes"] / max(found["read_s"], 1e-9) / 1e9
        how = "forgotten before" if found["cold"] else "as it lay"
        console.line(
            f"the file, {size(found['file_bytes'])}, {how}: read in {duration(found['read_s'])}, "
            f"{rate:.1f} GB/s"
        )
    parts = list(dict.fromkeys(part for load in loads for part in load["parts"]))
    console.table(
        ("load", "in all>", *(f"{part}>" for part in parts)),
        [
            (
                load["what"],
                duration(load["total_s"]),
                *(duration(load["parts"].get(part, 0.0)) for part in parts),
            )
            for load in loads
        ],
    )
