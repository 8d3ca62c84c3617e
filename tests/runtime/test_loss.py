"""A lost device: every pending and later call says so, and a reloaded program goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faulty
import numpy as np
import pytest
from faulty import faulty_driver  # noqa: F401
from programs import accumulator, chain
from pte_files import delegated, write_pte

from executorch_wgpu.runtime import Runtime
from executorch_wgpu.runtime.device import another_device, is_lost, is_native, request_device
from executorch_wgpu.runtime.errors import DeviceLostError, InvalidInputError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization import BufferKind

ARGS = [np.ones(8, np.float32), np.array([0])]
NAME = "layers.0.state"


def lost_graph() -> tuple[WebGPUGraph, Any]:
    device = request_device()
    graph = WebGPUGraph(device, accumulator(initial_key="k"), {"k": bytes(32)}, "forward")
    graph.execute(ARGS)
    pending = graph.submit(ARGS)
    saved = graph.state.snapshot()
    device.destroy()
    calls: dict[str, Callable[[], object]] = {
        "pending": pending.result,
        "execute": lambda: graph.execute(ARGS),
        "submit": lambda: graph.submit(ARGS),
        "read": lambda: graph.state.read(NAME),
        "write": lambda: graph.state.write(NAME, np.ones(8, np.float32)),
        "reset": graph.state.reset,
        "snapshot": graph.state.snapshot,
        "snapshot on the host": lambda: graph.state.snapshot(on_host=True),
        "restore": lambda: graph.state.restore(saved),
        "fork": graph.fork,
        "flush": graph._submitter.flush,
        "load": lambda: WebGPUGraph(device, chain(2, 8), label="other"),
    }
    return graph, calls


@pytest.mark.parametrize("order", [1, -1])
def test_every_call_says_so(order: int) -> None:
    """Whichever comes first, and each a second time."""
    graph, calls = lost_graph()
    for name, call in [*list(calls.items())[::order], *calls.items()]:
        if name == "flush":
            with pytest.raises(Exception, match=r"(?i)lost"):
                call()
        elif name == "pending" and order < 0:
            continue
        else:
            with pytest.raises(Exception, match="lost") as caught:
                call()
            assert "DeviceLost" in type(caught.value).__name__ or "results were lost" in str(
                caught.value
            ), (name, caught.value)
            assert "is lost" not in str(caught.value) or "program.reload()" in str(caught.value)
    assert is_lost(graph.device)


def test_lost_while_others_wait() -> None:
    """Threads in the middle of their calls: each ends with the error, none hangs or goes on."""
    device = request_device()
    if not is_native(device):
        pytest.skip("Dawn crashes where one thread destroys a device that another creates on")
    ended: list[object] = []

    def work() -> None:
        graph = WebGPUGraph(device, accumulator(), label="forward")
        started.wait()
        try:
            while True:
                graph.execute(ARGS)
        except Exception as error:
            ended.append(error)

    started = threading.Barrier(4)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    device.destroy()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in ended] == [DeviceLostError] * 3, ended


# -- going on -------------------------------------------------------------------------------


@pytest.fixture
def program() -> Any:
    data = write_pte([delegated("forward", accumulator())])
    return Runtime.get().load_program(data, device=request_device())


def test_reload_goes_on_from_a_snapshot(program: Any) -> None:
    method, fork_source = program.load_method("forward"), program.load_method("forward")
    for _ in range(3):
        method.execute(ARGS)
    fork = method.fork()
    fork.execute(ARGS)
    saved, saved_fork = (m.state.snapshot(on_host=True) for m in (method, fork))
    assert saved.on_host and saved.nbytes == 32
    expected = method.execute(ARGS)[0]
    lost = method.graph.device
    lost.destroy()
    with pytest.raises(DeviceLostError):
        method.execute(ARGS)
    program.reload()
    assert method.graph.device is fork.graph.device is not lost
    assert method.execute(ARGS)[0][0] == 1.0  # its states start anew
    method.state.restore(saved)
    fork.state.restore(saved_fork)
    np.testing.assert_array_equal(method.execute(ARGS)[0], expected)
    assert fork.execute(ARGS)[0][0] == 5.0
    assert fork_source.execute(ARGS)[0][0] == 1.0
    assert program.load_method("forward").graph.device is method.graph.device
    assert method.epoch == fork.epoch == 1


def test_a_snapshot_of_the_lost_device_is_refused(program: Any) -> None:
    method = program.load_method("forward")
    method.execute(ARGS)
    saved = method.state.snapshot()
    method.graph.device.destroy()
    program.reload()
    with pytest.raises(InvalidInputError, match="lies on another device, lost or not; take it wi"):
        method.state.restore(saved)
    assert method.execute(ARGS)[0][0] == 1.0


def test_reload_of_a_device_that_works(program: Any) -> None:
    """To another device, by choice; a call that was pending ends where it was."""
    method = program.load_method("forward")
    method.execute(ARGS)
    pending = method.submit(ARGS)
    saved = method.state.snapshot(on_host=True)
    program.reload(request_device())
    assert pending.result()[0][0] == 2.0
    method.state.restore(saved)
    assert method.execute(ARGS)[0][0] == 3.0


def test_a_failed_reload_changes_nothing(program: Any) -> None:
    method = program.load_method("forward")
    with pytest.raises(Exception, match="no adapter matches"):
        program.reload("Nonesuch")
    assert method.execute(ARGS)[0][0] == 1.0 and method.epoch == 0


def test_shared_states_are_shared_again() -> None:
    buffers = [
        replace(b, share="kv") if b.kind is BufferKind.STATE else b for b in accumulator().buffers
    ]
    shared = replace(accumulator(), buffers=tuple(buffers))
    data = write_pte([delegated("a", shared), delegated("b", shared)])
    program = Runtime.get().load_program(data, device=request_device())
    a, b = program.load_method("a"), program.load_method("b")
    a.execute(ARGS)
    a.graph.device.destroy()
    program.reload()
    assert a.execute(ARGS)[0][0] == 1.0
    assert b.execute(ARGS)[0][0] == 2.0


def test_another_device() -> None:
    device = request_device()
    device.destroy()
    fresh = another_device(device)
    assert fresh is not device and fresh.adapter.summary == device.adapter.summary


# -- a driver that gives the device up ------------------------------------------------------

_GONE = """
graph = WebGPUGraph(device, accumulator(), label="forward")
args = [np.ones(8, np.float32), np.array([0])]
graph.execute(args)
saved = graph.state.snapshot(on_host=True)
pending = graph.submit(args)
fail({what})
for call in (pending.result, lambda: graph.execute(args),
             lambda: graph.state.read("layers.0.state"), graph._submitter.flush,
             lambda: WebGPUGraph(device, chain(2, 8))):
    try:
        call()
        print("ok")
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
fail(0)
again = graph.again(request_device("cpu"))
again.state.restore(saved)
print(again.execute(args)[0][0])
"""


@pytest.mark.parametrize("what", ["SUBMIT", "WAIT", "SUBMIT | WAIT"])
def test_a_driver_that_loses_the_device(faulty_driver: Path, what: str) -> None:  # noqa: F811
    """wgpu-native would end the process."""
    done = faulty.run(faulty_driver, _GONE.format(what=what))
    pending, *rest, result = faulty.lines(done)
    assert result == "2.0"
    if "WAIT" in what:
        assert pending.startswith(
            "DeviceLostError forward: reading the outputs: waiting: the driver"
        )
    for line in rest:
        assert "lost" in line.lower() or "gave the device up" in line, line
        assert line.startswith(("DeviceLostError", "GPU")), line


def test_without_the_guard_the_process_ends(faulty_driver: Path) -> None:  # noqa: F811
    done = faulty.run(faulty_driver, _GONE.format(what="WAIT"), EXECUTORCH_WGPU_GUARD="0")
    assert done.returncode < 0 and "Parent device is lost" in done.stderr


def test_abort_elsewhere_is_abort(faulty_driver: Path) -> None:  # noqa: F811
    """The guard's handler leaves other aborts, and other handlers, alone."""
    body = "graph = WebGPUGraph(device, chain(2, 8)); graph.execute([np.ones(8, np.float32)])\n"
    done = faulty.run(faulty_driver, body + "import os; os.abort()")
    assert done.returncode == -6
    body += "import faulthandler; faulthandler.enable()\n"
    body += "graph.execute([np.ones(8, np.float32)]); import os; os.abort()"
    done = faulty.run(faulty_driver, body)
    assert done.returncode == -6 and "Fatal Python error: Aborted" in done.stderr


def test_a_signal_from_elsewhere_ends_the_process(faulty_driver: Path) -> None:  # noqa: F811
    """Also in the middle of a guarded call, where wgpu may hold a lock."""
    body = """
graph = WebGPUGraph(device, accumulator())
args = [np.ones(8, np.float32), np.array([0])]
import os, threading
threading.Timer(0.3, lambda: os.kill(os.getpid(), 6)).start()
for _ in range(10_000_000):
    graph.execute(args)
"""
    assert faulty.run(faulty_driver, body).returncode == -6
