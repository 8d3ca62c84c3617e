"""WebGPUQueryPool by itself: capacity, growth, failures, several graphs and threads."""

from __future__ import annotations

import io
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from executorch_wgpu.runtime import query_pool
from executorch_wgpu.runtime.errors import DeviceLostError, ProfilingError, WgpuDelegateError
from executorch_wgpu.runtime.query_pool import ShaderDuration, WebGPUQueryPool
from executorch_wgpu.runtime.submission import submitter_of


@pytest.fixture
def pool(timed: Any) -> WebGPUQueryPool:
    pool = WebGPUQueryPool(timed, submitter_of(timed), "forward")
    pool.initialize(2)
    return pool


def run_step(pool: WebGPUQueryPool, names: list[str], extract: bool = True) -> int:
    """A step of empty passes; returns the submission's token."""
    pool.reset(len(names))
    encoder = pool._device.create_command_encoder()
    for i, name in enumerate(names):
        encoder.begin_compute_pass(timestamp_writes=pool.writes_for(i)).end()
        pool.record(i, ShaderDuration(i, name, (i + 1, 1, 1), (64, 1, 1)))
    pool.resolve(encoder)
    token = pool._submitter.submit(encoder.finish())
    if extract:
        pool.extract_results(token)
    return token


def test_results(pool: WebGPUQueryPool) -> None:
    assert pool.is_initialized and pool.capacity == 2 and pool.results() == []
    run_step(pool, ["a", "b"])
    first, second = pool.results()
    assert (first.idx, first.kernel_name, second.kernel_name) == (0, "a", "b")
    assert (second.global_workgroups, second.local_workgroup_size) == ((2, 1, 1), (64, 1, 1))
    assert first.start_ns == 0 and second.end_ns >= second.start_ns >= first.end_ns
    run_step(pool, ["c"])
    assert [r.kernel_name for r in pool.results()] == ["c"]


def test_the_pool_before_initialize(timed: Any) -> None:
    pool = WebGPUQueryPool(timed)
    assert not pool.is_initialized and pool.capacity == 0
    with pytest.raises(ProfilingError, match=r"a step of 1 passes, but .* holds 0"):
        pool.reset(1)
    with pytest.raises(ValueError, match="at least 1"):
        pool.initialize(0)
    with pytest.raises(ProfilingError, match="no step to extract"):
        pool.extract_results()


def test_capacity_overrun_raises(pool: WebGPUQueryPool) -> None:
    with pytest.raises(ProfilingError, match=r"forward: a step of 3 passes, .* holds 2"):
        pool.reset(3)
    with pytest.raises(ProfilingError, match="pass 0 of no step"):
        pool.writes_for(0)
    pool.reset(1)
    assert pool.writes_for(0)["end_of_pass_write_index"] == 1
    for i in (1, -1):
        with pytest.raises(ProfilingError, match=f"pass {i} of a step of 1 passes"):
            pool.writes_for(i)
        with pytest.raises(ProfilingError, match=f"pass {i} of a step of 1 passes"):
            pool.record(i, ShaderDuration(i, "a"))


def test_growth_keeps_results_and_the_step_in_flight(pool: WebGPUQueryPool) -> None:
    run_step(pool, ["a"])
    token = run_step(pool, ["b", "c"], extract=False)
    pool.initialize(100)
    assert pool.capacity == 100
    assert [r.kernel_name for r in pool.results()] == ["a"]
    pool.extract_results(token)
    assert [r.kernel_name for r in pool.results()] == ["b", "c"]
    pool.initialize(3)
    assert pool.capacity == 100
    run_step(pool, ["d"] * 100)
    assert len(pool.results()) == 100


def test_means_are_floats(pool: WebGPUQueryPool) -> None:
    pool._results = [ShaderDuration(i, "a", duration_ns=ns) for i, ns in enumerate((1.0, 2.0))]
    pool._results.append(ShaderDuration(2, "b", duration_ns=5.0))
    assert pool.mean_ns("a") == 1.5 and pool.total_ns("a") == 3.0
    assert pool.mean_ns("b") == 5.0
    assert pool.mean_ns("none") == 0.0 and pool.total_ns("none") == 0.0


def test_print_results(pool: WebGPUQueryPool, capsys: pytest.CaptureFixture[str]) -> None:
    pool._results = [ShaderDuration(0, "add", (4, 2, 1), (64, 1, 1), 1000.0, 3000.0, 2000.0)]
    pool.print_results()
    head, line = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "Kernel Name" and len(line) == len(head)
    assert line.split() == ["add", "(4,", "2,", "1)", "(64,", "1,", "1)", "1000", "3000", "2000"]
    text = io.StringIO()
    pool.print_results(tsv=True, file=text)
    assert text.getvalue().splitlines()[1].split("\t") == [
        "add", "(4, 2, 1)", "(64, 1, 1)", "1000", "3000", "2000"
    ]  # fmt: skip


def test_a_failed_readback_is_signalled(
    pool: WebGPUQueryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_step(pool, ["a"])

    def fail(error: Exception) -> None:
        class Broken:
            def __enter__(self) -> Any:
                raise error

            def __exit__(self, *_: Any) -> None: ...

        assert pool._store is not None
        monkeypatch.setattr(pool._store.staging, "mapped", lambda *_: Broken(), raising=False)

    token = run_step(pool, ["b"], extract=False)
    fail(WgpuDelegateError("staging: the results could not be mapped"))
    with pytest.raises(ProfilingError, match="forward: the timestamps could not be read: staging"):
        pool.extract_results(token)
    assert [r.kernel_name for r in pool.results()] == ["a"]
    monkeypatch.undo()
    token = run_step(pool, ["b"], extract=False)
    fail(DeviceLostError("gone"))
    with pytest.raises(DeviceLostError):
        pool.extract_results(token)


def test_stamps_that_were_not_written_are_an_error(pool: WebGPUQueryPool) -> None:
    """The copy was never recorded, so the staging buffer still holds zeros."""
    pool.reset(1)
    pool.record(0, ShaderDuration(0, "a"))
    token = pool._submitter.submit(pool._device.create_command_encoder().finish())
    with pytest.raises(ProfilingError, match="wrote none of 1 pairs"):
        pool.extract_results(token)


def test_the_period_comes_from_the_device(timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert query_pool.timestamp_period_ns(object()) == 1.0  # Dawn hands out nanoseconds
    lib = SimpleNamespace(wgpuQueueGetTimestampPeriod=lambda queue: 83.25)
    submitter = submitter_of(timed)
    monkeypatch.setattr(query_pool, "is_native", lambda _: True)
    monkeypatch.setattr(query_pool.importlib, "import_module", lambda _: SimpleNamespace(lib=lib))
    assert query_pool.timestamp_period_ns(timed) == 83.25
    assert WebGPUQueryPool(timed, submitter).period_ns == 83.25


def test_the_period_scales_ticks(pool: WebGPUQueryPool, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = [(1 << 62, (1 << 62) + 1), ((1 << 62) + 3, (1 << 62) + 5)]
    monkeypatch.setattr(pool, "_read", lambda *_: ticks)
    pool.period_ns = 83.25
    run_step(pool, ["a", "b"])
    assert [r.duration_ns for r in pool.results()] == [83.25, 166.5]


def test_several_query_sets(pool: WebGPUQueryPool) -> None:
    most = query_pool.MAX_QUERIES_PER_SET // 2
    pool.initialize(most + 10)
    assert pool._store is not None and len(pool._store.sets) == 2
    pool.reset(most + 1)
    assert pool.writes_for(most - 1)["query_set"] is pool._store.sets[0]
    assert pool.writes_for(most) == {
        "query_set": pool._store.sets[1],
        "beginning_of_pass_write_index": 0,
        "end_of_pass_write_index": 1,
    }
    run_step(pool, [f"k{i}" for i in range(most + 10)])
    results = pool.results()
    assert len(results) == most + 10 and not any(r.flags for r in results)
    assert results[-1].kernel_name == f"k{most + 9}"
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(results))


def test_pools_in_threads(timed: Any) -> None:
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            pool = WebGPUQueryPool(timed, submitter_of(timed), f"graph {k}")
            for n in (1, 5, 3):
                pool.initialize(n)
                run_step(pool, [f"{k}.{i}" for i in range(n)])
                assert [r.kernel_name for r in pool.results()] == [f"{k}.{i}" for i in range(n)]
                assert np.all([r.duration_ns >= 0 for r in pool.results()])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
