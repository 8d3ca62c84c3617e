"""The timestamps of one graph's passes: WebGPU's counterpart of ExecuTorch's Vulkan QueryPool."""

from __future__ import annotations

import importlib
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import numpy as np

from .device import is_native
from .errors import DeviceLostError, ProfilingError, WgpuDelegateError
from .profiling.stamps import Stamps, interpret
from .submission import Staging, Submitter, submitter_of

#: What WebGPU allows in one query set.
MAX_QUERIES_PER_SET = 4096

_COPY_SRC, _QUERY_RESOLVE = 0x4, 0x200
_TICK_BYTES = 8


@dataclass(frozen=True, slots=True)
class ShaderDuration:
    """One pass of a step: a dispatch, or a copy. Times are nanoseconds on the device's clock, from
    the step's first timestamp on."""

    idx: int  #: position in the step
    kernel_name: str  #: such as ``sdpa_decode_split``
    global_workgroups: tuple[int, int, int] = (0, 0, 0)  #: the grid
    local_workgroup_size: tuple[int, int, int] = (0, 0, 0)  #: invocations of one workgroup
    start_ns: float = 0.0
    end_ns: float = 0.0
    duration_ns: float = 0.0  #: never negative
    flags: tuple[str, ...] = ()  #: what is wrong with its timestamps, see profiling/stamps.py
    kind: str = "dispatch"  #: or ``copy``
    label: str = ""  #: such as ``layers.0.attention/sdpa_decode_split``
    op: str = ""  #: source operator, such as ``llama.sdpa_with_kv_cache``
    module_path: str = ""  #: such as ``layers.0.attention``
    route: str = ""  #: name of the route that was taken
    step: int = -1  #: index into the program's steps
    debug_handle: int = -1  #: ExecuTorch's, -1 when unknown
    delegate_id: str = ""  #: unique in the program, as in ExecuTorch's debug handle map
    bindings: tuple[str, ...] = ()  #: buffers, such as ``read layers.0.wq.weight 4096 B``
    bytes: int | None = None  #: read and written at the least; None when unknown
    flops: int | None = None  #: floating-point operations; None when unknown

    @property
    def bytes_per_s(self) -> float | None:
        """What it reads and writes by its time; None when either is unknown."""
        return self.bytes * 1e9 / self.duration_ns if self.bytes and self.duration_ns else None

    @property
    def flops_per_s(self) -> float | None:
        """What it computes by its time; None when either is unknown."""
        return self.flops * 1e9 / self.duration_ns if self.flops and self.duration_ns else None


@dataclass(slots=True)
class _Store:
    """What the timestamps of a step are written to, resolved into and read through."""

    capacity: int
    sets: list[Any]
    resolved: Any
    staging: Staging


@dataclass(slots=True)
class _Step:
    """A step between :meth:`WebGPUQueryPool.reset` and the extraction of its results. It keeps the
    store it was recorded with, whatever the pool grows to meanwhile."""

    store: _Store
    passes: int
    #: What each pass runs, the pass that it waits for, and whether it closes a copy.
    notes: dict[int, tuple[ShaderDuration, int, bool]] = field(default_factory=dict)

    @property
    def used(self) -> int:
        """Passes up to the last one that was recorded."""
        return max(self.notes, default=-1) + 1


class WebGPUQueryPool:
    """Begin and end timestamps of the passes of a graph's steps. A graph has its own.

    Order of calls: :meth:`initialize` once; for each step :meth:`reset`, for each of its passes
    :meth:`writes_for` and :meth:`record`, then :meth:`resolve`; after the submission
    :meth:`extract_results`, and :meth:`results` and what follows for as long as one likes.
    Thread-safe, though a step is recorded by one thread.

    Args:
        device: a ``GPUDevice`` with the feature ``timestamp-query``.
        submitter: its submitter; None makes one.
        label: names the GPU objects and opens error messages.
    """

    def __init__(self, device: Any, submitter: Submitter | None = None, label: str = "") -> None:
        self.period_ns = timestamp_period_ns(device)
        self._device = device
        self._submitter = submitter or submitter_of(device)
        self._label = label or "query pool"
        self._lock = threading.RLock()
        self._store: _Store | None = None
        self._step: _Step | None = None
        self._results: list[ShaderDuration] = []

    # -- capacity ----------------------------------------------------------------------------

    @property
    def is_initialized(self) -> bool:
        """Whether :meth:`initialize` has been called."""
        return self._store is not None

    @property
    def capacity(self) -> int:
        """Passes that a step may have; 0 before :meth:`initialize`."""
        return self._store.capacity if self._store is not None else 0

    def initialize(self, capacity: int) -> None:
        """Makes room for ``capacity`` passes in a step, over as many query sets as that takes. The
        pool never shrinks. Results, and a step that is not extracted yet, stay.

        Raises:
            ValueError: ``capacity`` is below 1.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        with self._lock:
            if capacity <= self.capacity:
                return
            queries, label = 2 * capacity, f"{self._label}: timestamps"
            sets = [
                self._device.create_query_set(
                    label=label, type="timestamp", count=min(MAX_QUERIES_PER_SET, queries - first)
                )
                for first in range(0, queries, MAX_QUERIES_PER_SET)
            ]
            size = queries * _TICK_BYTES
            resolved = self._device.create_buffer(
                label=label, size=size, usage=_QUERY_RESOLVE | _COPY_SRC
            )
            self._store = _Store(capacity, sets, resolved, self._submitter.staging(size, label))

    # -- recording ---------------------------------------------------------------------------

    def reset(self, n: int) -> None:
        """Starts a step of ``n`` passes. A step that was not extracted is dropped; its results
        would have replaced those of the one before.

        Raises:
            ProfilingError: ``n`` is more than the pool holds.
        """
        with self._lock:
            if self._store is None or n > self._store.capacity:
                raise ProfilingError(
                    f"{self._label}: a step of {n} passes, but the query pool holds "
                    f"{self.capacity}; call initialize({n}) first"
                )
            self._step = _Step(self._store, n)

    def writes_for(self, i: int) -> dict[str, Any]:
        """``timestamp_writes`` of pass ``i`` (from 0) of the step.

        Raises:
            ProfilingError: the step has no such pass.
        """
        step = self._at(i)
        which, first = divmod(2 * i, MAX_QUERIES_PER_SET)
        return {
            "query_set": step.store.sets[which],
            "beginning_of_pass_write_index": first,
            "end_of_pass_write_index": first + 1,
        }

    def record(self, i: int, what: ShaderDuration, after: int = -1, closes: bool = False) -> None:
        """Notes what pass ``i`` runs; the times in ``what`` do not matter.

        Args:
            after: the latest earlier pass whose end this one has to wait for, -1 for none.
            closes: the pass is empty; ``what`` is the copy that was recorded before it.

        Raises:
            ProfilingError: the step has no such pass.
        """
        self._at(i).notes[i] = (what, after, closes)

    def resolve(self, encoder: Any) -> None:
        """Records, after the passes, the copy of their timestamps to where they can be read: those
        up to the last pass that :meth:`record` was told of."""
        step = self._step
        if step is None or not step.notes:
            return
        queries, store = 2 * step.used, step.store
        for which, first in enumerate(range(0, queries, MAX_QUERIES_PER_SET)):
            count = min(MAX_QUERIES_PER_SET, queries - first)
            encoder.resolve_query_set(
                store.sets[which], 0, count, store.resolved, first * _TICK_BYTES
            )
        encoder.copy_buffer_to_buffer(
            store.resolved, 0, store.staging.buffer, 0, queries * _TICK_BYTES
        )

    def _at(self, i: int) -> _Step:
        step = self._step
        if step is None or not 0 <= i < step.passes:
            passes = "no step" if step is None else f"a step of {step.passes} passes"
            raise ProfilingError(f"{self._label}: pass {i} of {passes}; see reset()")
        return step

    # -- results -----------------------------------------------------------------------------

    def extract_results(self, token: int = 0) -> None:
        """Waits for the step and turns its timestamps into :meth:`results`, which it replaces. On
        failure the results of the step before stay.

        Args:
            token: of the submission that holds the step, from its ``Submitter.submit``.

        Raises:
            ProfilingError: the timestamps could not be read, or the device wrote none.
            DeviceLostError: the device is gone.
        """
        with self._lock:
            step, self._step = self._step, None
            if step is None:
                raise ProfilingError(f"{self._label}: there is no step to extract; see reset()")
            ticks = self._read(step, token)
            recorded = sorted(step.notes)
            times = interpret(
                [
                    Stamps(*ticks[i], after=step.notes[i][1], closes=step.notes[i][2])
                    for i in recorded
                ],
                self.period_ns,
            )
            self._results = [
                replace(
                    step.notes[i][0],
                    idx=i,
                    start_ns=time.start_ns,
                    end_ns=time.end_ns,
                    duration_ns=time.duration_ns,
                    flags=time.flags,
                )
                for i, time in zip(recorded, times, strict=True)
            ]

    def _read(self, step: _Step, token: int) -> list[tuple[int, int]]:
        if not step.notes:
            return []
        size = 2 * step.used * _TICK_BYTES
        try:
            with step.store.staging.mapped(token, size) as data:
                ticks = np.frombuffer(data, np.uint64).copy()
        except DeviceLostError:
            raise
        except WgpuDelegateError as error:
            raise ProfilingError(
                f"{self._label}: the timestamps could not be read: {error}"
            ) from error
        if not ticks.any():
            raise ProfilingError(
                f"{self._label}: the device wrote none of {step.used} pairs of timestamps; "
                "it cannot be profiled (leave WEBGPU_TIMESTAMP_QUERY unset)"
            )
        return [(int(begin), int(end)) for begin, end in ticks.reshape(-1, 2)]

    def results(self) -> list[ShaderDuration]:
        """The passes of the last extracted step, in order."""
        with self._lock:
            return list(self._results)

    def mean_ns(self, kernel: str) -> float:
        """Mean duration of the passes with this kernel name; 0 when there is none."""
        found = self._durations(kernel)
        return sum(found) / len(found) if found else 0.0

    def total_ns(self, kernel: str) -> float:
        """Durations of the passes with this kernel name together."""
        return sum(self._durations(kernel))

    def _durations(self, kernel: str) -> list[float]:
        return [r.duration_ns for r in self.results() if r.kernel_name == kernel]

    def print_results(self, tsv: bool = False, file: TextIO | None = None) -> None:
        """Prints one line a pass: kernel, grid, workgroup size, start, end and duration.

        Args:
            tsv: tab-separated values rather than aligned columns.
            file: standard output by default.
        """
        rows: list[tuple[str, ...]] = []
        rows.append(("Kernel Name", "Global Workgroups", "Local Workgroup Size", *_TIME_COLUMNS))
        for r in self.results():
            sizes = (str(r.global_workgroups), str(r.local_workgroup_size))
            times = (f"{t:.0f}" for t in (r.start_ns, r.end_ns, r.duration_ns))
            rows.append((r.kernel_name, *sizes, *times))
        if tsv:
            lines = ["\t".join(row) for row in rows]
        else:
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            align = (str.ljust,) * 3 + (str.rjust,) * 3
            lines = [
                "  ".join(
                    f(cell, n) for f, cell, n in zip(align, row, widths, strict=True)
                ).rstrip()
                for row in rows
            ]
        print("\n".join(lines), file=file or sys.stdout)


_TIME_COLUMNS = ("Start (ns)", "End (ns)", "Duration (ns)")


def timestamp_period_ns(device: Any) -> float:
    """Nanoseconds of one tick: wgpu-native hands out raw ticks, Dawn nanoseconds."""
    if not is_native(device):
        return 1.0
    bindings = importlib.import_module("wgpu.backends.wgpu_native._ffi")
    return float(bindings.lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
