"""``WEBGPU_TIMESTAMP_QUERY``: what a process reports when it ends."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import chain
from steps import step
from test_trace import assert_rules

from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.profiling import bandwidth, session

SCRIPT = """
import sys
import numpy as np
sys.path.append({folder!r})
from programs import chain
from executorch_wgpu.runtime.device import default_device
from executorch_wgpu.runtime.graph import WebGPUGraph
device = default_device()
for name, links in (("prefill", 2), ("decode", 3)):
    graph = WebGPUGraph(device, chain(links, 64, dynamic=True), label=name)
    for n in (64, 10):
        graph.execute([np.ones(n, np.float32)])
    assert (graph.last_profile() is not None) == {on}
print("done")
"""


def run(value: str | None, on: bool) -> subprocess.CompletedProcess[str]:
    folder = str(Path(__file__).parents[1] / "runtime")
    environment = {k: v for k, v in os.environ.items() if k != "WEBGPU_TIMESTAMP_QUERY"}
    if value is not None:
        environment["WEBGPU_TIMESTAMP_QUERY"] = value
    code = SCRIPT.format(folder=folder, on=on)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"  # everything else is on stderr
    return done


def test_a_path_gets_the_trace_and_stderr_a_table_a_method(timed: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    text = run(str(path), on=True).stderr
    assert text.count("== prefill") == text.count("== decode") == 1
    for part in ("on the GPU", "affine", "layers.*", "copies at", "warm-up apart: 1", "readback"):
        assert part in text
    assert f"trace of the last 4 steps: {path}" in text
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert_rules(events)
    names = [event["name"] for event in events]
    assert names.count("execute prefill") == names.count("execute decode") == 2
    assert names.count("link.2/affine") == 2


def test_off_says_nothing(timed: Any) -> None:
    assert "affine" not in run("0", on=False).stderr


@pytest.mark.parametrize(
    ("value", "path"),
    [("1", None), ("yes", None), ("t.json", "t.json"), ("/tmp/t", "/tmp/t"), ("", None)],
)
def test_what_is_a_path(value: str, path: str | None) -> None:
    assert session.trace_path(value) == path


def joined(value: str, monkeypatch: pytest.MonkeyPatch) -> session.Session:
    """A session with two graphs of one program, without a device."""
    about = {"adapter": "a GPU", "copy_bytes_per_s": 1e12}
    monkeypatch.setattr(session, "about_device", lambda device: about)
    made, program = session.Session(value), object()
    for _ in range(2):
        profiler = SimpleNamespace(device=None, label="forward", program=program, on_step=None)
        made.join(profiler)  # type: ignore[arg-type]
        for k in range(3):
            profiler.on_step(step(k))  # type: ignore[misc]
    return made


def test_graphs_of_one_program_are_one_method(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    joined("1", monkeypatch).report(text)
    assert text.getvalue().count("== forward (decode)") == 1
    assert "5 steps, 7 dispatches each" in text.getvalue()
    assert "copies at 1,000.0 GB/s" in text.getvalue()


def test_a_trace_that_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = io.StringIO()
    joined(str(tmp_path / "missing" / "t.json"), monkeypatch).report(text)
    assert "no trace at" in text.getvalue()


def test_nothing_ran_nothing_is_said() -> None:
    text = io.StringIO()
    session.Session("1").report(text)
    assert text.getvalue() == ""


def test_asking_in_code_reports_nothing(timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """profile=True is for a program that looks at last_profile() itself."""
    monkeypatch.setattr(session, "join", lambda _: pytest.fail("joined"))
    monkeypatch.setenv("WEBGPU_TIMESTAMP_QUERY", "1")
    graph = WebGPUGraph(timed, chain(1, 64), profile=True)
    graph.execute([np.ones(64, np.float32)])
    assert graph.last_profile() is not None


def test_copy_bandwidth(timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine: more than 10 MB/s, less than 100 TB/s; measured once."""
    monkeypatch.setattr(bandwidth, "_LARGEST", 8 << 20)
    found = bandwidth._measure(timed)
    assert found is not None and 1e7 < found < 1e14
    first = bandwidth.copy_bandwidth(timed)
    monkeypatch.setattr(bandwidth, "_measure", lambda _: pytest.fail("measured again"))
    assert bandwidth.copy_bandwidth(timed) == first
    poor = SimpleNamespace(features=set())
    monkeypatch.undo()
    assert bandwidth._measure(poor) is None
