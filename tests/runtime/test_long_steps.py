"""Steps of which a part is submitted before the rest is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import chain, chain_reference

from executorch_wgpu.runtime.device import request_device
from executorch_wgpu.runtime.errors import DeviceLostError, WgpuDelegateError
from executorch_wgpu.runtime.graph import LONG_STEP, WebGPUGraph

RNG = np.random.default_rng(0)


def parts(graph: WebGPUGraph, monkeypatch: pytest.MonkeyPatch, fail_at: int = 0) -> list[int]:
    """The sizes of the passes that the graph records from now on; that number of them fails."""
    found: list[int] = []
    record = graph._recorder.record

    def noting(encoder: Any, live: Any, offset: int, prepared: list[Any], values: Any) -> None:
        found.append(len(prepared))
        if len(found) == fail_at:
            raise MemoryError("no room for commands")
        record(encoder, live, offset, prepared, values)

    monkeypatch.setattr(graph._recorder, "record", noting)
    return found


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("links", [LONG_STEP - 1, LONG_STEP, LONG_STEP + 13])
def test_in_two_parts_only_where_the_gpu_is_idle(device, links, plain, monkeypatch) -> None:
    graph = WebGPUGraph(device, chain(links, 100, dynamic=True), plain_api=plain)
    found = parts(graph, monkeypatch)
    inputs = [RNG.standard_normal(n).astype(np.float32) for n in (100, 7, 64)]
    steps = [graph.submit([x]) for x in inputs]
    for x, step in zip(inputs, steps, strict=True):
        np.testing.assert_allclose(step.result()[0], chain_reference(x, links), rtol=1e-5)
    head = links // 3
    first = [head, links - head] if links >= LONG_STEP else [links]
    assert found == [*first, links, links]
    for x in inputs:
        np.testing.assert_allclose(graph.execute([x])[0], chain_reference(x, links), rtol=1e-5)
    assert found[len(first) + 2 :] == first * 3


def test_a_failure_between_the_parts(device, monkeypatch) -> None:
    """Half of the step has run: the graph says so from then on."""
    graph = WebGPUGraph(device, chain(LONG_STEP, 8), label="torn")
    x = np.ones(8, np.float32)
    parts(graph, monkeypatch, fail_at=2)
    with pytest.raises(MemoryError):
        graph.execute([x])
    with pytest.raises(WgpuDelegateError, match=r"torn: a step stopped half way \(no room for"):
        graph.execute([x])
    again = graph.again(device)
    np.testing.assert_allclose(again.execute([x])[0], chain_reference(x, LONG_STEP), rtol=1e-5)


def test_a_device_that_is_lost_between_the_parts(monkeypatch) -> None:
    """It is the loss that every call names."""
    device = request_device()
    graph = WebGPUGraph(device, chain(LONG_STEP, 8))
    record, calls = graph._recorder.record, []

    def losing(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            device.destroy()
        record(*args)

    monkeypatch.setattr(graph._recorder, "record", losing)
    for _ in range(3):
        with pytest.raises(DeviceLostError):
            graph.execute([np.ones(8, np.float32)])
    assert len(calls) >= 2


def test_a_failure_before_the_parts(device, monkeypatch) -> None:
    """Nothing has run: the next step does."""
    graph = WebGPUGraph(device, chain(LONG_STEP, 8))
    x = np.ones(8, np.float32)
    parts(graph, monkeypatch, fail_at=1)
    with pytest.raises(MemoryError):
        graph.execute([x])
    np.testing.assert_allclose(graph.execute([x])[0], chain_reference(x, LONG_STEP), rtol=1e-5)
