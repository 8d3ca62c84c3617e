"""One profiled step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from ..query_pool import ShaderDuration
from .stamps import Times, Totals, totals

#: What the host does in a step, in order.
LIVE_SCALARS = "live scalars"  #: check the arguments, evaluate guards, grids and live values
ENCODE = "encode"  #: record the commands
UPLOAD = "upload"  #: hand inputs and the live block to the queue
SUBMIT = "submit"
WAIT = "wait"  #: until the outputs can be read
READBACK = "readback"  #: turn their bytes into arrays

PHASES = (LIVE_SCALARS, ENCODE, UPLOAD, SUBMIT, WAIT, READBACK)


@dataclass(frozen=True, slots=True)
class HostPhase:
    """A stretch of the host's time; nanoseconds of ``time.perf_counter_ns``."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, eq=False)
class StepProfile(Sequence[ShaderDuration]):
    """One profiled step; as a sequence, its dispatches in order.

    ``passes``: dispatches, then copies. ``scalars``: live scalars and their values.
    ``number``: counts the steps of a graph from 0.
    """

    method: str
    number: int
    scalars: tuple[tuple[str, int], ...]
    passes: tuple[ShaderDuration, ...]
    host: tuple[HostPhase, ...]

    @property
    def dispatches(self) -> tuple[ShaderDuration, ...]:
        """The dispatches that ran."""
        return tuple(p for p in self.passes if p.kind == "dispatch")

    @property
    def copies(self) -> tuple[ShaderDuration, ...]:
        """Copies between buffers: outputs on their way to the host."""
        return tuple(p for p in self.passes if p.kind == "copy")

    @property
    def totals(self) -> Totals:
        """The dispatches' times together: span, sum, gap, overlap."""
        return totals([_times(p) for p in self.dispatches])

    @property
    def span_ns(self) -> float:
        """From the first dispatch's start to the last one's end: the step's time on the GPU."""
        return self.totals.span_ns

    @property
    def wall_ns(self) -> int:
        """The step's time on the host, from its arguments to its outputs."""
        return self.host[-1].end_ns - self.host[0].start_ns if self.host else 0

    def __len__(self) -> int:
        return len(self.dispatches)

    @overload
    def __getitem__(self, index: int) -> ShaderDuration: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ShaderDuration]: ...
    def __getitem__(self, index: int | slice) -> ShaderDuration | Sequence[ShaderDuration]:
        return self.dispatches[index]

    def __iter__(self) -> Iterator[ShaderDuration]:
        return iter(self.dispatches)


def _times(p: ShaderDuration) -> Times:
    return Times(p.start_ns, p.end_ns, p.duration_ns, p.flags)


def gpu_offset_ns(step: StepProfile) -> float:
    """What to add to a step's GPU times to get the host's clock. The two clocks are not related, so
    the step's last pass is taken to end when the host's wait did, and none to begin before the
    host began to submit."""
    phases = {phase.name: phase for phase in step.host}
    if not step.passes or not step.host:
        return float(step.host[0].start_ns) if step.host else 0.0
    begin = min(p.start_ns for p in step.passes)
    end = max(p.end_ns for p in step.passes)
    waited = phases[WAIT] if WAIT in phases else step.host[-1]
    offset = waited.end_ns - end
    if SUBMIT in phases:
        offset = max(offset, phases[SUBMIT].start_ns - begin)
    return offset
