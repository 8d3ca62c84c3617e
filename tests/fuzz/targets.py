"""What is fuzzed: each target takes an input, does all that a caller could with it, and returns
whether it was accepted. A named error means "refused"; anything else that is raised is a fault.

``read_list``, ``read_pte``: bytes, on the host. ``replay``: a dispatch list, on a device.
"""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from executorch_wgpu.runtime.boundary import storage_bytes
from executorch_wgpu.runtime.device import Capabilities, capabilities
from executorch_wgpu.runtime.errors import InvalidInputError, WgpuDelegateError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.live_scalars import Admission
from executorch_wgpu.runtime.metadata import describe_values
from executorch_wgpu.runtime.plan import Planner
from executorch_wgpu.runtime.program import Program as PteProgram
from executorch_wgpu.runtime.readback import lay_out
from executorch_wgpu.runtime.states import views_of
from executorch_wgpu.serialization import (
    DType,
    EvaluationError,
    InvalidProgramError,
    Program,
    PteFile,
    SymSource,
    ValueKind,
    deserialize,
    evaluate,
    serialize,
    verify,
)
from executorch_wgpu.serialization.container import MAGIC, pack
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS
from executorch_wgpu.serialization.origins import debug_handle_map

_ARRAYS = {
    DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16, DType.I32: np.int32,
    DType.I64: np.int64, DType.BOOL: np.bool_, DType.I8: np.int8, DType.U8: np.uint8,
}  # fmt: skip

#: Larger inputs, buffers and grids are not tried: they take long and show nothing new.
SMALL_ELEMENTS = 1 << 16
SMALL_BYTES = 16 << 20
SMALL_GRID = 1 << 10

ROOMY = Capabilities(frozenset({"subgroups", "shader-f16"}), dict.fromkeys(DEFAULT_LIMITS, 1 << 40))
PLAIN = Capabilities(frozenset(), DEFAULT_LIMITS)


def read_list(data: bytes) -> bool:
    """The flatbuffer of a dispatch list (its header is made right), or a whole payload."""
    try:
        program = deserialize(data if data.startswith(MAGIC) else pack(1, data))
    except InvalidProgramError:
        return False
    look(program)
    return True


def look(program: Program) -> None:
    """All that the host does with an accepted list, short of a device."""
    assert deserialize(serialize(program)) == program
    describe_values(program, program.inputs)
    describe_values(program, program.outputs)
    debug_handle_map(program)
    views_of(program)
    for have in (ROOMY, PLAIN):
        with contextlib.suppress(WgpuDelegateError):
            planner = Planner(program, have, "fuzz")
            for high in (False, True):
                with contextlib.suppress(InvalidInputError):
                    plan_step(program, planner, high)


def plan_step(program: Program, planner: Planner, high: bool) -> list[int]:
    """The host's part of a step with every live scalar at one end of its range; its values."""
    inputs = make_inputs(program, high)
    admitted = Admission(program, "fuzz")(inputs)
    plan = planner.select(
        admitted.symbols,
        lambda routes: planner.build(
            routes,
            dict.fromkeys(range(len(program.kernels))),
            lambda dispatch: None,
            lambda commands: [],
        ),
    )
    values = planner.values(plan, admitted.symbols)
    lay_out(program, values, None, "fuzz")
    return values


def make_inputs(program: Program, high: bool) -> list[Any]:
    """Arguments with every live scalar at one end of its range, as far as they can agree.

    Raises InvalidInputError where they would be large."""
    symbols = [s.hi if high else s.lo for s in program.symints]
    try:
        values = evaluate(program.exprs, symbols)
    except EvaluationError as error:
        raise InvalidInputError(str(error)) from error
    made: list[Any] = []
    for spec in program.inputs:
        if spec.kind is ValueKind.INT:
            made.append(0 if spec.index < 0 else symbols[spec.index])
            continue
        tensor = program.tensors[spec.index]
        shape = [values[index] for index in tensor.shape]
        if math.prod(shape) > SMALL_ELEMENTS or min(shape, default=0) < 0:
            raise InvalidInputError(f"large: {shape}")
        made.append(np.ones(shape, _ARRAYS[tensor.dtype]))
    for symint, value in zip(program.symints, symbols, strict=True):
        if symint.source is SymSource.TENSOR_ELEMENT:
            array = made[symint.input]
            if -array.size <= symint.index < array.size:
                array.reshape(-1)[symint.index] = value
    return made


def read_pte(data: bytes) -> bool:
    """A whole ``.pte``: every method, value and constant, and the lists that it carries."""
    try:
        pte = PteFile(data)
    except InvalidProgramError:
        return False
    for key in pte.named_data_keys:
        with contextlib.suppress(InvalidProgramError):
            pte.named_data(key)
    program = PteProgram(pte, None)
    for name in pte.methods:
        with contextlib.suppress(InvalidProgramError):
            method = pte.method(name)
            method.describe_instructions()
            for index in (*method.inputs, *method.outputs, 0, 1, -1, 1 << 31):
                for ask in (method.value, method.tensor_data):
                    with contextlib.suppress(InvalidProgramError):
                        ask(index)
            for given in (0, 1, 2):
                with contextlib.suppress(InvalidProgramError):
                    method.wiring(2, given)
        with contextlib.suppress(WgpuDelegateError):
            str(program.metadata(name))
            if pte.method(name).is_metadata:
                program.load_method(name).execute([])
    return True


def replay(program: Program, device: Any, *, run: bool = True) -> bool:
    """Loads a list on ``device`` and runs it at both ends of its live scalars, twice each: shapes
    are right, and a refused call leaves the next one as it was. ``run`` False: loads only."""
    try:
        verify(program)
    except InvalidProgramError:
        return False
    if sum(buffer.size for buffer in program.buffers) > SMALL_BYTES:
        return False
    ends: dict[str, int] = {}
    for buffer in program.buffers:
        end = buffer.data_offset + buffer.size
        ends[buffer.data_key] = max(end, ends.get(buffer.data_key, 0))
    if sum(ends.values()) > SMALL_BYTES:
        return False
    data = {key: bytes(end) for key, end in ends.items()}
    try:
        graph = WebGPUGraph(device, program, data, "fuzz", verified=True)
    except WgpuDelegateError:
        return False
    if not run:
        return True
    for high in (False, True, False):
        with contextlib.suppress(InvalidInputError):
            # A planner of its own: the graph's keeps its plans, and this one records nothing.
            planner = Planner(program, capabilities(device), "fuzz")
            values = plan_step(program, planner, high)
            if any(value > SMALL_GRID for value in _grids(graph, program, high)):
                return True
            results = graph.execute(make_inputs(program, high))
            _check_shapes(program, values, results)
    return True


def _grids(graph: WebGPUGraph, program: Program, high: bool) -> list[int]:
    symbols = [s.hi if high else s.lo for s in program.symints]
    values = evaluate(program.exprs, symbols)
    return [math.prod(values[i] for i in d.grid) for d in graph._planner.dispatches()]


def _check_shapes(program: Program, values: list[int], results: list[Any]) -> None:
    at = len(program.live)
    for output, result in zip(program.outputs, results, strict=True):
        if output.kind is ValueKind.INT:
            assert result == values[at]
            at += 1
            continue
        rank = len(program.tensors[output.index].shape)
        assert result.shape == tuple(values[at : at + rank])
        dtype = program.tensors[output.index].dtype
        assert storage_bytes(result.size, dtype) <= SMALL_BYTES
        at += rank


#: For the command line.
TARGETS = SimpleNamespace(list=read_list, pte=read_pte)
