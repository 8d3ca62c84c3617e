"""Profiling: on, off, without the feature, and when it fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import chain, chain_reference

from executorch_wgpu.runtime import profile, query_pool
from executorch_wgpu.runtime.device import Capabilities, capabilities
from executorch_wgpu.runtime.errors import ProfilingError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.submission import submitter_of

X = np.ones(64, np.float32)


@pytest.fixture
def timed(device: Any) -> Any:
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp-query here")
    return device


def test_records(timed: Any) -> None:
    graph = WebGPUGraph(timed, chain(5, 64, dynamic=True), profile=True)
    assert graph.last_profile() is None
    for n in (64, 10):
        [y] = graph.execute([X[:n]])
        np.testing.assert_allclose(y, chain_reference(X[:n], 5))
        records = graph.last_profile()
        assert records is not None and len(records) == 5
        assert [r.label for r in records] == [f"link.{k}/affine" for k in range(5)]
        first = records[0]
        assert (first.kernel_name, first.op, first.module_path) == (
            "affine",
            "aten.test",
            "layers.0",
        )
        assert (first.route, first.grid, first.workgroup_size) == ("plain", (1, 1, 1), (64, 1, 1))
        assert min(r.start_ns for r in records) == 0
        assert all(r.duration_ns >= 0 for r in records)
        assert 0 < profile.total_ns(records) < 10e9
    graph.execute([X[:0]])
    assert graph.last_profile() == []
    assert profile.total_ns([]) == 0


@pytest.mark.parametrize(("value", "on"), [("1", True), ("", False), ("0", False), (None, False)])
def test_environment(timed: Any, monkeypatch: pytest.MonkeyPatch, value: Any, on: bool) -> None:
    if value is None:
        monkeypatch.delenv("WEBGPU_TIMESTAMP_QUERY", raising=False)
    else:
        monkeypatch.setenv("WEBGPU_TIMESTAMP_QUERY", value)
    graph = WebGPUGraph(timed, chain(1, 64))
    graph.execute([X])
    assert (graph.last_profile() is not None) == on


def test_more_dispatches_than_one_query_set_holds(timed: Any) -> None:
    links = query_pool.MAX_QUERIES_PER_SET // 2 + 10
    graph = WebGPUGraph(timed, chain(links, 1), profile=True)
    graph.execute([X[:1]])
    records = graph.last_profile()
    assert records is not None and len(records) == links
    assert records[-1].label == f"link.{links - 1}/affine" and records[-1].end_ns > 0


def test_capacity_is_checked(timed: Any) -> None:
    pool = query_pool.WebGPUQueryPool(timed, submitter_of(timed), 2, "forward")
    assert pool.next_pass()["beginning_of_pass_write_index"] == 0
    assert pool.next_pass()["end_of_pass_write_index"] == 3
    with pytest.raises(ProfilingError, match="forward: the query pool holds 2 passes"):
        pool.next_pass()
    pool.reset()
    pool.next_pass()
    with pytest.raises(ValueError, match="at least 1"):
        query_pool.WebGPUQueryPool(timed, submitter_of(timed), 0, "forward")


def test_stamps_that_were_not_written_are_an_error(timed: Any) -> None:
    pool = query_pool.WebGPUQueryPool(timed, submitter_of(timed), 2, "forward")
    pool.next_pass()
    encoder = timed.create_command_encoder()
    token = submitter_of(timed).submit(encoder.finish())
    with pytest.raises(ProfilingError, match="wrote none of 1 pairs"):
        pool.read(token)


def test_ticks_become_nanoseconds_and_disorder_is_clamped(timed: Any) -> None:
    graph = WebGPUGraph(timed, chain(3, 64), profile=True)
    graph.execute([X])
    plan = next(iter(graph._planner._plans.values()))
    values = graph._planner.values(plan, ())
    big = 1 << 62
    ticks = [(big + 10, big + 14), (big + 20, big + 17), (big + 12, big + 30)]
    profiler = profile.Profiler(timed, submitter_of(timed), "forward")
    profiler._pool = SimpleNamespace(period_ns=83.0, read=lambda token: ticks)  # type: ignore[assignment]
    records = profiler.collect(0, plan, values)
    assert [r.duration_ns for r in records] == [4 * 83.0, 0.0, 18 * 83.0]
    assert [r.clamped for r in records] == [False, True, False]
    assert [r.start_ns for r in records] == [0.0, 830.0, 166.0]
    assert profile.total_ns(records) == 20 * 83.0


def test_without_the_feature_one_warning_and_the_same_results(
    device: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "_warned", set())
    have = capabilities(device)
    poor = Capabilities(have.features - {"timestamp-query"}, have.limits)
    monkeypatch.setattr("executorch_wgpu.runtime.graph.capabilities", lambda _: poor)
    with caplog.at_level(logging.WARNING, "executorch_wgpu"):
        for _ in range(2):
            graph = WebGPUGraph(device, chain(2, 64), label="forward", profile=True)
            np.testing.assert_allclose(graph.execute([X])[0], chain_reference(X, 2))
            assert graph.last_profile() is None
    assert [r.message for r in caplog.records if "timestamp-query" in r.message] == [
        caplog.records[0].message
    ]


def test_submitted_steps_profile_too(timed: Any) -> None:
    graph = WebGPUGraph(timed, chain(2, 64), profile=True)
    one, two = graph.submit([X]), graph.submit([X * 2])
    np.testing.assert_allclose(one.result()[0], chain_reference(X, 2))
    np.testing.assert_allclose(two.result()[0], chain_reference(X * 2, 2))
    assert len(graph.last_profile() or []) == 2
