"""Writes ``.pte`` files without torch, for tests of the loader."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np

from executorch_wgpu.serialization.dispatch_list import BACKEND_ID, Program
from executorch_wgpu.serialization.generated import pte_schema_generated as fb
from executorch_wgpu.serialization.writer import serialize

_SCALARS = {"float32": fb.ScalarType.FLOAT, "int64": fb.ScalarType.LONG}
#: What ExecuTorch inserts behind the identifier; a multiple of 16 keeps all alignments.
_HEADER_ROOM = 32


@dataclass
class MethodSpec:
    """``values``: None, ints, strings, ("tensor", dtype, shape) or numpy arrays (constants);
    ``calls``: ("delegate", index, args) or ("kernel", index, args) with value indices."""

    name: str
    values: list[Any]
    inputs: list[int]
    outputs: list[int]
    calls: list[tuple[str, int, list[int]]] = field(default_factory=list)
    delegates: list[tuple[str, bytes]] = field(default_factory=list)
    operators: list[tuple[str, str]] = field(default_factory=list)


def delegated(name: str, program: Program) -> MethodSpec:
    """A method that is one call to ``program``, values in the program's order."""
    values: list[Any] = []
    for spec in (*program.inputs, *program.outputs):
        if spec.kind:
            values.append(None)
            continue
        tensor = program.tensors[spec.index]
        values.append(("tensor", "float32", [4] * len(tensor.shape)))
    taken = list(range(len(program.inputs)))
    given = list(range(len(taken), len(values)))
    return MethodSpec(
        name,
        values,
        taken,
        given,
        [("delegate", 0, taken + given)],
        [(BACKEND_ID, serialize(program))],
    )


def write_pte(methods: Sequence[MethodSpec], named_data: dict[str, bytes] | None = None) -> bytes:
    """The bytes of a file; delegates inline, named data and constants in segments."""
    named_data = named_data or {}
    constants: list[bytes] = [b""]
    b = flatbuffers.Builder(1024)
    firsts = [sum(len(m.delegates) for m in methods[:i]) for i in range(len(methods))]
    plans = _vector(
        b,
        [_plan(b, method, constants, first) for method, first in zip(methods, firsts, strict=True)],
    )
    payloads = [data for method in methods for _, data in method.delegates]
    inline = []
    for payload in payloads:
        data = b.CreateByteVector(payload)
        fb.BackendDelegateInlineDataStart(b)
        fb.BackendDelegateInlineDataAddData(b, data)
        inline.append(fb.BackendDelegateInlineDataEnd(b))
    payload_vector = _vector(b, inline)
    blob, offsets = _lay_out(constants)
    pieces = [*named_data.values(), blob]
    body, places = _lay_out(pieces)
    segments = []
    for piece, place in zip(pieces, places, strict=True):
        fb.DataSegmentStart(b)
        fb.DataSegmentAddOffset(b, place)
        fb.DataSegmentAddSize(b, len(piece))
        segments.append(fb.DataSegmentEnd(b))
    segment_vector = _vector(b, segments)
    named = []
    for i, key in enumerate(named_data):
        text = b.CreateString(key)
        fb.NamedDataStart(b)
        fb.NamedDataAddKey(b, text)
        fb.NamedDataAddSegmentIndex(b, i)
        named.append(fb.NamedDataEnd(b))
    named_vector = _vector(b, named)
    offset_vector = b.CreateNumpyVector(np.array(offsets, np.uint64))
    fb.SubsegmentOffsetsStart(b)
    fb.SubsegmentOffsetsAddSegmentIndex(b, len(named_data))
    fb.SubsegmentOffsetsAddOffsets(b, offset_vector)
    constant_segment = fb.SubsegmentOffsetsEnd(b)
    fb.ProgramStart(b)
    fb.ProgramAddExecutionPlan(b, plans)
    fb.ProgramAddBackendDelegateData(b, payload_vector)
    fb.ProgramAddSegments(b, segment_vector)
    fb.ProgramAddConstantSegment(b, constant_segment)
    fb.ProgramAddNamedData(b, named_vector)
    b.Finish(fb.ProgramEnd(b), b"ET12")
    flat = bytes(b.Output())
    [root] = struct.unpack_from("<I", flat)
    size = len(flat) + _HEADER_ROOM
    base = -(-size // 16) * 16
    header = b"eh00" + struct.pack("<IQQ", 24, size, base)
    flat = struct.pack("<I", root + _HEADER_ROOM) + flat[4:8] + header.ljust(32, b"\0") + flat[8:]
    return flat.ljust(base, b"\0") + body


def _lay_out(pieces: Sequence[bytes]) -> tuple[bytes, list[int]]:
    body, places = b"", []
    for piece in pieces:
        body = body.ljust(-(-len(body) // 16) * 16, b"\0")
        places.append(len(body))
        body += piece
    return body, places


def _vector(b: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def _ints(b: flatbuffers.Builder, values: Sequence[int], dtype: Any = np.int32) -> int:
    return int(b.CreateNumpyVector(np.array(values, dtype)))


def _plan(
    b: flatbuffers.Builder, method: MethodSpec, constants: list[bytes], first_inline: int
) -> int:
    values = _vector(b, [_value(b, value, constants) for value in method.values])
    operators = []
    for name, overload in method.operators:
        texts = b.CreateString(name), b.CreateString(overload)
        fb.OperatorStart(b)
        fb.OperatorAddName(b, texts[0])
        fb.OperatorAddOverload(b, texts[1])
        operators.append(fb.OperatorEnd(b))
    delegates = []
    for i, (backend, _) in enumerate(method.delegates):
        text = b.CreateString(backend)
        fb.BackendDelegateDataReferenceStart(b)
        fb.BackendDelegateDataReferenceAddLocation(b, fb.DataLocation.INLINE)
        fb.BackendDelegateDataReferenceAddIndex(b, first_inline + i)
        reference = fb.BackendDelegateDataReferenceEnd(b)
        fb.BackendDelegateStart(b)
        fb.BackendDelegateAddId(b, text)
        fb.BackendDelegateAddProcessed(b, reference)
        delegates.append(fb.BackendDelegateEnd(b))
    instructions = []
    for kind, index, args in method.calls:
        vector = _ints(b, args)
        if kind == "delegate":
            fb.DelegateCallStart(b)
            fb.DelegateCallAddDelegateIndex(b, index)
            fb.DelegateCallAddArgs(b, vector)
            call, tag = fb.DelegateCallEnd(b), fb.InstructionArguments.DelegateCall
        else:
            fb.KernelCallStart(b)
            fb.KernelCallAddOpIndex(b, index)
            fb.KernelCallAddArgs(b, vector)
            call, tag = fb.KernelCallEnd(b), fb.InstructionArguments.KernelCall
        fb.InstructionStart(b)
        fb.InstructionAddInstrArgsType(b, tag)
        fb.InstructionAddInstrArgs(b, call)
        instructions.append(fb.InstructionEnd(b))
    instruction_vector = _vector(b, instructions)
    fb.ChainStart(b)
    fb.ChainAddInstructions(b, instruction_vector)
    chains = _vector(b, [fb.ChainEnd(b)])
    operator_vector, delegate_vector = _vector(b, operators), _vector(b, delegates)
    name = b.CreateString(method.name)
    inputs, outputs = _ints(b, method.inputs), _ints(b, method.outputs)
    fb.ExecutionPlanStart(b)
    fb.ExecutionPlanAddName(b, name)
    fb.ExecutionPlanAddValues(b, values)
    fb.ExecutionPlanAddInputs(b, inputs)
    fb.ExecutionPlanAddOutputs(b, outputs)
    fb.ExecutionPlanAddChains(b, chains)
    fb.ExecutionPlanAddOperators(b, operator_vector)
    fb.ExecutionPlanAddDelegates(b, delegate_vector)
    return int(fb.ExecutionPlanEnd(b))


def _value(b: flatbuffers.Builder, value: Any, constants: list[bytes]) -> int:
    kind, write = _table_of(b, value, constants)
    table = write()
    fb.EValueStart(b)
    fb.EValueAddValType(b, kind)
    if table is not None:
        fb.EValueAddVal(b, table)
    return int(fb.EValueEnd(b))


def _table_of(
    b: flatbuffers.Builder, value: Any, constants: list[bytes]
) -> tuple[int, Callable[[], int | None]]:
    if value is None:
        return fb.KernelTypes.Null, lambda: _null(b)
    if isinstance(value, int):
        return fb.KernelTypes.Int, lambda: _int(b, value)
    if isinstance(value, np.ndarray):
        constants.append(value.tobytes())
        dtype, shape, index = value.dtype.name, value.shape, len(constants) - 1
    else:
        _, dtype, shape = value
        index = 0
    return fb.KernelTypes.Tensor, lambda: _tensor(b, dtype, shape, index)


def _null(b: flatbuffers.Builder) -> int:
    fb.NullStart(b)
    return int(fb.NullEnd(b))


def _int(b: flatbuffers.Builder, value: int) -> int:
    fb.IntStart(b)
    fb.IntAddIntVal(b, value)
    return int(fb.IntEnd(b))


def _tensor(b: flatbuffers.Builder, dtype: str, shape: Sequence[int], index: int) -> int:
    sizes, order = _ints(b, shape), _ints(b, range(len(shape)), np.uint8)
    fb.TensorStart(b)
    fb.TensorAddScalarType(b, _SCALARS[dtype])
    fb.TensorAddSizes(b, sizes)
    fb.TensorAddDimOrder(b, order)
    fb.TensorAddDataBufferIdx(b, index)
    return int(fb.TensorEnd(b))
