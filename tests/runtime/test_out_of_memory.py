"""Memory that the device does not have, the limit on it, and that dropped programs give it back."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import faulty
import numpy as np
import pytest
from faulty import faulty_driver  # noqa: F401
from programs import accumulator, chain
from pte_files import MethodSpec, delegated, write_pte
from test_load import with_constant

from executorch_wgpu.runtime import InvalidInputError, OutOfDeviceMemoryError, Runtime
from executorch_wgpu.runtime.device import is_native, request_device
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.memory import human_bytes, ledger_of, memory_limit

ARGS = [np.ones(8, np.float32), np.array([0])]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (550502400, "525.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_the_ledger_follows_what_is_alive() -> None:
    device = request_device()
    ledger = ledger_of(device)
    graph = WebGPUGraph(device, accumulator(), label="forward")
    graph.execute(ARGS)
    names = {name for name, _ in ledger.items()}
    assert {"forward: x", "forward: layers.0.state", "forward: y", "forward: staging"} <= names
    saved = graph.state.snapshot()
    assert ("forward: saved layers.0.state", 32) in ledger.items()
    before = ledger.total
    fork = graph.fork()
    assert ledger.total > before
    del fork, saved, graph
    gc.collect()
    assert [name for name, _ in ledger.items() if name != "fence"] == []


def test_a_limit_is_compared_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    device = request_device()
    graph = WebGPUGraph(device, accumulator(), label="first")
    graph.execute(ARGS)
    allocated: list[str] = []
    original = type(device).create_buffer

    def create(self: Any, **kwargs: Any) -> Any:
        allocated.append(kwargs["label"])
        return original(self, **kwargs)

    monkeypatch.setattr(type(device), "create_buffer", create)
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        WebGPUGraph(device, chain(3, 1 << 20), label="big", max_bytes=16 << 20)
    assert allocated == []
    text = str(caught.value)
    assert text.startswith("big: needs 16.0 MiB for its buffers (the largest: 'big: x' 4.0 MiB, ")
    assert "and 16.0 MiB may be used in all; this process holds" in text
    assert f"on '{device.adapter.summary}'; the largest: 'first: " in text
    assert "Nothing was allocated" in text
    monkeypatch.setenv("EXECUTORCH_WGPU_MAX_BYTES", str(1 << 20))
    with pytest.raises(OutOfDeviceMemoryError, match=r"1\.0 MiB may be used in all"):
        WebGPUGraph(device, chain(3, 1 << 20), label="big")
    monkeypatch.setenv("EXECUTORCH_WGPU_MAX_BYTES", "1 GB")
    with pytest.raises(InvalidInputError, match="is '1 GB', expected a number of bytes"):
        WebGPUGraph(device, chain(1, 4))
    assert graph.execute(ARGS)[0][0] == 2.0


def test_what_is_shared_does_not_count_twice() -> None:
    device = request_device()
    size, identity = 1 << 20, object()
    data = {"w": bytes(4 * size)}
    options: dict[str, Any] = {"data_identity": identity, "max_bytes": 13 << 20}
    graphs = [WebGPUGraph(device, with_constant(size), data, **options) for _ in range(2)]
    assert len(graphs) == 2  # 4 MiB of constants once, 4 MiB of outputs twice
    with pytest.raises(OutOfDeviceMemoryError, match=r"needs 4\.0 MiB for its buffers"):
        WebGPUGraph(device, with_constant(size), data, **options)


def test_the_limit_of_a_program() -> None:
    data = write_pte([delegated("forward", accumulator())])
    program = Runtime.get().load_program(data, device=request_device(), max_bytes=100)
    with pytest.raises(OutOfDeviceMemoryError, match=r"forward: needs 96 bytes .* 100 bytes may"):
        program.load_method("forward"), program.load_method("forward")


def test_an_adapter_on_the_cpu_has_the_machines_memory(device: Any) -> None:
    limit = memory_limit(device)
    if device.adapter.info["adapter_type"] == "CPU":
        assert limit is not None and limit > 1 << 28
    else:
        assert limit is None
    assert memory_limit(device, 5) == 5


_FULL = """
first = WebGPUGraph(device, accumulator(), label="first")
args = [np.ones(8, np.float32), np.array([0])]
first.execute(args)
def attempt(act):
    try:
        act()
        print("ok")
    except WgpuDelegateError as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
fail(ALLOCATE, 40 << 20)
attempt(lambda: WebGPUGraph(device, chain(3, 1 << 24), label="big"))
gc.collect()
print([name for name, _ in ledger_of(device).items() if name.startswith("big")])
print(first.execute(args)[0][0])
second = WebGPUGraph(device, chain(2, 1 << 22, dynamic=True), label="second")
fail(ALLOCATE, 0)
attempt(lambda: second.execute([np.ones(1 << 22, np.float32)]))
attempt(lambda: second.execute([np.ones(1 << 22, np.float32)]))
attempt(lambda: [first.state.snapshot() for _ in range(10000)])
print(first.execute(args)[0][0])
fail(0)
print(second.execute([np.ones(1 << 22, np.float32)])[0][:2].tolist())
third = WebGPUGraph(device, chain(3, 1 << 20), label="third")
print(third.execute([np.ones(1 << 20, np.float32)])[0][0], first.execute(args)[0][0])
"""


def test_a_driver_without_memory(faulty_driver: Path) -> None:  # noqa: F811
    """At load, at execute (to read back), at a snapshot: each says what it asked for, and
    everything that was there goes on."""
    done = list(faulty.lines(faulty.run(faulty_driver, _FULL)))
    load, left, first, execute, again, *rest = done
    assert load.startswith("OutOfDeviceMemoryError big: allocating 67108864 bytes for input 'x'")
    assert "64.0 MiB were asked for; this process holds" in load and "'first: " in load
    assert left == "[]" and first == "2.0"
    # The upload or the staging buffer needs room that there is not.
    for line in (execute, again):
        assert line.startswith("OutOfDeviceMemoryError second: "), line
    assert rest[-2:] == ["[1.25, 1.25]", "2.625 4.0"]
    assert rest[-3] == "3.0"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["program", "fork", "snapshots"])
def test_nothing_is_left_of_200_rounds(device: Any, kind: str) -> None:
    leaks(device, kind, 200)


def test_nothing_is_left_of_20_rounds(device: Any) -> None:
    for kind in ("program", "fork", "snapshots", "refused"):
        leaks(device, kind, 20)


def leaks(device: Any, kind: str, rounds: int) -> None:
    """Rounds of load, execute and drop leave not one object of wgpu more."""
    if not is_native(device):
        pytest.skip("counts objects of wgpu-native")
    import wgpu

    constant = MethodSpec("get_max", [7], [], [0])
    data = write_pte([delegated("forward", accumulator()), constant])

    def alive() -> dict[str, int]:
        gc.collect()
        counts = wgpu.diagnostics.wgpu_native_counts.get_dict()
        return {name: entry["count"] for name, entry in counts.items()}

    def once() -> None:
        program = Runtime.get().load_program(data, device=device)
        method = program.load_method("forward")
        pending = method.submit(ARGS)
        assert method.execute(ARGS)[0][0] == 2.0
        if kind == "fork":
            fork = method.fork()
            del method
            assert fork.execute(ARGS)[0][0] == 3.0
        elif kind == "snapshots":
            saved = [method.state.snapshot(on_host=bool(i)) for i in range(2)]
            for each in saved:
                method.state.restore(each)
        elif kind == "refused":
            for bad in ([1], [ARGS[0], np.array([9])], [ARGS[0][:3], ARGS[1]]):
                with pytest.raises(ValueError):
                    method.execute(bad)
        del pending

    for _ in range(2):
        once()
    before = alive()
    for _ in range(rounds):
        once()
    assert alive() == before
