"""From a device's timestamps to times that can be trusted.

WebGPU promises little about the two timestamps of a pass: a driver may write the begin of every
pass when the command buffer starts, or before what the pass waits for has ended; stamps may be out
of order, or not written at all. What ends a pass is reliable on all of them. So each pass is
looked at for these defects, and where its begin cannot be true its time is counted from the end of
what came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Flags of a pass.
ZERO = "zero"  #: a stamp was not written
PINNED = "pinned"  #: its begin cannot be true: shared with an earlier pass, or before its inputs
OUT_OF_ORDER = "out_of_order"  #: ends before it begins, or begins before an earlier one
OVERLAP = "overlap"  #: began before an earlier pass had ended

#: What a flag says, for tables and tooltips.
MEANING = {
    ZERO: "the device left a timestamp at zero",
    PINNED: "the begin cannot be true: counted from the end of the pass before",
    OUT_OF_ORDER: "timestamps out of order: counted from the end of the pass before, at least 0",
    OVERLAP: "ran beside an earlier pass",
}


@dataclass(frozen=True, slots=True)
class Stamps:
    """What the device wrote for one pass, in ticks.

    ``after``: position of the latest earlier pass whose end this one has to wait for, -1 for none.
    ``closes``: the pass is empty and ends a copy that was recorded before it.
    """

    begin: int
    end: int
    after: int = -1
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Times:
    """One pass in nanoseconds from the first stamp of the step. ``duration_ns`` is never negative
    and ``end_ns - start_ns``."""

    start_ns: float
    end_ns: float
    duration_ns: float
    flags: tuple[str, ...] = ()


def interpret(stamps: Sequence[Stamps], period_ns: float) -> list[Times]:
    """The times of a step's passes, in order.

    Ticks are large: all arithmetic is on integers, and the product with ``period_ns`` is the last
    step.
    """
    spans = _spans(stamps)
    origin = min((begin for begin, end, _ in spans if end), default=0)
    return [
        Times(
            (begin - origin) * period_ns if end else 0.0,
            (end - origin) * period_ns if end else 0.0,
            (end - begin) * period_ns,
            flags,
        )
        for begin, end, flags in spans
    ]


def _spans(stamps: Sequence[Stamps]) -> list[tuple[int, int, tuple[str, ...]]]:
    """(begin, end, flags) of each pass in ticks; 0, 0 where nothing is known."""
    shared = _shared_begins(stamps)
    ends: list[int] = []  # when each pass had surely ended
    latest_begin = latest_end = 0
    spans = []
    for stamp in stamps:
        begin, end = stamp.begin, stamp.end
        flags: list[str] = []
        floor = latest_end or begin or end  # where to count from when the begin says nothing
        if not begin or not end:
            flags.append(ZERO)
            end = end or begin or latest_end
            begin = min(floor, end) if not stamp.begin else end
        elif stamp.closes:
            # What it ends lies between the pass before and its begin.
            end = begin if begin >= latest_end else end
            begin = min(floor, end)
        elif end < begin:
            flags.append(OUT_OF_ORDER)
            begin = end
        elif stamp.begin in shared or (stamp.after >= 0 and begin < ends[stamp.after]):
            flags.append(PINNED)
            # The first of those that share a begin keeps it.
            begin = max(begin, min(latest_end, end))
        elif begin < latest_begin:
            flags.append(OUT_OF_ORDER)
            begin = min(floor, end)
        elif begin < latest_end:
            flags.append(OVERLAP)
        if OUT_OF_ORDER not in flags and ZERO not in flags:
            latest_begin = max(latest_begin, begin)
        latest_end = max(latest_end, end, stamp.end if stamp.closes else 0)
        ends.append(end)
        spans.append((begin, end, tuple(flags)))
    return spans


def _shared_begins(stamps: Sequence[Stamps]) -> set[int]:
    """Begins that several passes have in common although the first of them took time. (Where it
    took none, the clock is merely coarse.)"""
    first: dict[int, Stamps] = {}
    shared: set[int] = set()
    for stamp in stamps:
        if not stamp.begin or stamp.closes:
            continue
        earlier = first.setdefault(stamp.begin, stamp)
        if earlier is not stamp and earlier.end > earlier.begin:
            shared.add(stamp.begin)
    return shared


@dataclass(frozen=True, slots=True)
class Totals:
    """A step's times together, in nanoseconds: ``span = sum - overlap + gap``.

    ``span_ns``: first start to last end. ``sum_ns``: all durations. ``overlap_ns``: how much of
    the sum ran beside something else. ``gap_ns``: how much of the span nothing ran.
    """

    span_ns: float
    sum_ns: float
    gap_ns: float
    overlap_ns: float


def totals(times: Sequence[Times]) -> Totals:
    """Over passes in any order. Those of which nothing is known do not count."""
    known = sorted(
        (t.start_ns, t.end_ns) for t in times if not (ZERO in t.flags and t.end_ns <= t.start_ns)
    )
    if not known:
        return Totals(0.0, 0.0, 0.0, 0.0)
    busy, reach = 0.0, known[0][0]
    for start, end in known:
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    span = reach - known[0][0]
    total = sum(end - start for start, end in known)
    return Totals(span, total, max(0.0, span - busy), max(0.0, total - busy))
