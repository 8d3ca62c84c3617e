"""A trace for Perfetto and ``chrome://tracing``: JSON in the Trace Event format.

Two processes: the host with its phases, and the GPU with one slice a dispatch, a track for those
that ran beside others, and a track that shows the modules around them.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..query_pool import ShaderDuration
from .records import StepProfile, gpu_offset_ns
from .summary import module_paths

Event: TypeAlias = dict[str, Any]

_HOST, _GPU = 1, 2
_MODULES = 1  #: thread of the GPU's modules; dispatches are on the ones after it


def trace_events(steps: Sequence[StepProfile]) -> list[Event]:
    """The events of these steps, ordered by time; slices of one thread nest."""
    origin = min((step.host[0].start_ns for step in steps if step.host), default=0)
    slices: list[Event] = []
    lanes = _Lanes()
    modules = _Modules()
    for step in steps:
        slices += _host(step, origin)
        offset = gpu_offset_ns(step) - origin
        for p in step.passes:
            start, end = p.start_ns + offset, p.end_ns + offset
            slices.append(
                _slice(p.label, _GPU, lanes.place(start, end), start, end, _args(step, p))
            )
        slices += modules.of(step, offset)
    slices.sort(key=_outer_first)
    names = [
        _name(_HOST, None, "host"),
        _name(_HOST, 1, "execute"),
        _name(_GPU, None, "GPU"),
        _name(_GPU, _MODULES, "modules"),
        *(
            _name(_GPU, _MODULES + 1 + i, "dispatches" if i == 0 else f"dispatches beside, {i}")
            for i in range(lanes.count)
        ),
    ]
    return names + slices


def write_trace(
    path: str | os.PathLike[str], steps: Sequence[StepProfile], about: Mapping[str, Any]
) -> None:
    """Writes the trace; compressed where ``path`` ends in ``.gz``.

    Args:
        about: texts and numbers that tools show as the trace's metadata.

    Raises:
        OSError: it cannot be written.
    """
    document = {
        "traceEvents": trace_events(steps),
        "displayTimeUnit": "ns",
        "otherData": {
            **about,
            "clocks": "GPU times are shifted so that a step's last pass ends with the host's wait",
        },
    }
    data = json.dumps(document).encode()
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def _name(pid: int, tid: int | None, text: str) -> Event:
    """Metadata: the name of a process or of one of its threads."""
    what = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "name": what, "pid": pid, "tid": tid or 0, "ts": 0, "args": {"name": text}}


def _slice(
    name: str, pid: int, tid: int, start_ns: float, end_ns: float, args: Mapping[str, Any]
) -> Event:
    # Microseconds from the integers of both ends, so that neighbours meet exactly.
    start, end = round(start_ns), max(round(start_ns), round(end_ns))
    return {
        "ph": "X",
        "cat": "gpu" if pid == _GPU else "host",
        "name": name or "(unnamed)",
        "pid": pid,
        "tid": tid,
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": dict(args),
    }


def _outer_first(event: Event) -> tuple[float, float, int]:
    """By time; of slices that begin and end together, the one that is around the other first."""
    return event["ts"], -event["dur"], len(event["args"].get("module", ""))


def _host(step: StepProfile, origin: int) -> Iterable[Event]:
    if not step.host:
        return
    args = {"step": step.number, **dict(step.scalars)}
    start, end = step.host[0].start_ns - origin, step.host[-1].end_ns - origin
    yield _slice(f"execute {step.method}", _HOST, 1, start, end, args)
    for phase in step.host:
        yield _slice(phase.name, _HOST, 1, phase.start_ns - origin, phase.end_ns - origin, {})


def _args(step: StepProfile, p: ShaderDuration) -> dict[str, Any]:
    args: dict[str, Any] = {"step": step.number, "kind": p.kind, "kernel": p.kernel_name}
    if p.kind == "dispatch":
        args |= {
            "operator": p.op,
            "module": p.module_path,
            "route": p.route,
            "grid": " x ".join(map(str, p.global_workgroups)),
            "workgroup": " x ".join(map(str, p.local_workgroup_size)),
            "id": p.delegate_id,
        }
        if p.debug_handle >= 0:
            args["debug_handle"] = p.debug_handle
    args["bindings"] = list(p.bindings)
    if p.bytes is not None:
        args["bytes"] = p.bytes
    if p.bytes_per_s is not None:
        args["GB/s"] = round(p.bytes_per_s / 1e9, 3)
    if p.flops is not None:
        args["flops"] = p.flops
    if p.flops_per_s is not None:
        args["GFLOP/s"] = round(p.flops_per_s / 1e9, 3)
    if p.flags:
        args["flags"] = ", ".join(p.flags)
    return args


class _Lanes:
    """Threads for slices of which none may overlap on its thread."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    @property
    def count(self) -> int:
        return len(self._ends)

    def place(self, start_ns: float, end_ns: float) -> int:
        """The thread for a slice."""
        start, end = round(start_ns), max(round(start_ns), round(end_ns))
        for lane, reach in enumerate(self._ends):
            if reach <= start:
                self._ends[lane] = end
                return _MODULES + 1 + lane
        self._ends.append(end)
        return _MODULES + len(self._ends)


class _Modules:
    """Slices of modules around the dispatches that follow one another in them."""

    def __init__(self) -> None:
        self._reach = 0.0

    def of(self, step: StepProfile, offset: float) -> list[Event]:
        slices: list[Event] = []
        open_: list[tuple[str, float]] = []  # path, start

        def close(depth: int) -> None:
            while len(open_) > depth:
                path, start = open_.pop()
                name = path.removeprefix(f"{open_[-1][0]}.") if open_ else path
                args = {"step": step.number, "module": path}
                slices.append(_slice(name, _GPU, _MODULES, start, self._reach, args))

        for p in step.dispatches:
            start = max(p.start_ns + offset, self._reach)
            paths = module_paths(p.module_path)
            common = 0
            for (path, _), wanted in zip(open_, paths, strict=False):
                if path != wanted:
                    break
                common += 1
            close(common)
            open_ += [(path, start) for path in paths[common:]]
            self._reach = max(start, p.end_ns + offset)
        close(0)
        return slices
