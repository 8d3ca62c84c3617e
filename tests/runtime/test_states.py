"""Snapshots, forks and shared states; constants carved from one tensor of the file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from programs import Build, accumulator, grid_of

from executorch_wgpu.runtime.errors import InvalidInputError, InvalidProgramError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.states import StateSpace
from executorch_wgpu.serialization.dispatch_list import (
    Binding,
    BufferKind,
    DType,
    Program,
    Route,
)

NAME = "layers.0.state"
POS = np.zeros(1, np.int64)
ONES = np.ones(8, np.float32)


def add(graph: WebGPUGraph, times: int = 1) -> float:
    for _ in range(times):
        (y,) = graph.execute([ONES, POS])
    return float(y[0])


def test_snapshot_and_restore(device: Any) -> None:
    graph = WebGPUGraph(device, accumulator())
    add(graph, 3)
    saved = graph.state.snapshot()
    assert saved.names == [NAME] and saved.nbytes == 32
    assert add(graph, 2) == 5.0
    graph.state.restore(saved)
    assert add(graph) == 4.0
    graph.state.restore(saved)  # it can be used again
    assert add(graph) == 4.0
    other = WebGPUGraph(device, accumulator())
    other.state.restore(saved)
    assert add(other) == 4.0


def test_a_snapshot_follows_what_is_in_flight(device: Any) -> None:
    graph = WebGPUGraph(device, accumulator())
    flight = [graph.submit([ONES, POS]) for _ in range(3)]
    saved = graph.state.snapshot()
    assert [step.result()[0][0] for step in flight] == [1.0, 2.0, 3.0]
    graph.state.restore(saved)
    assert graph.state.read(NAME).tolist() == [3.0] * 8


def test_rows(device: Any) -> None:
    """Only the rows in use are copied."""
    graph = WebGPUGraph(device, accumulator())
    add(graph)
    saved = graph.state.snapshot({NAME: 3})
    assert saved.nbytes == 12
    add(graph)
    graph.state.restore(saved)
    assert graph.state.read(NAME).tolist() == [1.0] * 3 + [2.0] * 5
    assert graph.state.snapshot({NAME: 0}).nbytes == 0
    for rows, match in (({NAME: 9}, "has 8 rows, not 9"), ({"x": 1}, "no state 'x'")):
        with pytest.raises(InvalidInputError, match=match):
            graph.state.snapshot(rows)
    other = WebGPUGraph(device, accumulator(16))
    with pytest.raises(InvalidInputError, match="has 64 bytes, in the snapshot 32"):
        other.state.restore(saved)


def test_fork(device: Any) -> None:
    data = {"init": np.arange(8, dtype=np.float32).tobytes()}
    graph = WebGPUGraph(device, accumulator(initial_key="init"), data, "forward")
    pending = graph.submit([ONES, POS])
    fork = graph.fork()
    assert pending.result()[0][0] == 1.0
    assert add(graph, 3) == 4.0
    assert add(fork) == 2.0
    second = fork.fork()
    assert add(second) == 3.0 and add(fork) == 3.0
    fork.state.reset()  # to the initial value of the program
    assert fork.state.read(NAME).tolist() == list(range(8))
    del graph
    assert add(fork) == 1.0


def shared(size: int = 8, share: str = "kv", name: str = NAME) -> Program:
    program = accumulator(size)
    buffers = [
        replace(b, share=share, name=name) if b.kind is BufferKind.STATE else b
        for b in program.buffers
    ]
    return replace(program, buffers=tuple(buffers))


def test_states_are_one_where_group_and_name_are_equal(device: Any) -> None:
    space = StateSpace()
    graphs = [WebGPUGraph(device, shared(), label=name, space=space) for name in "ab"]
    apart = [
        WebGPUGraph(device, shared(), space=StateSpace()),
        WebGPUGraph(device, shared(share="other"), space=space),
        WebGPUGraph(device, shared(name="other"), space=space),
        WebGPUGraph(device, accumulator(), space=space),
        WebGPUGraph(device, accumulator(), space=space),
    ]
    for count in range(4):
        assert add(graphs[count % 2]) == count + 1
    assert [add(graph) for graph in apart] == [1.0] * 5
    assert graphs[0].allocated().keys() & graphs[1].allocated().keys()
    forked = StateSpace()
    copies = [graph.fork(forked) for graph in graphs]
    assert [add(copies[0]), add(copies[1]), add(copies[0])] == [5.0, 6.0, 7.0]
    assert add(graphs[0]) == 5.0
    with pytest.raises(InvalidProgramError, match=(
        r"c: state 'layers.0.state' of the group 'kv' is 64 bytes, float32\[16\], starting as "
        r"zeros; in 'a', which shares the group, it is 32 bytes, float32\[8\], starting as zeros"
    )):  # fmt: skip
        WebGPUGraph(device, shared(16), label="c", space=space)


def carved(limit: int, pieces: int = 2) -> Program:
    """y = w * 2 for a constant of 256 elements, whole where a limit allows it, else in pieces."""
    b = Build()
    n, part = b.const(256), b.const(256 // pieces)
    out = b.output("y", DType.F32, [n], 1024)
    whole = b.buffer(BufferKind.CONSTANT, 1024, "w", "w")
    step = 1024 // pieces
    cut = [
        b.buffer(BufferKind.CONSTANT, step, f"w[{i}]", "w", data_offset=i * step)
        for i in range(pieces)
    ]
    kernel = b.affine(n, 2.0)
    one = b.dispatch(kernel, [whole, out], grid_of(b, n), "whole")
    kernel = b.affine(part, 2.0)
    parts = [
        replace(
            b.dispatch(kernel, [piece, out], grid_of(b, part), f"piece {i}"),
            bindings=(Binding(piece, 0, step), Binding(out, i * step, step)),
        )
        for i, piece in enumerate(cut)
    ]
    b.step(
        Route("whole", (one,), limits=(("max-buffer-size", limit),)),
        Route("pieces", tuple(parts)),
    )
    return b.program()


@pytest.mark.parametrize("limit", [257 << 20, 1 << 60])
def test_a_constant_in_pieces_or_whole(device: Any, limit: int) -> None:
    """One tensor in the file; only what the chosen route binds is on the GPU."""
    data = np.arange(256, dtype=np.float32)
    graph = WebGPUGraph(device, carved(limit), {"w": data.tobytes()})
    assert graph.execute([])[0].tolist() == (2 * data).tolist()
    names = [
        spec.name
        for spec, handle in zip(graph.program.buffers, graph._buffers._handles, strict=True)
        if handle is not None
    ]
    assert names == (["y", "w"] if limit == 257 << 20 else ["y", "w[0]", "w[1]"])


def test_pieces_cover_their_data(device: Any) -> None:
    data = np.arange(256, dtype=np.float32).tobytes()
    for wrong in (data[:-4], data + b"1234", b""):
        with pytest.raises(InvalidProgramError, match=rf"has {len(wrong)} bytes, expected 1024"):
            WebGPUGraph(device, carved(1 << 60), {"w": wrong})
    WebGPUGraph(device, carved(1 << 60), {"w": data[:-3]})  # padding


def test_pieces_are_shared_between_graphs(device: Any) -> None:
    data, identity = {"w": np.arange(256, dtype=np.float32).tobytes()}, object()
    one, other = [WebGPUGraph(device, carved(1 << 60), data, data_identity=identity) for _ in "ab"]
    assert len(one.allocated().keys() & other.allocated().keys()) == 2
    finer = WebGPUGraph(device, carved(1 << 60, 4), data, data_identity=identity)
    assert not one.allocated().keys() & finer.allocated().keys()
    assert finer.execute([])[0].tolist() == one.execute([])[0].tolist()


def test_progress_of_the_upload(device: Any) -> None:
    data, identity, told = {"w": bytes(1024)}, object(), []
    graphs = [
        WebGPUGraph(
            device,
            carved(1 << 60),
            data,
            data_identity=identity,
            progress=lambda done, total: told.append((done, total)),
        )
        for _ in "ab"
    ]
    assert len(graphs) == 2 and told == [(512, 1024), (1024, 1024)] * 2  # the second finds it there
