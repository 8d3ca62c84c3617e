"""Faults that only hardware has: a kernel that a driver kills, memory that a GPU runs out of.

    EXECUTORCH_WGPU_HARDWARE=1 python -m pytest -s tests/runtime/test_hardware.py

Each runs in a process of its own, ends within half a minute, and needs neither torch nor
executorch. A desktop's driver resets the GPU after some seconds of one kernel; servers and drivers
that compute on the CPU let it run, which is then what is said.
``EXECUTORCH_WGPU_WATCHDOG_SECONDS``: how long the kernel is to take, 12 by default.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    os.environ.get("EXECUTORCH_WGPU_HARDWARE", "") in ("", "0"),
    reason="keeps a GPU busy, or fills it: runs with EXECUTORCH_WGPU_HARDWARE=1",
)

_PRELUDE = """
import gc, json, os, sys, time, warnings
sys.path.insert(0, {here!r})
warnings.simplefilter("ignore")
import numpy as np
from executorch_wgpu.runtime import *
from executorch_wgpu.runtime.device import request_device
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.memory import ledger_of
from executorch_wgpu.serialization import BufferKind, DType
from programs import LIVE, Build, R, W, accumulator
from pte_files import delegated, write_pte
ARGS = [np.ones(8, np.float32), np.array([0])]
def say(**what):
    print(json.dumps(what), flush=True)
device = request_device()
say(adapter=device.adapter.summary, kind=device.adapter.info["adapter_type"])
"""


def run(body: str, seconds: float) -> dict[str, Any]:
    """What a process says, all lines together; it must end well, and in time."""
    command = [sys.executable, "-c", _PRELUDE.format(here=str(HERE)) + body]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"did not end within {seconds} s; it said {error.stdout!r}")
    said: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        print(line)
        said |= json.loads(line)
    assert done.returncode == 0, done.stderr[-3000:]
    return said


_LONG = '''
KERNEL = LIVE + """
@group(1) @binding(0) var<storage, read> x: array<i32>;
@group(1) @binding(1) var<storage, read_write> y: array<i32>;
@compute @workgroup_size(1) fn main() {
    var v = u32(x[0]);
    for (var r = 0; r < x[1]; r++) {
        for (var k = 0u; k < 65536u; k++) { v = v * 1664525u + 1013904223u; }
    }
    y[0] = i32(v);
}
"""
def reference(seed, rounds):
    """65536 * rounds steps of v -> a v + c, by squaring."""
    power, (a, c), (total_a, total_c) = 65536 * rounds, (1664525, 1013904223), (1, 0)
    while power:
        if power & 1:
            total_a, total_c = total_a * a % 2**32, (total_c * a + c) % 2**32
        a, c = a * a % 2**32, (c * a + c) % 2**32
        power >>= 1
    return np.uint32((seed * total_a + total_c) % 2**32).astype(np.int32)
b = Build()
at = b.input("x", DType.I32, [b.const(2)], 8)
to = b.output("y", DType.I32, [b.const(1)], 4)
one = b.const(1)
b.simple(b.dispatch(b.kernel(KERNEL, (R, W), workgroup_size=(1, 1, 1)), [at, to], (one, one, one),
                    "long/loop"))
long = WebGPUGraph(device, b.program(), label="long")
program = Runtime.get().load_program(
    write_pte([delegated("forward", accumulator())]), device=device)
method = program.load_method("forward")
method.execute(ARGS)
saved = method.state.snapshot(on_host=True)

def attempt(rounds):
    start = time.monotonic()
    (y,) = long.execute([np.array([7, rounds], np.int32)])
    took = time.monotonic() - start
    if y[0] != reference(7, rounds):
        say(early=True, rounds=rounds)  # lavapipe ends all loops after 65,535 rounds
        sys.exit()
    return took

rounds, took = 1, attempt(1)
while took < 0.3 and rounds < 1 << 28:
    rounds *= 4
    took = attempt(rounds)
rounds = int(min(rounds * SECONDS / took, 2**31 - 1))
start = time.monotonic()
try:
    attempt(rounds)
    say(killed=False, seconds=round(time.monotonic() - start, 1))
except DeviceLostError as error:
    say(killed=True, seconds=round(time.monotonic() - start, 1), message=str(error))
    try:
        method.execute(ARGS)
        say(later="ran")
    except DeviceLostError as later:
        say(later=type(later).__name__)
    program.reload()
method.state.restore(saved)
say(again=float(method.execute(ARGS)[0][0]))
'''


def test_a_kernel_that_a_driver_kills() -> None:
    """It ends in a DeviceLostError, and a reloaded program goes on from its snapshot; or it runs to
    its end, right."""
    seconds = float(os.environ.get("EXECUTORCH_WGPU_WATCHDOG_SECONDS", "12"))
    said = run(f"SECONDS = {seconds}\n" + _LONG, 60 + 4 * seconds)
    if said.get("early"):
        assert "llvmpipe" in said["adapter"], said
        pytest.skip(f"{said['adapter']} ends loops before they are done: none is too long for it")
    assert said["again"] == 2.0
    if not said["killed"]:
        pytest.skip(f"{said['adapter']} let a kernel run for {said['seconds']} s: no watchdog")
    assert said["later"] == "DeviceLostError" and "program.reload()" in said["message"]


_FULL = """
if device.adapter.info["adapter_type"] == "CPU":
    sys.exit()
first = WebGPUGraph(device, accumulator(), label="first")
first.execute(ARGS)
# Buffers as large as one may be, at most 8 GiB: full soon, and the last step is not a giant one.
SIZE = min(8 << 30, device.limits["max-buffer-size"]) // 256 * 256
LIMITS = (("max-buffer-size", SIZE),)
def large(number):
    b = Build()
    at = b.input("x", DType.F32, [b.const(4)], 16)
    state = b.buffer(BufferKind.STATE, SIZE, f"cache{number}")
    b.tensor(DType.F32, [b.const(4)], state)
    to = b.output("y", DType.F32, [b.const(4)], 16)
    one = b.const(1)
    dispatch = b.dispatch(b.affine(b.const(4), 2.0), [at, to], (one, one, one), "large/affine")
    b.simple(dispatch)
    return WebGPUGraph(device, b.program(limits=LIMITS), label=f"large{number}")
x = np.ones(4, np.float32)
held = []
error = None
while len(held) * SIZE < 2 << 40:
    try:
        held.append(large(len(held)))
        assert held[-1].execute([x])[0][0] == 2.0
    except OutOfDeviceMemoryError as caught:
        error = str(caught)
        break
    assert time.monotonic() < STOP, "no end of it"
say(loaded=len(held), gib=len(held) * SIZE / 2**30, message=error)
held = [graph for graph in held if graph.label == "large0" or len(held) < 2]
gc.collect()
say(first=float(first.execute(ARGS)[0][0]))
say(earlier=float(held[0].execute([x])[0][0]) if held else 2.0)
again = large(1000)
say(again=float(again.execute([x])[0][0]))
del again, held
gc.collect()
say(left=[name for name, _ in ledger_of(device).items() if name.startswith("large")])
"""


def test_a_gpu_without_memory() -> None:
    """Programs are loaded until there is no room: the error says what was asked for and who holds
    what, programs that were there go on, and what is dropped is room again."""
    stop = "import time\nSTOP = time.monotonic() + 25\n"
    said = run(stop + _FULL, 90)
    if said["kind"] == "CPU":
        pytest.skip(f"{said['adapter']} has this machine's memory: see test_out_of_memory.py")
    assert said["message"] is not None, said
    assert said["message"].startswith(f"large{said['loaded']}: ")
    assert "this process holds" in said["message"] and "cache0" in said["message"]
    assert (said["first"], said["earlier"], said["again"]) == (2.0, 2.0, 2.0)
    assert said["left"] == []
