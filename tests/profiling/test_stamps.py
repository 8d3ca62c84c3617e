"""Times from timestamps that lie in every way that drivers lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executorch_wgpu.runtime.profiling.stamps import (
    OUT_OF_ORDER,
    OVERLAP,
    PINNED,
    ZERO,
    Stamps,
    Times,
    interpret,
    totals,
)

BIG = 1 << 62


def run(*pairs: tuple[int, ...], period: float = 1.0) -> list[Times]:
    return interpret([Stamps(*pair) for pair in pairs], period)


def spans(times: list[Times]) -> list[tuple[float, float]]:
    return [(t.start_ns, t.end_ns) for t in times]


def test_good_stamps_stay_as_they_are() -> None:
    times = run((100, 110), (115, 130), (130, 131))
    assert spans(times) == [(0, 10), (15, 30), (30, 31)]
    assert [t.duration_ns for t in times] == [10, 15, 1]
    assert not any(t.flags for t in times)
    both = totals(times)
    assert (both.span_ns, both.sum_ns, both.gap_ns, both.overlap_ns) == (31, 26, 5, 0)


def test_ticks_are_integers_until_the_last_step() -> None:
    """2**62 and 2**62 + 1 are one number as floats."""
    assert [t.duration_ns for t in run((BIG, BIG + 1), (BIG + 3, BIG + 4), period=83.0)] == [83, 83]


def test_pinned_begins_count_from_the_end_before() -> None:
    times = run((100, 110), (100, 125), (100, 150))
    assert [t.duration_ns for t in times] == [10, 15, 25]
    assert all(t.flags == (PINNED,) for t in times)
    assert totals(times).span_ns == totals(times).sum_ns == 50


def test_a_coarse_clock_is_not_pinned() -> None:
    """A quantized clock gives equal begins to passes that took no tick."""
    times = run((100, 100), (100, 100), (100, 200), (200, 200))
    assert [t.duration_ns for t in times] == [0, 0, 100, 0]
    assert not any(t.flags for t in times)


def test_a_begin_before_what_it_waits_for_is_no_overlap() -> None:
    """Begins written early: each differs, but the pass needs the result of the one before."""
    times = run((100, 110), (101, 125, 0), (102, 150, 1))
    assert [t.duration_ns for t in times] == [10, 15, 25]
    assert [t.flags for t in times] == [(), (PINNED,), (PINNED,)]


def test_overlap_is_kept_and_named() -> None:
    times = run((100, 120), (110, 130), (111, 115))
    assert [t.duration_ns for t in times] == [20, 20, 4]
    assert [t.flags for t in times] == [(), (OVERLAP,), (OVERLAP,)]
    both = totals(times)
    assert (both.span_ns, both.sum_ns, both.gap_ns, both.overlap_ns) == (30, 44, 0, 14)


def test_disorder_is_clamped() -> None:
    times = run((BIG + 10, BIG + 14), (BIG + 20, BIG + 17), (BIG + 12, BIG + 30), period=83.0)
    assert [t.duration_ns for t in times] == [4 * 83.0, 0.0, 18 * 83.0]
    assert [t.flags for t in times] == [(), (OUT_OF_ORDER,), (OVERLAP,)]
    times = run((100, 110), (120, 130), (90, 140))
    assert spans(times) == [(0, 10), (20, 30), (30, 40)]
    assert times[2].flags == (OUT_OF_ORDER,)


def test_missing_stamps() -> None:
    times = run((0, 0), (100, 110), (0, 125), (130, 0), (0, 0), (140, 150))
    assert [t.duration_ns for t in times] == [0, 10, 15, 0, 0, 10]
    assert [t.flags for t in times] == [(ZERO,), (), (ZERO,), (ZERO,), (ZERO,), ()]
    assert totals(times).span_ns == 50
    assert totals(run((0, 0))).span_ns == 0
    assert interpret([], 1.0) == [] and totals([]).span_ns == 0


def test_a_copy_lies_between_passes() -> None:
    times = interpret(
        [Stamps(100, 110), Stamps(130, 140, closes=True), Stamps(160, 165, closes=True)], 1.0
    )
    assert spans(times) == [(0, 10), (10, 30), (40, 60)]
    assert not any(t.flags for t in times)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=12),
    st.sampled_from([1.0, 0.5, 83.333]),
    st.data(),
)
def test_whatever_the_device_writes(
    written: list[tuple[int, int, bool]], period: float, data: st.DataObject
) -> None:
    stamps = [
        Stamps(begin, end, data.draw(st.integers(-1, i - 1)), closes)
        for i, (begin, end, closes) in enumerate(written)
    ]
    times = interpret(stamps, period)
    assert len(times) == len(stamps)
    for t in times:
        assert 0 <= t.start_ns <= t.end_ns
        assert t.duration_ns == pytest.approx(t.end_ns - t.start_ns)
    both = totals(times)
    assert both.span_ns >= 0 and both.gap_ns >= 0 and both.overlap_ns >= 0
    assert both.span_ns == pytest.approx(both.sum_ns - both.overlap_ns + both.gap_ns)
