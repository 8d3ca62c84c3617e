"""What a chain says of sharing, carving and feedback reaches the list, and works there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.backend.build import build_program
from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpChain
from executorch_wgpu.ops.elementwise.pointwise import emit_copy
from executorch_wgpu.ops.tensor import Storage, Tensor
from executorch_wgpu.runtime import FED_BACK
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.states import StateSpace
from executorch_wgpu.serialization import BufferKind, DType, Feedback, InvalidProgramError

from harness import Chain


def counter(share: str) -> Chain:
    """``y = x + state``; the state becomes y. y may stay on the GPU as the next x."""
    c = Chain()
    x = c.input("x", (4,))
    state = c.state(torch.tensor([1.0, 2.0, 3.0, 4.0]), "total")
    (y,) = c.call("aten.add.Tensor", {"self": x, "other": state, "alpha": 1}, [(x.dtype, (4,))])
    c.chain.results[state] = y
    c.output(y)
    c.chain.share_state = share
    c.chain.feedback.append((0, 0))
    return c


def test_shared_states_and_feedback(device: Any) -> None:
    lowered = counter("kv").lower()
    assert lowered.program.feedback == (Feedback(0, 0),)
    assert [b.share for b in lowered.program.buffers if b.kind is BufferKind.STATE] == ["kv"]
    space = StateSpace()
    one, other = [
        WebGPUGraph(device, lowered.program, lowered.data, label, space=space) for label in "ab"
    ]
    zeros = np.zeros(4, np.float32)
    assert one.execute([zeros])[0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert other.execute([zeros + 1])[0].tolist() == [2.0, 3.0, 4.0, 5.0]
    assert one.execute([FED_BACK])[0].tolist() == [3.0, 5.0, 7.0, 9.0]
    assert one.execute([FED_BACK], []) == []
    assert one.state.read("total").tolist() == [6.0, 10.0, 14.0, 18.0]


def test_feedback_into_a_live_scalar_is_refused() -> None:
    from executorch_wgpu.serialization import SymInt, SymSource, verify

    c = Chain()
    x = c.input("x", (1,), torch.int32)
    c.chain.symints.append(SymInt("x[0]", SymSource.TENSOR_ELEMENT, 0, 0, 0, 9))
    c.output(*c.call("aten.neg.default", {"self": x}, [(x.dtype, (1,))]))
    c.chain.feedback.append((0, 0))
    with pytest.raises(InvalidProgramError, match=r"'x': the live scalar 'x\[0\]' is an element"):
        verify(c.lower().program)


def test_a_carved_constant(device: Any) -> None:
    """Two storages over one tensor: one entry of the named data."""
    b = Builder()
    data = torch.arange(12, dtype=torch.float32)
    outputs = []
    for first, count in ((0, 8), (8, 4)):
        piece = Storage(BufferKind.CONSTANT, count * 4, f"w[{first}]", data, data_offset=first * 4)
        out = b.empty((count,), DType.F32, "y", BufferKind.OUTPUT)
        emit_copy(b, Tensor(DType.F32, (count,), (1,), 0, piece), out, "copy")
        outputs.append(out)
    program, named = build_program(b, OpChain([], [], [None, None]), [], outputs)
    assert len(named) == 1
    carved = [buffer for buffer in program.buffers if buffer.kind is BufferKind.CONSTANT]
    assert [(c.data_offset, c.size) for c in carved] == [(0, 32), (32, 16)]
    assert len({c.data_key for c in carved}) == 1
    results = WebGPUGraph(device, program, named).execute([])
    assert [r.tolist() for r in results] == [list(range(8)), [8, 9, 10, 11]]
