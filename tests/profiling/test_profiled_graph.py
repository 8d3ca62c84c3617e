"""Profiling of a graph: on, off, without the feature, and when it fails."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import chain, chain_reference

from executorch_wgpu.runtime import FED_BACK, query_pool
from executorch_wgpu.runtime.device import Capabilities, capabilities
from executorch_wgpu.runtime.errors import ProfilingError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.profiling import profiler
from executorch_wgpu.runtime.profiling.records import PHASES
from executorch_wgpu.serialization.dispatch_list import Feedback

X = np.ones(64, np.float32)
OFF_CALLS = Path(__file__).with_name("off_calls.json")


def test_a_step(timed: Any) -> None:
    graph = WebGPUGraph(timed, chain(5, 64, dynamic=True), label="forward", profile=True)
    assert graph.last_profile() is None
    for number, n in enumerate((64, 10)):
        [y] = graph.execute([X[:n]])
        np.testing.assert_allclose(y, chain_reference(X[:n], 5))
        step = graph.last_profile()
        assert step is not None and len(step) == len(step.dispatches) == 5
        assert (step.method, step.number, step.scalars) == ("forward", number, (("n", n),))
        assert [r.label for r in step] == [f"link.{k}/affine" for k in range(5)]
        first = step[0]
        assert (first.kernel_name, first.op, first.module_path) == (
            "affine",
            "aten.test",
            "layers.0",
        )
        assert (first.route, first.step, first.delegate_id) == ("plain", 0, "link.0/affine")
        assert (first.global_workgroups, first.local_workgroup_size) == ((1, 1, 1), (64, 1, 1))
        assert first.bindings == ("reads x (256 B)", "writes scratch0 (256 B)")
        assert first.start_ns == 0 and all(r.duration_ns >= 0 for r in step)
        assert 0 < step.span_ns < 10e9
        [copy] = step.copies
        assert (copy.kernel_name, copy.bytes) == ("read back y", 8 * n)
        assert copy.start_ns >= step[-1].start_ns
        assert [phase.name for phase in step.host] == list(PHASES)
        assert step.wall_ns == sum(phase.duration_ns for phase in step.host) > 0


def test_a_step_in_which_nothing_runs(timed: Any) -> None:
    graph = WebGPUGraph(timed, chain(2, 64, dynamic=True), profile=True)
    graph.execute([X[:0]])
    step = graph.last_profile()
    assert step is not None and list(step) == [] and step.span_ns == 0
    assert step.wall_ns > 0


@pytest.mark.parametrize(("value", "on"), [("1", True), ("", False), ("0", False), (None, False)])
def test_environment(timed: Any, monkeypatch: pytest.MonkeyPatch, value: Any, on: bool) -> None:
    monkeypatch.setattr("executorch_wgpu.runtime.profiling.session.join", lambda _: None)
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
    step = graph.last_profile()
    assert step is not None and len(step) == links
    assert step[-1].label == f"link.{links - 1}/affine" and step[-1].end_ns > 0


def test_each_graph_has_its_own_pool(timed: Any) -> None:
    """Two graphs, two threads: neither sees what the other ran."""
    graphs = [
        WebGPUGraph(timed, chain(k + 1, 64), label=f"graph {k}", profile=True) for k in range(2)
    ]
    pools = [graph.query_pool for graph in graphs]
    assert None not in pools
    assert len({id(pool) for pool in pools}) == 2
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for _ in range(5):
                graphs[k].execute([X])
                step = graphs[k].last_profile()
                assert step is not None and step.method == f"graph {k}"
                assert [r.label for r in step] == [f"link.{i}/affine" for i in range(k + 1)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_graph_beside_a_profiled_one_is_not(timed: Any) -> None:
    """The state is the graph's: nothing about profiling is global."""
    on = WebGPUGraph(timed, chain(2, 64), profile=True)
    off = WebGPUGraph(timed, chain(2, 64), profile=False)
    for graph in (on, off, on, off):
        graph.execute([X])
    step = on.last_profile()
    assert step is not None and step.number == 1
    assert off.last_profile() is None and off.query_pool is None


def test_without_the_feature_one_warning_and_the_same_results(
    device: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "_warned", set())
    have = capabilities(device)
    poor = Capabilities(have.features - {"timestamp-query"}, have.limits)
    monkeypatch.setattr("executorch_wgpu.runtime.graph.capabilities", lambda _: poor)
    with caplog.at_level(logging.WARNING, "executorch_wgpu"):
        for _ in range(2):
            graph = WebGPUGraph(device, chain(2, 64), label="forward", profile=True)
            np.testing.assert_allclose(graph.execute([X])[0], chain_reference(X, 2))
            assert graph.last_profile() is None
    [record] = [r for r in caplog.records if "timestamp-query" in r.message]
    assert record.message.startswith("forward: profiling was asked for, but ")


def test_a_failed_readback_reaches_the_caller(timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a table of zeros: an error, and the graph goes on."""
    graph = WebGPUGraph(timed, chain(2, 64), label="forward", profile=True)
    graph.execute([X])
    before = graph.last_profile()
    with monkeypatch.context() as patch:
        patch.setattr(
            graph.query_pool,
            "_read",
            lambda *_: (_ for _ in ()).throw(ProfilingError("forward: no timestamps")),
        )
        with pytest.raises(ProfilingError, match="forward: no timestamps"):
            graph.execute([X])
    assert graph.last_profile() is before
    np.testing.assert_allclose(graph.execute([X])[0], chain_reference(X, 2))
    assert graph.last_profile() is not before


def test_submitted_steps_profile_too(timed: Any) -> None:
    graph = WebGPUGraph(timed, chain(2, 64), profile=True)
    one, two = graph.submit([X]), graph.submit([X * 2])
    np.testing.assert_allclose(one.result()[0], chain_reference(X, 2))
    np.testing.assert_allclose(two.result()[0], chain_reference(X * 2, 2))
    assert len(graph.last_profile() or []) == 2


def test_copies_that_feed_outputs_back_are_timed(timed: Any) -> None:
    program = replace(chain(2, 64), feedback=(Feedback(0, 0),))
    graph = WebGPUGraph(timed, program, profile=True)
    [first] = graph.execute([X])
    [second] = graph.execute([FED_BACK])
    np.testing.assert_allclose(second, chain_reference(first, 2))
    step = graph.last_profile()
    assert step is not None and len(step) == 2
    fed, back = step.copies
    assert (fed.kernel_name, back.kernel_name) == ("feed back x", "read back y")
    assert fed.bytes == 2 * 256 and fed.end_ns <= step[0].start_ns
    assert fed.duration_ns > 0


# -- off means off ---------------------------------------------------------------------------


def recorded_calls(
    device: Any, monkeypatch: pytest.MonkeyPatch, profile: bool
) -> tuple[list[list[Any]], list[list[Any]]]:
    """What a graph asks of WebGPU until its first step is over, and in the next two. What wgpu
    does inside a call does not count."""
    calls: list[list[Any]] = []
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.end()
    buffer = device.create_buffer(size=4, usage=0x8)
    watched = {"device": device, "encoder": encoder, "pass": compute, "queue": device.queue,
               "buffer": buffer}  # fmt: skip
    inside: list[str] = []
    with monkeypatch.context() as patch:
        for name, thing in watched.items():
            for method in [m for m in dir(type(thing)) if not m.startswith("_")]:
                function = getattr(type(thing), method)
                if callable(function):
                    note = _noting(calls, f"{name}.{method}", function, inside)
                    patch.setattr(type(thing), method, note)
        graph = WebGPUGraph(device, chain(3, 64), label="forward", profile=profile, plain_api=True)
        graph.execute([X])
        loaded = calls.copy()
        calls.clear()
        graph.execute([X])
        graph.execute([X])
    return loaded, calls


def _noting(calls: list[list[Any]], name: str, function: Any, inside: list[str]) -> Any:
    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not inside:
            calls.append([name, _plain([*args, kwargs] if kwargs else list(args))])
        inside.append(name)
        try:
            return function(self, *args, **kwargs)
        finally:
            inside.pop()

    return note


def _plain(value: Any) -> Any:
    """Numbers, texts and what holds them; objects by their class and label."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (np.ndarray, bytes)):
        return f"{memoryview(value).nbytes} bytes"
    label = getattr(value, "label", "")
    return f"{type(value).__name__} {label}".strip()


def test_off_means_off(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of a step without profiling are the committed ones. To accept a change of the
    recorder, delete the file, run the test and look at the difference."""
    loaded, calls = recorded_calls(device, monkeypatch, profile=False)
    if not OFF_CALLS.exists():
        lines = ",\n".join(json.dumps(call) for call in calls)
        OFF_CALLS.write_text(f"[\n{lines}\n]\n")
    assert calls == json.loads(OFF_CALLS.read_text())
    text = json.dumps([loaded, calls])
    assert "query" not in text and "timestamp" not in text
    names = [name for name, _ in calls]
    assert names.count("encoder.begin_compute_pass") == 2
    assert not any(name.startswith("device.create_buffer") for name in names)


def test_on_adds_passes_and_one_query_set(timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same watch with profiling on, so that the one above is known to see."""
    recorded_calls(timed, monkeypatch, profile=False)  # compiles what is then shared
    plain, _ = recorded_calls(timed, monkeypatch, profile=False)
    loaded, calls = recorded_calls(timed, monkeypatch, profile=True)
    more = Counter(name for name, _ in loaded) - Counter(name for name, _ in plain)
    assert more["device.create_query_set"] == 1
    assert more["device.create_buffer"] == 2
    names = [name for name, _ in calls]
    assert names.count("encoder.begin_compute_pass") == 2 * (3 + 1)
    assert names.count("encoder.resolve_query_set") == 2


IMPORTS = """
import sys
import numpy as np
sys.path.append({folder!r})
from programs import chain
from executorch_wgpu.runtime import Runtime
from executorch_wgpu.runtime.device import default_device
from executorch_wgpu.runtime.graph import WebGPUGraph
graph = WebGPUGraph(default_device(), chain(1, 64), profile={profile})
graph.execute([np.ones(64, np.float32)])
print([name for name in sys.modules if "query_pool" in name or "profil" in name.split(".")[-1]
       and "executorch" in name or "runtime.profiling" in name])
"""


def test_what_is_off_is_not_imported(timed: Any) -> None:
    folder = str(Path(__file__).parents[1] / "runtime")

    def loaded(profile: bool) -> list[str]:
        code = IMPORTS.format(folder=folder, profile=profile)
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        names: list[str] = json.loads(run.stdout.replace("'", '"'))
        return names

    assert loaded(False) == []
    assert "executorch_wgpu.runtime.query_pool" in loaded(True)
