"""Ctrl-C anywhere in execute, submit or result leaves a graph that works."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from programs import chain, chain_reference

from executorch_wgpu.runtime.graph import LONG_STEP, WebGPUGraph
from executorch_wgpu.runtime.submission import NativeStaging, submitter_of


# An interrupt that strikes in a destructor is printed and lost, as Python has it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_anywhere(device: Any) -> None:
    graph = WebGPUGraph(device, chain(30, 1024))
    x = np.ones(1024, np.float32)
    expected = chain_reference(x, 30)
    generator = random.Random(1)
    caught = 0
    for _ in range(40):
        timer = threading.Timer(generator.random() * 0.01, os.kill, (os.getpid(), signal.SIGINT))
        flight: list[Any] = []
        try:
            timer.start()
            end = time.monotonic() + 0.05
            while time.monotonic() < end:
                flight.append(graph.submit([x]))
                if len(flight) == 2:
                    flight.pop(0).result()
        except KeyboardInterrupt:
            caught += 1
        with contextlib.suppress(KeyboardInterrupt):
            timer.join()
        del flight
        np.testing.assert_array_equal(graph.execute([x])[0], expected)
    assert caught > 20
    assert len(graph._flight) == 0


def test_between_the_parts_of_a_long_step(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it is on its way: Ctrl-C comes when the rest is, too."""
    graph = WebGPUGraph(device, chain(LONG_STEP, 8))
    x = np.ones(8, np.float32)
    expected = chain_reference(x, LONG_STEP)
    record, passes = graph._recorder.record, 0

    def strike(*arguments: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            os.kill(os.getpid(), signal.SIGINT)
        record(*arguments)

    monkeypatch.setattr(graph._recorder, "record", strike)
    with pytest.raises(KeyboardInterrupt):
        graph.execute([x])
    assert passes == 2 and len(graph._flight) == 0
    for _ in range(2):
        np.testing.assert_array_equal(graph.execute([x])[0], expected)


def test_in_the_callback_of_a_map(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest place: Python's first line after the wait. cffi alone would swallow it."""
    submitter = submitter_of(device)
    staging = submitter.staging(64, "test")
    if not isinstance(staging, NativeStaging):
        pytest.skip("wgpu-native's way")
    token = submitter.submit(device.create_command_encoder().finish())
    original = staging._info.callback

    @staging._ffi.callback(
        "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)",
        onerror=lambda _kind, error, _trace: staging._state.update(interrupt=error),
    )
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    staging._info.callback = interrupted
    with pytest.raises(KeyboardInterrupt), staging.mapped(token, 64):
        pass
    assert staging.idle
    staging._info.callback = original
    with staging.mapped(token, 64) as data:
        assert len(data) == 64


def test_a_buffer_left_mapped_is_not_used_again(device: Any) -> None:
    graph = WebGPUGraph(device, chain(2, 8))
    x = np.ones(8, np.float32)
    pending = graph.submit([x])
    assert pending.staging is not None
    pending.staging.idle = False
    pending.result()  # which sets it idle again
    left = graph._flight.stagings.take(8)
    left.idle = False
    graph._flight.stagings.give(left)
    assert graph._flight.stagings.take(8) is not left
    np.testing.assert_array_equal(graph.execute([x])[0], chain_reference(x, 2))
