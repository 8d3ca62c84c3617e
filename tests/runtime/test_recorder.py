"""The native recorder and its plain twin issue the same commands; and the two submitters."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import chain, chain_reference

from executorch_wgpu.runtime.device import is_native
from executorch_wgpu.runtime.errors import WgpuDelegateError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.plan import Command
from executorch_wgpu.runtime.readback import Layout
from executorch_wgpu.runtime.recorder import (
    CompiledRecorder,
    LabelledRecorder,
    NativeRecorder,
    PlainRecorder,
    compiled,
    recorder_of,
)
from executorch_wgpu.runtime.submission import Submitter, submitter_of
from executorch_wgpu.serialization.dispatch_list import Dispatch


class FakePass:
    """A pass encoder that notes what is asked of it; ``_internal`` is what C would get."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._internal = self

    def set_pipeline(self, pipeline: Any) -> None:
        self.seen.append(("pipeline", pipeline._internal))

    def set_bind_group(self, index: int, group: Any, offsets: Any = ()) -> None:
        self.seen.append(("group", index, group._internal, list(offsets)))

    def dispatch_workgroups(self, x: int, y: int, z: int) -> None:
        self.seen.append(("dispatch", x, y, z))

    def push_debug_group(self, label: str) -> None:
        self.seen.append(("push", label))

    def pop_debug_group(self) -> None:
        self.seen.append(("pop",))


class FakeLib:
    """wgpu-native's three functions, noting on the pass what they would do."""

    def wgpuComputePassEncoderSetPipeline(self, encoder: FakePass, pipeline: Any) -> None:
        encoder.seen.append(("pipeline", pipeline))

    def wgpuComputePassEncoderSetBindGroup(
        self, encoder: FakePass, index: int, group: Any, count: int, offsets: Any
    ) -> None:
        encoder.seen.append(("group", index, group, list(offsets[:count]) if count else []))

    def wgpuComputePassEncoderDispatchWorkgroups(
        self, encoder: FakePass, x: int, y: int, z: int
    ) -> None:
        encoder.seen.append(("dispatch", x, y, z))


FAKE_FFI = SimpleNamespace(NULL=None, new=lambda _type: [0])
OBJECTS = [SimpleNamespace(_internal=f"handle {i}") for i in range(3)]
LIVE = SimpleNamespace(_internal="live")


def command(pipeline: int, group: int, grid: tuple[int, int, int]) -> Command:
    dispatch = Dispatch(0, (), grid, f"label {pipeline}")
    return Command(OBJECTS[pipeline], OBJECTS[group], grid, dispatch, None, "route", 0)  # type: ignore[arg-type]


def record(recorder: PlainRecorder, commands: list[Command], values: list[int]) -> list[Any]:
    encoder = FakePass()
    recorder.record(encoder, LIVE, 1024, recorder.prepare(commands), values)
    return encoder.seen


def record_in_c(commands: list[Command], values: list[int], part: slice) -> list[Any]:
    """What ``record.c`` asks of wgpu-native, whose functions are Python's here."""
    built = compiled()
    if built is None:
        pytest.skip("no compiler")
    ffi, library = built
    seen: list[tuple[Any, ...]] = []

    @ffi.callback("void(void *, void *)")
    def set_pipeline(encoder: Any, pipeline: Any) -> None:
        seen.append(("pipeline", ffi.from_handle(pipeline)))

    @ffi.callback("void(void *, uint32_t, void *, size_t, uint32_t *)")
    def set_bind_group(encoder: Any, index: int, group: Any, count: int, offsets: Any) -> None:
        seen.append(("group", index, ffi.from_handle(group), [offsets[i] for i in range(count)]))

    @ffi.callback("void(void *, uint32_t, uint32_t, uint32_t)")
    def dispatch(encoder: Any, x: int, y: int, z: int) -> None:
        assert ffi.from_handle(encoder) is seen
        seen.append(("dispatch", x, y, z))

    def handle(value: Any) -> Any:
        return SimpleNamespace(_internal=ffi.new_handle(value))

    handles = {name: handle(name) for name in ("live", *(o._internal for o in OBJECTS))}
    given = [
        Command(
            handles[c.pipeline._internal], handles[c.bind_group._internal], c.grid,
            c.dispatch, c.kernel, c.route, c.step,
        )
        for c in commands
    ]  # fmt: skip
    functions = [ffi.cast("void *", f) for f in (set_pipeline, set_bind_group, dispatch)]
    recorder = CompiledRecorder(ffi, library, functions)
    prepared = recorder.prepare(given)
    assert len(prepared) == len(commands) and len(prepared[part]) == len(commands[part])
    recorder.record(handle(seen), handles["live"], 1024, prepared[part], values)
    return seen


index = st.integers(0, 2)


@given(
    st.lists(st.tuples(index, index, st.tuples(index, index, index)), max_size=12),
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_twins(choices: list[tuple[int, int, tuple[int, int, int]]], values: list[int]) -> None:
    commands = [command(*choice) for choice in choices]
    plain = record(PlainRecorder(), commands, values)
    assert plain == record(NativeRecorder(FAKE_FFI, FakeLib()), commands, values)
    # No command twice in a row, and each dispatch under the pipeline and group it asked for.
    assert all(a != b or a[0] == "dispatch" for a, b in itertools.pairwise(plain))
    state: dict[str, Any] = {}
    ran = []
    for what, *rest in plain:
        if what == "pipeline":
            state["pipeline"] = rest[0]
        elif what == "group" and rest[0] == 1:
            state["group"] = rest[1]
        elif what == "dispatch":
            ran.append((state["pipeline"], state["group"], tuple(rest)))
    wanted = [
        (c.pipeline._internal, c.bind_group._internal, tuple(values[at] for at in c.grid))
        for c in commands
    ]
    assert ran == [item for item in wanted if 0 not in item[2]]
    assert plain[0] == ("group", 0, "live", [1024])


@given(
    st.lists(st.tuples(index, index, st.tuples(index, index, index)), max_size=12),
    st.lists(st.integers(0, 65535), min_size=3, max_size=3),
    st.slices(12).filter(lambda part: part.step in (None, 1)),
)
def test_the_twin_in_c(
    choices: list[tuple[int, int, tuple[int, int, int]]], values: list[int], part: slice
) -> None:
    commands = [command(*choice) for choice in choices]
    wanted = record(PlainRecorder(), commands[part], values)
    assert record_in_c(commands, values, part) == wanted


@pytest.mark.parametrize("compiles", [False, True])
def test_recorders_of_a_device(
    device: Any, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs where there is no compiler gives the same."""
    if not compiles:
        monkeypatch.setattr("executorch_wgpu.runtime.recorder.compiled", lambda: None)
    elif compiled() is None:
        pytest.skip("no compiler")
    kind = CompiledRecorder if compiles else NativeRecorder
    assert type(recorder_of(device)) is (kind if is_native(device) else PlainRecorder)
    graph = WebGPUGraph(device, chain(60, 8, dynamic=True))
    for count in (8, 3, 0):
        x = np.arange(count, dtype=np.float32)
        np.testing.assert_array_equal(graph.execute([x])[0], chain_reference(x, 60))


def test_labels() -> None:
    seen = record(LabelledRecorder(), [command(0, 1, (0, 0, 0)), command(1, 1, (1, 1, 1))], [3, 0])
    assert [item[0] for item in seen[1:]] == ["push", "pipeline", "group", "dispatch", "pop"]
    assert seen[1] == ("push", "label 0")


@pytest.mark.parametrize("plain", [False, True])
def test_staging(device: Any, plain: bool) -> None:
    submitter = submitter_of(device, plain=plain)
    source = device.create_buffer(size=64, usage=0x4 | 0x8)
    staging = submitter.staging(64, "staging")
    for k in range(5):
        device.queue.write_buffer(source, 0, np.full(16, k, np.uint32))
        encoder = device.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, staging.buffer, 0, 64)
        token = submitter.submit(encoder.finish())
        with staging.mapped(token, 64) as data:
            assert np.frombuffer(data, np.uint32).tolist() == [k] * 16
    submitter.flush()


class FakeDevice:
    """A device on which a map waits only for submissions that use the buffer, as on Dawn."""

    def __init__(self, lands: bool = True) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.queue = SimpleNamespace(submit=lambda given: self.seen.append(("submit", *given)))
        self._lands = lands

    def create_buffer(self, **_: Any) -> Any:
        buffer = SimpleNamespace(map_state="unmapped", unmap=lambda: None)

        def map_sync(mode: str) -> None:
            self.seen.append(("map", mode, ("uses", buffer) in self.seen[-1]))
            buffer.map_state = "mapped" if self._lands else "pending"

        buffer.map_sync = map_sync
        return buffer

    def create_command_encoder(self, label: str) -> Any:
        uses: list[Any] = []
        return SimpleNamespace(
            clear_buffer=uses.append, finish=lambda: ("uses", *uses) if uses else ("nothing",)
        )


def test_a_wait_is_for_something() -> None:
    """On Dawn a map of a buffer that no submission uses is over at once."""
    device = FakeDevice()
    submitter = Submitter(device)
    first, second = (submitter.submit(("commands", i)) for i in range(2))
    submitter.wait(first)
    assert [item[0] for item in device.seen] == ["submit", "submit", "submit", "map"]
    assert device.seen[-1] == ("map", "READ", True)
    submitter.wait(second)  # the queue was idle, so it is done, too
    assert len(device.seen) == 4
    submitter.wait(submitter.submit(("commands", 2)))
    assert len(device.seen) == 7 and device.seen[-1][2]


def test_a_wait_that_is_interrupted() -> None:
    """What it leaves mapped is not submitted again: wgpu-native would end the process."""
    device = FakeDevice(lands=False)
    submitter = Submitter(device)
    token = submitter.submit(("commands",))
    fences = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            submitter.wait(token)
        fences.append(device.seen[-2][1][1])
    assert fences[0] is not fences[1]


def test_staging_is_unmapped_after_an_error(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer left mapped would make wgpu-native abort the process at the next submit."""
    graph = WebGPUGraph(device, chain(2, 8))
    x = np.ones(8, np.float32)
    pending = graph.submit([x])

    def fail(*_: Any) -> None:
        raise RuntimeError("while reading")

    monkeypatch.setattr(Layout, "unpack", fail)
    with pytest.raises(RuntimeError, match="while reading"):
        pending.result()
    with pytest.raises(WgpuDelegateError, match="results were lost"):
        pending.result()
    monkeypatch.undo()
    np.testing.assert_array_equal(graph.execute([x])[0], chain_reference(x, 2))


def test_a_failure_while_recording_submits_nothing(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = WebGPUGraph(device, chain(2, 8), label="forward")
    x = np.ones(8, np.float32)
    submitted = []
    monkeypatch.setattr(graph._submitter, "submit", lambda c: submitted.append(c) or 0)
    monkeypatch.setattr(
        graph._recorder,
        "record",
        lambda encoder, *_: encoder.set_bind_group(7, graph._live.group, [3]),
    )
    with pytest.raises(WgpuDelegateError, match=r"^forward: running a step: "):
        graph.execute([x])
    assert not submitted
    monkeypatch.undo()
    np.testing.assert_array_equal(graph.execute([x])[0], chain_reference(x, 2))
