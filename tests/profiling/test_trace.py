"""The trace keeps the Trace Event format's rules, whatever the device stamped."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from steps import DISPATCHES, step

from executorch_wgpu.runtime.profiling.records import StepProfile, gpu_offset_ns
from executorch_wgpu.runtime.profiling.trace import trace_events, write_trace


def assert_rules(events: list[dict[str, Any]]) -> None:
    """Phases, names, numbers, order, and that slices of one thread nest."""
    named: set[tuple[int, int]] = set()
    open_: dict[tuple[int, int], list[float]] = {}
    last = 0.0
    for event in events:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        json.dumps(event, allow_nan=False)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"]["name"]
            named.add((event["pid"], event["tid"]))
            continue
        thread = event["pid"], event["tid"]
        assert thread in named and (event["pid"], 0) in named
        assert event["ts"] >= last and event["dur"] >= 0
        last = event["ts"]
        # In whole nanoseconds: what meets is equal, without a tolerance.
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        stack = open_.setdefault(thread, [])
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], f"{event['name']} does not nest"
        stack.append(end)


def slices(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == category]


def test_rules() -> None:
    assert_rules(trace_events([]))
    assert_rules(trace_events([step()]))
    assert_rules(trace_events([step(i, 1.0 + i / 3) for i in range(5)]))
    assert_rules(trace_events([step(i, 30.0, overlap=True) for i in range(3)]))


def test_one_slice_a_dispatch() -> None:
    events = trace_events([step(0), step(1)])
    gpu = [e for e in slices(events, "gpu") if "kernel" in e["args"]]
    assert len(gpu) == 2 * (len(DISPATCHES) + 1)
    first = gpu[0]
    assert first["name"] == "layers.0.attention/linear" and first["dur"] == pytest.approx(10)
    args = first["args"]
    assert (args["grid"], args["workgroup"]) == ("1 x 1 x 1", "64 x 1 x 1")
    assert (args["module"], args["operator"]) == ("layers.0.attention", "aten.linear.default")
    assert args["bindings"] == ["reads w0 (64 B)"]
    assert args["GB/s"] == pytest.approx(0.4) and args["GFLOP/s"] == pytest.approx(0.8)
    host = slices(events, "host")
    assert [e["name"] for e in host[:3]] == ["execute forward", "live scalars", "encode"]
    assert host[0]["args"] == {"step": 0, "pos": 0}


def test_modules_stand_around_their_dispatches() -> None:
    events = trace_events([step()])
    modules = {e["args"]["module"]: e for e in slices(events, "gpu") if "kernel" not in e["args"]}
    assert list(modules) == [
        "layers.0",
        "layers.0.attention",
        "layers.0.mlp",
        "layers.0.mlp.up",
        "layers.1",
        "layers.1.attention",
        "layers.1.mlp",
        "layers.1.mlp.up",
    ]
    assert modules["layers.0.mlp"]["name"] == "mlp"
    assert modules["layers.0.attention"]["dur"] == pytest.approx(31)


def test_passes_that_overlap_get_a_thread_of_their_own() -> None:
    events = trace_events([step(overlap=True)])
    threads = {e["tid"] for e in slices(events, "gpu") if "kernel" in e["args"]}
    assert len(threads) == 2


def test_the_gpu_ends_with_the_hosts_wait() -> None:
    one = step(3)
    end = max(p.end_ns for p in one.passes) + gpu_offset_ns(one)
    [wait] = [phase for phase in one.host if phase.name == "wait"]
    assert end == pytest.approx(wait.end_ns)
    # No work before it was submitted, even if the clocks then do not agree on the end.
    hasty = StepProfile(one.method, 0, (), step(3, 100.0).passes, one.host)
    [submit] = [phase for phase in one.host if phase.name == "submit"]
    assert gpu_offset_ns(hasty) == pytest.approx(submit.start_ns)
    assert_rules(trace_events([hasty, step(4)]))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_file(tmp_path: Path, name: str) -> None:
    write_trace(tmp_path / name, [step()], {"adapter": "a"})
    data = (tmp_path / name).read_bytes()
    found = json.loads(gzip.decompress(data) if name.endswith("gz") else data)
    assert found["displayTimeUnit"] in ("ns", "ms")
    assert found["otherData"]["adapter"] == "a"
    assert_rules(found["traceEvents"])
    with pytest.raises(OSError):
        write_trace(tmp_path / "missing" / name, [step()], {})
