"""The invariants of a dispatch list. What :func:`verify` accepts, a replayer can trust.

Messages name the place and the numbers, such as
``steps[3].routes[0].dispatches[1] 'layers.0.attention/sdpa_decode_split': binding 2 reaches
byte 4096 of buffer 7 'k_cache', which has 2048``.

Here: the tables of data (live scalars, expressions, buffers, tensors, inputs, outputs, checks).
In ``verify_steps.py``: shaders, kernels, steps and what the device must offer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import dispatch_list as dl
from . import format_limits as fl
from .dispatch_list import NONE, BufferKind, DType, ExprOp, SymSource, ValueKind
from .verify_base import (
    Knowledge,
    check_count,
    check_enum,
    check_index,
    check_int,
    check_requirements,
    check_text,
    fail,
    learn,
)
from .verify_steps import verify_kernels, verify_shaders, verify_steps

_INT32 = (-(1 << 31), (1 << 31) - 1)
_PLACEHOLDER = re.compile(r"\{(\d{1,3})\}")


def verify(program: dl.Program) -> None:
    """Check every invariant that ``dispatch_list.py`` states.

    Raises InvalidProgramError at the first one broken. Takes some 15 ms for a 30-layer llama.
    """
    if program.format_version > dl.FORMAT_VERSION or program.format_version < 1:
        fail("format_version", f"{program.format_version}, known are 1..{dl.FORMAT_VERSION}")
    check_text(program.producer, "producer")
    check_requirements(program.features, program.limits, "")
    _verify_exprs(program)
    _verify_symints(program)
    _verify_checks(program)
    known = learn(program)
    _verify_live(program, known)
    _verify_buffers(program)
    _verify_tensors(program, known)
    _verify_inputs(program, known)
    _verify_outputs(program, known)
    _verify_sources(program, known)
    _verify_feedback(program, known)
    verify_shaders(program)
    verify_kernels(program)
    verify_steps(program, known)


def _verify_exprs(program: dl.Program) -> None:
    check_count(program.exprs, fl.MAX_EXPRS, "exprs")
    seen: set[dl.Expr] = set()
    for i, expr in enumerate(program.exprs):
        op, a, b = expr.op, expr.a, expr.b
        if type(op) is not ExprOp or type(a) is not int or type(b) is not int:
            fail(f"exprs[{i}]", f"{expr} does not hold an ExprOp and two ints")
        if op > ExprOp.SYM:
            if not (0 <= a < i and 0 <= b < i):
                fail(f"exprs[{i}]", f"{op.name} of {a} and {b}, which must be earlier entries")
        elif b != 0:
            fail(f"exprs[{i}]", f"{op.name} has no operand b, yet it is {b}")
        elif op is ExprOp.SYM:
            check_index(a, program.symints, f"exprs[{i}]", "symints")
        else:
            check_int(a, fl.MIN_VALUE, fl.MAX_VALUE, f"exprs[{i}]")
        if expr in seen:
            fail(f"exprs[{i}]", f"{op.name} {a} {b} is there already: the table is deduplicated")
        seen.add(expr)


def _verify_symints(program: dl.Program) -> None:
    """Live scalars by themselves; :func:`_verify_sources` looks at what they are read from."""
    check_count(program.symints, fl.MAX_SYMINTS, "symints")
    sources: dict[tuple[int, int, int], int] = {}
    for i, sym in enumerate(program.symints):
        place = f"symints[{i}] {sym.name!r}"
        check_text(sym.name, place)
        check_enum(sym.source, SymSource, f"{place} source")
        check_index(sym.input, program.inputs, place, "inputs")
        check_int(sym.index, *_INT32, f"{place} index")
        check_int(sym.lo, *_INT32, f"{place} lo")
        check_int(sym.hi, *_INT32, f"{place} hi")
        if sym.lo > sym.hi:
            fail(place, f"its range {sym.lo}..{sym.hi} is empty")
        source = (sym.source, sym.input, sym.index)
        if source in sources:
            fail(place, f"has the same source as symints[{sources[source]}]")
        sources[source] = i


def _verify_checks(program: dl.Program) -> None:
    check_count(program.checks, fl.MAX_CHECKS, "checks")
    for i, check in enumerate(program.checks):
        place = f"checks[{i}]"
        check_index(check.expr, program.exprs, f"{place}.expr", "exprs")
        check_text(check.message, f"{place}.message", empty=False, limit=fl.MAX_MESSAGE_CHARS)
        check_count(check.args, fl.MAX_CHECK_ARGS, f"{place}.args")
        for arg in check.args:
            check_index(arg, program.exprs, f"{place}.args", "exprs")
        for number in _PLACEHOLDER.findall(check.message):
            if int(number) >= len(check.args):
                fail(f"{place}.message", f"{{{number}}} but there are {len(check.args)} args")
        # Nothing else in braces, so that str.format can be used and cannot be abused.
        rest = _PLACEHOLDER.sub("", check.message)
        if "{" in rest or "}" in rest:
            fail(f"{place}.message", f"{check.message!r} has braces that hold no number")


def _verify_live(program: dl.Program, known: Knowledge) -> None:
    check_count(program.live, dl.LIVE_SLOTS, "live")
    for slot, index in enumerate(program.live):
        check_index(index, program.exprs, f"live[{slot}]", "exprs")
        known.check_within(index, _INT32[0], (1 << 32) - 1, f"live[{slot}]")


def _verify_buffers(program: dl.Program) -> None:
    check_count(program.buffers, fl.MAX_BUFFERS, "buffers")
    states: dict[str, int] = {}
    for i, buffer in enumerate(program.buffers):
        place = f"buffers[{i}] {buffer.name!r}"
        check_text(buffer.name, place)
        check_enum(buffer.kind, BufferKind, place)
        check_int(buffer.size, 4, fl.MAX_BUFFER_BYTES - 1, f"{place} size")
        if buffer.size % 4:
            fail(place, f"its size of {buffer.size} bytes is no multiple of 4")
        check_text(buffer.data_key, f"{place} data_key")
        if buffer.kind is BufferKind.CONSTANT and not buffer.data_key:
            fail(place, "a CONSTANT without a data_key has no content")
        if buffer.data_key and buffer.kind not in (BufferKind.CONSTANT, BufferKind.STATE):
            fail(place, f"a buffer of kind {buffer.kind.name} has no data_key")
        check_int(buffer.data_offset, 0, fl.MAX_BUFFER_BYTES - 1, f"{place} data_offset")
        if buffer.data_offset % 4:
            fail(place, f"its data_offset of {buffer.data_offset} bytes is no multiple of 4")
        if buffer.data_offset and not buffer.data_key:
            fail(place, f"has a data_offset of {buffer.data_offset} and no data_key")
        check_text(buffer.share, f"{place} share")
        if buffer.kind is not BufferKind.STATE:
            if buffer.share:
                fail(place, f"a buffer of kind {buffer.kind.name} cannot be shared")
            continue
        if not buffer.name:
            fail(place, "a STATE is found by its name and needs one")
        # In whatever groups: users read, write, reset and restore states by their names.
        if buffer.name in states:
            fail(place, f"buffers[{states[buffer.name]}] is a STATE of that name already")
        states[buffer.name] = i


def _extent(shape: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """Elements from the start of the buffer to the end of the tensor; 0 for an empty one."""
    reach = offset + 1
    for size, stride in zip(shape, strides, strict=True):
        if size <= 0:
            return 0
        reach += (size - 1) * stride
    return reach


def _verify_tensors(program: dl.Program, known: Knowledge) -> None:
    check_count(program.tensors, fl.MAX_TENSORS, "tensors")
    input_tensors = {x.index for x in program.inputs if x.kind is ValueKind.TENSOR}
    for i, tensor in enumerate(program.tensors):
        place = f"tensors[{i}]"
        check_enum(tensor.dtype, DType, place)
        check_count(tensor.shape, fl.MAX_RANK, f"{place}.shape")
        if len(tensor.shape) != len(tensor.strides):
            fail(place, f"{len(tensor.shape)} sizes but {len(tensor.strides)} strides")
        for index in (*tensor.shape, *tensor.strides, tensor.offset):
            check_index(index, program.exprs, place, "exprs")
            known.check_within(index, 0, fl.MAX_BUFFER_BYTES, f"{place} shape, strides or offset")
        if tensor.buffer == NONE:
            if i not in input_tensors:
                fail(place, "has no buffer and is no input")
            continue
        check_index(tensor.buffer, program.buffers, f"{place}.buffer", "buffers")
        _verify_fits(program, tensor, known, place)


def _verify_fits(program: dl.Program, tensor: dl.Tensor, known: Knowledge, place: str) -> None:
    """The tensor lies within its buffer at every value of the live scalars."""
    buffer = program.buffers[tensor.buffer]
    room = buffer.size // tensor.dtype.storage_bytes

    def extent(values: Sequence[int]) -> int:
        return _extent(
            [values[s] for s in tensor.shape],
            [values[s] for s in tensor.strides],
            values[tensor.offset],
        )

    # Sizes and strides are not negative, so the largest of each gives the largest extent.
    proven = extent(known.maxima) <= room
    if known.refutes(proven, lambda corner: extent(corner) <= room):
        need = max(map(extent, known.corners)) * tensor.dtype.storage_bytes
        fail(
            place,
            f"reaches byte {need} of buffer {tensor.buffer} {buffer.name!r}, "
            f"which has {buffer.size}",
        )


def _verify_boundary(program: dl.Program, index: int, known: Knowledge, place: str) -> None:
    """A tensor that crosses the boundary is contiguous from the start of its buffer."""
    tensor = program.tensors[index]
    for values in known.samples:
        if values[tensor.offset] != 0:
            fail(place, f"tensors[{index}] starts at element {values[tensor.offset]}, not 0")
        expected = 1
        if any(values[s] <= 0 for s in tensor.shape):
            continue
        for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
            if values[size] != 1 and values[stride] != expected:
                fail(
                    place,
                    f"tensors[{index}] is not contiguous: at shape "
                    f"{[values[s] for s in tensor.shape]} its strides are "
                    f"{[values[s] for s in tensor.strides]}",
                )
            expected *= values[size]


def _verify_inputs(program: dl.Program, known: Knowledge) -> None:
    check_count(program.inputs, fl.MAX_VALUES, "inputs")
    filled: dict[int, int] = {}
    for i, value in enumerate(program.inputs):
        place = f"inputs[{i}] {value.name!r}"
        check_text(value.name, place)
        check_enum(value.kind, ValueKind, place)
        if value.kind is ValueKind.INT:
            if value.index == NONE:
                continue
            check_index(value.index, program.symints, place, "symints")
            sym = program.symints[value.index]
            if sym.source is not SymSource.INT_ARG or sym.input != i:
                fail(place, f"symints[{value.index}] {sym.name!r} is not read from it")
            continue
        check_index(value.index, program.tensors, place, "tensors")
        _verify_boundary(program, value.index, known, place)
        buffer = program.tensors[value.index].buffer
        if buffer == NONE:
            continue
        kind = program.buffers[buffer].kind
        if kind is not BufferKind.INPUT:
            fail(place, f"lies in buffer {buffer}, which is of kind {kind.name}")
        if buffer in filled:
            fail(place, f"shares buffer {buffer} with inputs[{filled[buffer]}]")
        filled[buffer] = i
    for b, buf in enumerate(program.buffers):
        if buf.kind is BufferKind.INPUT and b not in filled:
            fail(f"buffers[{b}] {buf.name!r}", "is of kind INPUT and no input fills it")


def _verify_outputs(program: dl.Program, known: Knowledge) -> None:
    check_count(program.outputs, fl.MAX_VALUES, "outputs")
    owners: dict[int, int] = {}
    for i, value in enumerate(program.outputs):
        place = f"outputs[{i}] {value.name!r}"
        check_text(value.name, place)
        check_enum(value.kind, ValueKind, place)
        if value.kind is ValueKind.INT:
            check_index(value.index, program.exprs, place, "exprs")
            continue
        check_index(value.index, program.tensors, place, "tensors")
        buffer = program.tensors[value.index].buffer
        if buffer == NONE or program.buffers[buffer].kind is not BufferKind.OUTPUT:
            kind = "none" if buffer == NONE else program.buffers[buffer].kind.name
            fail(place, f"lies in buffer {buffer}, which is of kind {kind}")
        if buffer in owners:
            fail(place, f"shares buffer {buffer} with outputs[{owners[buffer]}]")
        owners[buffer] = i
        _verify_boundary(program, value.index, known, place)


def _verify_sources(program: dl.Program, known: Knowledge) -> None:
    """Each live scalar can be read from the input that it names."""
    for i, sym in enumerate(program.symints):
        place = f"symints[{i}] {sym.name!r}"
        value = program.inputs[sym.input]
        expected = ValueKind.INT if sym.source is SymSource.INT_ARG else ValueKind.TENSOR
        if value.kind is not expected:
            fail(place, f"is a {sym.source.name} of inputs[{sym.input}], a {value.kind.name}")
        if sym.source is SymSource.INT_ARG:
            if sym.index != 0 or value.index != i:
                fail(place, f"inputs[{sym.input}] names symints[{value.index}], index {sym.index}")
            continue
        tensor = program.tensors[value.index]
        if sym.source is SymSource.INPUT_DIM:
            check_int(sym.index, 0, len(tensor.shape) - 1, f"{place} dimension")
            if sym.lo < 0:
                fail(place, f"is the size of a dimension and may not be {sym.lo}")
            continue
        if tensor.dtype not in (DType.I32, DType.I64):
            fail(place, f"is an element of a tensor of {tensor.dtype.name}, not of integers")
        elements = 1
        for size in tensor.shape:
            elements *= max(0, known.maxima[size])
        if not -elements <= sym.index < elements:
            fail(place, f"is element {sym.index} of a tensor of at most {elements}")


def _verify_feedback(program: dl.Program, known: Knowledge) -> None:
    """What stays on the GPU fits where it goes, and the host need not see it."""
    check_count(program.feedback, fl.MAX_VALUES, "feedback")
    fed: set[int] = set()
    for i, pair in enumerate(program.feedback):
        check_index(pair.output, program.outputs, f"feedback[{i}].output", "outputs")
        check_index(pair.input, program.inputs, f"feedback[{i}].input", "inputs")
        source, target = program.outputs[pair.output], program.inputs[pair.input]
        place = f"feedback[{i}] of output {source.name!r} to input {target.name!r}"
        if source.kind is not ValueKind.TENSOR or target.kind is not ValueKind.TENSOR:
            fail(place, f"{source.kind.name} to {target.kind.name}, both must be TENSOR")
        if pair.input in fed:
            fail(place, "another pair feeds that input")
        fed.add(pair.input)
        given, taken = program.tensors[source.index], program.tensors[target.index]
        if given.dtype is not taken.dtype or len(given.shape) != len(taken.shape):
            fail(
                place,
                f"{given.dtype.name} of {len(given.shape)} dimensions to "
                f"{taken.dtype.name} of {len(taken.shape)}",
            )
        for dim, (a, b) in enumerate(zip(given.shape, taken.shape, strict=True)):
            (a_lo, a_hi), (b_lo, b_hi) = known.ranges[a], known.ranges[b]
            if a_lo > b_hi or b_lo > a_hi:
                fail(place, f"dimension {dim} is {a_lo}..{a_hi} there and {b_lo}..{b_hi} here")
        if taken.buffer == NONE:
            fail(place, "the GPU does not read that input")
        for sym in program.symints:
            if sym.source is SymSource.TENSOR_ELEMENT and sym.input == pair.input:
                fail(
                    place,
                    f"the live scalar {sym.name!r} is an element of that input, which the host "
                    "must read before it can check the step or size its dispatches",
                )
