"""Profiling: every dispatch in a pass of its own, with a timestamp before and after.

Loaded only by graphs that profile; the others record the same commands as if it did not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .device import Capabilities
from .plan import Command, Plan
from .query_pool import WebGPUQueryPool
from .recorder import LIVE_GROUP, STORAGE_GROUP
from .submission import Submitter

logger = logging.getLogger("executorch_wgpu")


@dataclass(frozen=True, slots=True)
class ProfiledDispatch:
    """One dispatch of a profiled step. Times are nanoseconds on the device's clock, from the first
    timestamp of the step."""

    label: str  #: such as ``layers.0.attention/sdpa_decode_split``
    kernel_name: str  #: the label's last part
    op: str  #: source operator
    module_path: str  #: such as ``layers.0.attention``
    debug_handle: int  #: ExecuTorch's, -1 when unknown
    step: int  #: index into the program's steps
    route: str  #: name of the route that was taken
    grid: tuple[int, int, int]  #: workgroups
    workgroup_size: tuple[int, int, int]  #: invocations
    start_ns: float
    end_ns: float
    duration_ns: float  #: end - start, 0 when that is negative
    clamped: bool  #: it was: the device's stamps were out of order


def total_ns(records: Iterable[ProfiledDispatch]) -> float:
    """From the first start to the last end. Passes may overlap, so a sum would be too much."""
    records = list(records)
    if not records:
        return 0.0
    return max(r.end_ns for r in records) - min(r.start_ns for r in records)


class Profiler:
    """Records and collects the profiled steps of one graph."""

    def __init__(self, device: Any, submitter: Submitter, label: str) -> None:
        self._device, self._submitter, self._label = device, submitter, label
        self._pool: WebGPUQueryPool | None = None

    def record(
        self,
        encoder: Any,
        live: Any,
        offset: int,
        commands: Sequence[Command],
        values: Sequence[int],
    ) -> None:
        """Like a recorder's ``record``, but on a command encoder, with a pass a dispatch."""
        pool = self._pool
        if pool is None or pool.capacity < len(commands):
            pool = self._pool = WebGPUQueryPool(
                self._device, self._submitter, max(1, len(commands)), self._label
            )
        pool.reset()
        for command, (x, y, z) in _ran(commands, values):
            compute = encoder.begin_compute_pass(
                label=command.dispatch.label, timestamp_writes=pool.next_pass()
            )
            compute.set_bind_group(LIVE_GROUP, live, [offset])
            compute.set_pipeline(command.pipeline)
            compute.set_bind_group(STORAGE_GROUP, command.bind_group)
            compute.dispatch_workgroups(x, y, z)
            compute.end()
        pool.resolve(encoder)

    def collect(self, token: int, plan: Plan, values: Sequence[int]) -> list[ProfiledDispatch]:
        """The records of the step submitted as ``token``.

        Raises:
            ProfilingError: the timestamps could not be read.
        """
        pool = self._pool
        assert pool is not None, "record() made it"
        ticks = pool.read(token)
        first = min((begin for begin, _ in ticks), default=0)
        records = []
        for (command, grid), (begin, end) in zip(_ran(plan.commands, values), ticks, strict=True):
            # Ticks are large: subtract before they become floats.
            start_ns, end_ns = (begin - first) * pool.period_ns, (end - first) * pool.period_ns
            dispatch = command.dispatch
            records.append(
                ProfiledDispatch(
                    label=dispatch.label,
                    kernel_name=dispatch.label.rsplit("/", 1)[-1] or command.kernel.entry_point,
                    op=dispatch.op,
                    module_path=dispatch.module_path,
                    debug_handle=dispatch.debug_handle,
                    step=command.step,
                    route=command.route,
                    grid=grid,
                    workgroup_size=command.kernel.workgroup_size,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    duration_ns=max(0.0, end_ns - start_ns),
                    clamped=end < begin,
                )
            )
        return records


def _ran(
    commands: Sequence[Command], values: Sequence[int]
) -> Iterable[tuple[Command, tuple[int, int, int]]]:
    """The commands with no zero in their grid, and their grids."""
    for command in commands:
        x, y, z = (values[at] for at in command.grid)
        if x and y and z:
            yield command, (x, y, z)


_warned: set[str] = set()


def profiler_of(
    device: Any, submitter: Submitter, have: Capabilities, label: str
) -> Profiler | None:
    """A profiler, or None with one warning a process and adapter when the device was created
    without ``timestamp-query``."""
    if "timestamp-query" in have.features:
        return Profiler(device, submitter, label)
    adapter = getattr(getattr(device, "adapter", None), "summary", "the device")
    if adapter not in _warned:
        _warned.add(adapter)
        logger.warning(
            "%s: profiling was asked for, but %s has no timestamp-query; running without",
            label,
            adapter,
        )
    return None
