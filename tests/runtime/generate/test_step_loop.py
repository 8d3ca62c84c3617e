"""Steps in flight, in order, dropped and drained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from programs import accumulator, chain, chain_reference
from pte_files import delegated, write_pte
from tiny_lm import constants

from executorch_wgpu.runtime import Method, Runtime
from executorch_wgpu.runtime.errors import InvalidInputError, WgpuDelegateError
from executorch_wgpu.runtime.generate import Step, StepLoop

POS = np.zeros(1, np.int64)


def adder(device: Any) -> Method:
    data = write_pte([delegated("forward", accumulator())])
    return Runtime.get().load_program(data, device=device).load_method("forward")


def ones(count: int, taken: list[int] | None = None) -> Iterator[Step]:
    for i in range(count):
        if taken is not None:
            taken.append(i)
        yield Step([np.ones(8, np.float32), POS], note=i)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_in_order(device: Any, depth: int) -> None:
    loop, taken = StepLoop(adder(device), depth), []
    for count, (step, (y,)) in enumerate(loop.run(ones(9, taken))):
        assert step.note == count
        assert y.tolist() == [count + 1.0] * 8
        # With a depth of 1, the next step is made when this result has been seen.
        assert len(taken) == min(9, count + depth)


@pytest.mark.parametrize("depth", [2, 3])
def test_dropped_steps_run_and_are_seen_by_nobody(device: Any, depth: int) -> None:
    method = adder(device)
    loop = StepLoop(method, depth)
    with closing(loop.run(ones(99))) as results:
        for step, _ in results:
            if step.note == 4:
                break
    assert method.state.read("layers.0.state").tolist() == [5.0 + depth - 1] * 8
    for step, (y,) in loop.run(ones(3)):
        assert y.tolist() == [5.0 + depth - 1 + step.note + 1] * 8


def test_an_error_while_steps_are_in_flight(device: Any) -> None:
    method = adder(device)
    loop = StepLoop(method, 3)

    def steps() -> Iterator[Step]:
        yield from ones(2)
        yield Step([np.ones(8, np.float32), np.array([9])])

    for _ in range(5):  # no place is lost
        with pytest.raises(InvalidInputError, match="exceeds the cache"):
            list(loop.run(steps()))
    assert method.state.read("layers.0.state").tolist() == [10.0] * 8


def test_drain(device: Any) -> None:
    loop = StepLoop(adder(device), 3)
    results = loop.run(ones(6))
    assert next(results)[0].note == 0
    assert [step.note for step in loop.drain()] == [1, 2]
    assert [y.tolist()[0] for _, (y,) in results] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert loop.drain() == []


def test_depth(device: Any) -> None:
    method = adder(device)
    for depth in (0, 4):
        with pytest.raises(InvalidInputError, match=f"forward: depth {depth}: 1 to 3 steps"):
            StepLoop(method, depth)
    flight = [method.submit([np.ones(8, np.float32), POS]) for _ in range(3)]
    with pytest.raises(WgpuDelegateError, match="3 steps are in flight; collect the oldest"):
        method.submit([np.ones(8, np.float32), POS])
    assert [step.result()[0][0] for step in reversed(flight)] == [3.0, 2.0, 1.0]


def test_submit_and_selected_outputs(device: Any) -> None:
    data = write_pte([delegated("forward", chain(3, 8)), constants("get_n", 5)])
    program = Runtime.get().load_program(data, device=device)
    method = program.load_method("forward")
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(method.submit([x]).result()[0], chain_reference(x, 3))
    assert method.execute([x], []) == []
    assert len(method.execute([x], [0, 0])) == 2
    for index in (1, -1):
        with pytest.raises(InvalidInputError, match=f"forward: output {index} was asked for, of 1"):
            method.execute([x], [index])
    constant = program.load_method("get_n")
    assert constant.execute([]) == [5] == constant.execute([], [0])
    with pytest.raises(InvalidInputError, match="get_n: the method computes nothing"):
        constant.submit([])
    assert constant.state.names == [] and constant.state.snapshot().nbytes == 0
    assert constant.fork().execute([]) == [5]
