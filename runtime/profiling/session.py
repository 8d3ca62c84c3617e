"""Profiling that the environment asked for: ``WEBGPU_TIMESTAMP_QUERY``.

``1`` prints one table a method on stderr when the process ends. A path (whatever holds a dot or a
separator, such as ``trace.json.gz``) also gets the trace of the last steps.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TextIO

from .document import about_device
from .records import StepProfile
from .summary import Summary
from .tables import as_text, notes, tables, us
from .trace import write_trace

if TYPE_CHECKING:
    from .profiler import Profiler

logger = logging.getLogger("executorch_wgpu")

#: Steps that a trace holds.
TRACE_STEPS = 100

_OVERHEAD = (
    "Each dispatch ran in a pass of its own, which costs time on both sides: "
    "`executorch-wgpu bench` measures the same method with and without."
)


def trace_path(value: str) -> str | None:
    """The path in the environment variable's value, None for a mere switch such as ``1``."""
    return value if any(mark in value for mark in {".", "/", os.sep}) else None


class Session:
    """What the profilers of one process found.

    Args:
        value: of the environment variable.
    """

    def __init__(self, value: str) -> None:
        self.path = trace_path(value)
        self._lock = threading.Lock()
        self._summaries: dict[tuple[str, int], Summary] = {}
        self._programs: list[Any] = []  # kept, so that their ids stay their own
        self._devices: list[dict[str, Any]] = []
        self._steps: deque[StepProfile] = deque(maxlen=TRACE_STEPS)

    def join(self, profiler: Profiler) -> None:
        """Collect what this profiler finds. Graphs of one program under one label are one
        method."""
        about = about_device(profiler.device)
        key = (profiler.label, id(profiler.program))
        with self._lock:
            if about not in self._devices:
                self._devices.append(about)
            if key not in self._summaries:
                self._programs.append(profiler.program)
                self._summaries[key] = Summary(warmup=1)
            summary = self._summaries[key]

        def collect(step: StepProfile) -> None:
            with self._lock:
                summary.add(step)
                if self.path is not None:
                    self._steps.append(step)

        profiler.on_step = collect

    def report(self, file: TextIO) -> None:
        """One table a method and way through it, on ``file``; then the trace. Nothing when nothing
        ran."""
        with self._lock:
            summaries, steps = dict(self._summaries), list(self._steps)
        groups = [group for summary in summaries.values() for group in summary.groups]
        if not groups:
            return
        bandwidth = self._devices[-1]["copy_bytes_per_s"] if len(self._devices) == 1 else None
        for about in self._devices:
            copies = about["copy_bytes_per_s"]
            rate = f", copies at {copies / 1e9:,.1f} GB/s" if copies else ""
            print(f"\n{about['adapter']}{rate}", file=file)
        for group in groups:
            described = group.describe(bandwidth)
            routes = ", ".join(described["routes"])
            print(f"\n== {described['method']}{f' ({routes})' if routes else ''}", file=file)
            print("\n".join(notes(described)), file=file)
            for table in tables(described, everything=False):
                print(f"\n{as_text(table)}", file=file)
            total = described["totals"]["span_ns"]
            print(f"\n{described['method']}: {us(total['p50'])} us on the GPU (p50)", file=file)
        print(f"\n{_OVERHEAD}", file=file)
        if self.path is not None:
            about = {"adapter": ", ".join(about["adapter"] for about in self._devices)}
            try:
                write_trace(self.path, steps, about)
            except OSError as error:
                print(f"\nWEBGPU_TIMESTAMP_QUERY: no trace at {self.path}: {error}", file=file)
            else:
                print(f"\ntrace of the last {len(steps)} steps: {self.path}", file=file)


_session: Session | None = None
_session_lock = threading.Lock()


def join(profiler: Profiler) -> None:
    """Report what this profiler collects when the process ends."""
    global _session
    with _session_lock:
        if _session is None:
            _session = Session(os.environ.get("WEBGPU_TIMESTAMP_QUERY", ""))
            atexit.register(_at_exit)
    _session.join(profiler)


def _at_exit() -> None:
    if _session is not None and sys.stderr is not None:
        _session.report(sys.stderr)
