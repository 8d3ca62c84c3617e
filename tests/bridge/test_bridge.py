"""The bridge itself: building, registering, arguments, errors, threads, the end of a process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from official import compare, load, lower
from torch import nn
from torch.export import Dim

import executorch_wgpu.runtime.executorch_bridge as bridge
from executorch_wgpu.backend import WgpuPartitioner
from executorch_wgpu.runtime import InvalidInputError, WgpuDelegateError
from executorch_wgpu.runtime.bridge import compile as building

import exports


class Affine(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y + 1


class Stateful(nn.Module):
    """Two methods' worth of work on one state: a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 8))
        self.weight = nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0, keepdim=True))
        return self.total * self.weight + x


ROWS = {0: Dim("n", min=1, max=64)}


@pytest.fixture(scope="module")
def affine() -> bytes:
    """Two inputs with live sizes."""
    inputs = (torch.randn(3, 8), torch.randn(3, 8))
    return bytes(lower(Affine(), inputs, (ROWS, ROWS)).to_executorch().buffer)


@pytest.fixture(scope="module")
def stateful() -> bytes:
    return bytes(lower(Stateful(), (torch.randn(3, 8),), (ROWS,)).to_executorch().buffer)


def method_of(program: bytes | str) -> Any:
    return Runtime.get().load_program(program).load_method("forward")


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


# -- arguments ---------------------------------------------------------------------------------


def test_outputs_have_their_live_sizes(affine):
    method = method_of(affine)
    for rows in (3, 64, 1, 17, 17, 2):
        x, y = torch.randn(rows, 8), torch.randn(rows, 8)
        compare(method.execute([x, y]), [x * y + 1])


def test_inputs_and_outputs_that_the_caller_owns():
    inputs = (torch.randn(3, 8), torch.randn(3, 8))
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    )
    method = load(lower(Affine(), inputs, (ROWS, ROWS)), config)
    delegate = bridge._state.delegates[max(bridge._state.delegates)]
    for rows in (3, 64, 1):
        x, y = torch.randn(rows, 8), torch.randn(rows, 8)
        compare(method.execute([x, y]), [x * y + 1])
        # They were read where they lie.
        assert [a._view.ctypes.data for a in delegate._inputs] == [x.data_ptr(), y.data_ptr()]


def test_each_load_has_its_own_state(stateful):
    x = torch.ones(3, 8)
    first, second = method_of(stateful), method_of(stateful)
    twin = Stateful()
    for _ in range(3):
        compare(first.execute([x]), [twin(x)])
    compare(second.execute([x]), [Stateful()(x)])


# -- errors ------------------------------------------------------------------------------------


def test_a_refused_call_says_why_three_times(affine, caplog):
    """As the cause, in the log, and on request; and the method still works."""
    method = method_of(affine)
    x = torch.randn(5, 8)
    with caplog.at_level(logging.ERROR, "executorch_wgpu"), pytest.raises(RuntimeError) as caught:
        method.execute([x, torch.randn(4, 8)])
    assert isinstance(caught.value.__cause__, InvalidInputError)
    assert bridge.last_error() is caught.value.__cause__
    message = str(caught.value.__cause__)
    assert "4" in message and "5" in message
    assert message in str(caught.value) and message in caplog.text
    compare(method.execute([x, x]), [x * x + 1])


def test_a_program_that_cannot_be_loaded_says_why(affine):
    """Its dispatch list is damaged: ExecuTorch does not look into it, we do."""
    from executorch_wgpu.serialization import PteFile

    delegate = PteFile(affine).method("forward").sole_delegate()
    start = affine.index(bytes(delegate.data[:64]))
    damaged = bytearray(affine)
    damaged[start : start + 64] = b"\xff" * 64
    program = Runtime.get().load_program(bytes(damaged))
    with pytest.raises(RuntimeError, match="InvalidProgramError"):
        program.load_method("forward")


def test_a_call_that_ctrl_c_ended_in_between_is_no_success(affine, monkeypatch):
    """Python drops what a callback raises, and the answer is then 0."""
    method = method_of(affine)
    x = torch.randn(5, 8)

    def pause(turns: Any) -> None:
        raise KeyboardInterrupt

    lost: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(sys, "unraisablehook", lost.append)
        patched.setattr(type(bridge._state.turns), "pause", pause)
        with pytest.raises(RuntimeError):
            method.execute([x, x])
    assert [report.exc_type for report in lost] == [KeyboardInterrupt]
    compare(method.execute([x, x]), [x * x + 1])


def test_errors_of_others_are_left_alone(affine):
    method = method_of(affine)
    with pytest.raises(RuntimeError) as caught:
        method.execute([torch.randn(5, 8)])
    assert caught.value.__cause__ is None


# -- threads -----------------------------------------------------------------------------------


def in_threads(work: Any, count: int) -> list[Any]:
    """Runs ``work(k)`` in threads at once; raises what one raised."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(k: int) -> None:
        barrier.wait()
        try:
            results[k] = work(k)
        except BaseException as error:
            results[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def wrong(execute: Any, k: int, calls: int = 25) -> int:
    """Calls whose result is another thread's."""
    generator = torch.Generator().manual_seed(k)
    found = 0
    for _ in range(calls):
        x, y = (torch.randn(7, 8, generator=generator) for _ in range(2))
        (z,) = execute([x, y])
        found += not torch.allclose(z, x * y + 1, atol=1e-5)
    return found


def test_two_threads_on_one_method_take_turns(affine):
    method = method_of(affine)
    assert in_threads(lambda k: wrong(method.execute, k), 2) == [0, 0]


def meanwhile(monkeypatch: Any, method: Any, other: Any) -> list[Any]:
    """Runs ``method``, and in a thread of its own ``other`` while a delegate is in the middle of
    that call. Results or errors of both."""
    from executorch_wgpu.runtime.graph import WebGPUGraph

    inside, left = threading.Event(), threading.Event()
    run = WebGPUGraph.execute
    results: list[Any] = [None, None]

    def execute(graph: Any, *args: Any) -> Any:
        if threading.current_thread() is first and not inside.is_set():
            inside.set()
            assert left.wait(60), "the other call waits for this one"
        return run(graph, *args)

    def call(k: int, work: Any) -> None:
        try:
            results[k] = work()
        except Exception as error:
            results[k] = error

    monkeypatch.setattr(WebGPUGraph, "execute", execute)
    first = threading.Thread(target=call, args=(0, method))
    first.start()
    assert inside.wait(60)
    call(1, other)
    left.set()
    first.join()
    return results


def test_calls_that_go_past_the_lock_collide_and_are_told(affine, monkeypatch):
    """The race that the lock is for. ExecuTorch alone gives wrong results in silence here."""
    method = method_of(affine)
    x, y = torch.randn(7, 8), torch.randn(7, 8)
    results = meanwhile(monkeypatch, lambda: method._method([x, y]), lambda: method._method([y, y]))
    assert [type(r) for r in results] == [RuntimeError, RuntimeError]
    assert isinstance(bridge.last_error(), WgpuDelegateError)
    assert "two threads" in str(bridge.last_error())
    assert wrong(method.execute, 0, 2) == 0


def test_programs_run_beside_each_other(affine, monkeypatch):
    """A whole call of one, and a load, while a delegate of the other is at work."""
    method, other = method_of(affine), method_of(affine)
    x = torch.randn(7, 8)

    def work() -> Any:
        method_of(affine).execute([x, x])
        return other.execute([x, x])

    for got in meanwhile(monkeypatch, lambda: method.execute([x, x]), work):
        compare(got, [x * x + 1])


def test_the_older_interface_takes_turns_too(affine):
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    module = _load_for_executorch_from_buffer(affine)
    assert in_threads(lambda k: wrong(module.forward, k), 2) == [0, 0]


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_calls_of_all_kinds_in_any_order_leave_the_streams_alone(seconds):
    """ExecuTorch redirects C++'s streams during a call. Where calls were interleaved, by a delegate
    or by a line of its log, they came to point to what was gone, and the process crashed: so this
    is one of its own."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("many_calls.py")), str(seconds)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "the streams are as before", done.stdout


def test_methods_of_one_program_share_a_lock_and_their_constants(monkeypatch):
    shared = nn.Parameter(torch.randn(8))

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = shared

        def forward(self, x, y):
            return x * self.weight + y

    class Second(First):
        def forward(self, x, y):
            return x - y * self.weight

    modules = {"one": First(), "two": Second()}
    inputs = (torch.randn(3, 8), torch.randn(3, 8))
    lowered = to_edge_transform_and_lower(
        {name: exports.export(module, inputs) for name, module in modules.items()},
        partitioner={name: [WgpuPartitioner()] for name in modules},
    )
    asked: list[str] = []
    original = bridge._Constants.__call__

    def call(self: Any, key: str) -> memoryview:
        asked.append(key)
        return original(self, key)

    monkeypatch.setattr(bridge._Constants, "__call__", call)
    program = Runtime.get().load_program(bytes(lowered.to_executorch().buffer))
    methods = {name: program.load_method(name) for name in modules}
    assert len(asked) == 1  # the second method found it on the device
    assert methods["one"]._wgpu_lock is methods["two"]._wgpu_lock

    def work(k: int) -> int:
        name = ("one", "two")[k]
        found = 0
        for _ in range(20):
            x, y = torch.randn(3, 8), torch.randn(3, 8)
            (z,) = methods[name].execute([x, y])
            found += not torch.allclose(z, modules[name](x, y), atol=1e-5)
        return found

    assert in_threads(work, 2) == [0, 0]


# -- registering and building --------------------------------------------------------------------


def test_registering_twice_is_registering_once(registered):
    registered.register()
    names = Runtime.get().backend_registry.registered_backend_names
    assert names.count("WgpuBackend") == 1
    assert Runtime.get().backend_registry.is_available("WgpuBackend")
    assert registered.is_registered()


def test_another_executorch_is_refused(monkeypatch):
    import executorch.version

    monkeypatch.setattr(executorch.version, "__version__", "1.6.0")
    with pytest.raises(bridge.BridgeError, match=r"executorch 1\.6\.0 .*1\.5\.x"):
        bridge._find_executorch()


def install() -> building.ExecutorchInstall:
    return bridge._find_executorch()


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("EXECUTORCH_WGPU_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(bridge.BridgeError, match=r"no C\+\+ compiler.*g\+\+"):
        building.shim_path(install())
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(bridge.BridgeError, match=r"CXX.*no-such-compiler"):
        building.shim_path(install())


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "fake-cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


OUTPUT = 'while [ "$1" != -o ]; do shift; done; '


def test_a_build_is_kept_and_outlives_its_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("EXECUTORCH_WGPU_CACHE", str(tmp_path / "cache"))
    count = tmp_path / "count"
    monkeypatch.setenv(
        "CXX", fake_compiler(tmp_path, f'echo x >> {count}; {OUTPUT} echo ok > "$2"')
    )
    first = building.shim_path(install())
    assert building.shim_path(install()) == first and first.read_text() == "ok\n"
    assert count.read_text() == "x\n"
    assert [p.name for p in first.parent.iterdir()] == [first.name]  # nothing half-built
    # Other executorch, other path.
    other = building.ExecutorchInstall(install().root, "1.5.2 abc")
    assert building.shim_path(other) != first
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert building.shim_path(install()) == first


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setenv("EXECUTORCH_WGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "echo out of cheese >&2; exit 1"))
    with pytest.raises(bridge.BridgeError, match="out of cheese"):
        building.shim_path(install())
    assert not any(p.is_file() for p in (tmp_path / "cache").rglob("*"))


def test_a_shim_for_another_executorch_is_not_loaded(monkeypatch, tmp_path):
    path = building.shim_path(install())
    other = building.ExecutorchInstall(install().root, "1.5.2 abc")
    with pytest.raises(bridge.BridgeError, match=r"was built for executorch 1\.5"):
        bridge._load(path, other)


# -- processes ----------------------------------------------------------------------------------

USE = """
    import torch
    from executorch.runtime import Runtime
    try:
        Runtime.get().load_program({path!r}).load_method("forward")
        raise SystemExit("ran without the bridge")
    except RuntimeError:
        pass
    import executorch_wgpu.runtime.executorch_bridge as bridge
    bridge.register()
    method = Runtime.get().load_program({path!r}).load_method("forward")
    (z,) = method.execute([torch.full((2, 8), 3.0), torch.full((2, 8), 2.0)])
    assert bool((z == 7).all())
    kept = [method]
    print("done")
"""


def test_a_process_registers_at_any_time_and_ends_clean(affine, tmp_path):
    path = tmp_path / "affine.pte"
    path.write_bytes(affine)
    done = run_python(USE.format(path=str(path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("done")
    # Before that, ExecuTorch's own error named what was missing.
    assert "WgpuBackend" in done.stdout + done.stderr


@pytest.mark.slow
def test_processes_that_build_at_once_all_work(affine, tmp_path):
    path = tmp_path / "affine.pte"
    path.write_bytes(affine)
    script, cache = USE.format(path=str(path)), str(tmp_path / "cache")
    results = in_threads(lambda k: run_python(script, EXECUTORCH_WGPU_CACHE=cache), 3)
    assert [r.returncode for r in results] == [0, 0, 0], [r.stderr for r in results]
    assert len(list((tmp_path / "cache").rglob("*.so"))) == 1
