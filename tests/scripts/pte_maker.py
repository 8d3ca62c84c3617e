"""A small program, and a ``.pte`` file that carries it, both made without torch."""

from __future__ import annotations

import struct

import flatbuffers
import numpy as np

from executorch_wgpu.serialization.dispatch_list import (
    BACKEND_ID,
    Access,
    Binding,
    Buffer,
    BufferKind,
    Check,
    Dispatch,
    DType,
    Expr,
    ExprOp,
    Input,
    Kernel,
    Output,
    Param,
    ParamKind,
    Program,
    Route,
    Step,
    SymInt,
    SymSource,
    Tensor,
    ValueKind,
)
from executorch_wgpu.serialization.generated import pte_schema_generated as fb
from executorch_wgpu.serialization.wgsl_text import make_shader
from executorch_wgpu.serialization.writer import serialize

HEADS = """\
override COUNT: u32;
override WIDTH: u32;
@group(0) @binding(0) var<uniform> live: array<vec4<u32>, 64>;
"""

#: cache[(pos + row) * WIDTH + i] = x[row * WIDTH + i]; live slots: elements, pos.
APPEND = (
    HEADS
    + """\
override POSITION: u32;
@group(1) @binding(0) var<storage, read> x: array<f32>;
@group(1) @binding(1) var<storage, read_write> cache: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < live[COUNT / 4u][COUNT % 4u]) {
    cache[live[POSITION / 4u][POSITION % 4u] * WIDTH + id.x] = x[id.x];
  }
}
"""
)

#: y[row * WIDTH + i] = weight[i] * the sum over all of the cache's rows of column i.
COLUMN_SUMS = (
    HEADS
    + """\
@group(1) @binding(0) var<storage, read> cache: array<f32>;
@group(1) @binding(1) var<storage, read> weight: array<f32>;
@group(1) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < live[COUNT / 4u][COUNT % 4u]) {
    var sum = 0.0;
    for (var i = id.x % WIDTH; i < arrayLength(&cache); i += WIDTH) { sum += cache[i]; }
    y[id.x] = weight[id.x % WIDTH] * sum;
  }
}
"""
)

WIDTH, ROWS, MAX_S = 4, 32, 8
WEIGHT = np.arange(1, WIDTH + 1, dtype=np.float32)


def make_program() -> Program:
    """``x[S, 4] f32``, ``input_pos[1] i64`` -> ``y[S, 4] f32``, with a cache of 32 rows."""
    exprs: list[Expr] = []

    def add(op: ExprOp, a: int, b: int = 0) -> int:
        if Expr(op, a, b) not in exprs:
            exprs.append(Expr(op, a, b))
        return exprs.index(Expr(op, a, b))

    s, pos = add(ExprOp.SYM, 0), add(ExprOp.SYM, 1)
    zero, one, width, rows = (add(ExprOp.CONST, n) for n in (0, 1, WIDTH, ROWS))
    elements = add(ExprOp.MUL, s, width)
    groups = add(ExprOp.CEILDIV, elements, add(ExprOp.CONST, 64))
    fits = add(ExprOp.LE, add(ExprOp.ADD, pos, s), rows)
    decode = add(ExprOp.EQ, s, one)
    count = Param("COUNT", ParamKind.LIVE, 0.0)
    position = Param("POSITION", ParamKind.LIVE, 1.0)
    across = Param("WIDTH", ParamKind.U32, float(WIDTH))
    x, y = Binding(0, 0, MAX_S * WIDTH * 4), Binding(1, 0, MAX_S * WIDTH * 4)
    weight, cache = Binding(2, 0, WIDTH * 4), Binding(3, 0, ROWS * WIDTH * 4)
    read, write = Access.READ, Access.READ_WRITE
    grid = (groups, one, one)
    append = Dispatch(0, (x, cache), grid, "layers.0/append", "llama.update_cache", "layers.0", 7)
    sums = Dispatch(1, (cache, weight, y), grid, "layers.0/column_sums", "aten.sum", "layers.0")
    return Program(
        producer="tests",
        symints=(
            SymInt("S", SymSource.INPUT_DIM, 0, 0, 1, MAX_S),
            SymInt("input_pos", SymSource.TENSOR_ELEMENT, 1, 0, 0, ROWS - 1),
        ),
        exprs=tuple(exprs),
        live=(elements, pos),
        buffers=(
            Buffer(BufferKind.INPUT, x.size, "x"),
            Buffer(BufferKind.OUTPUT, y.size, "y"),
            Buffer(BufferKind.CONSTANT, weight.size, "layers.0.weight", "wgpu/weight"),
            Buffer(BufferKind.STATE, cache.size, "layers.0.cache"),
        ),
        tensors=(
            Tensor(DType.F32, (s, width), (width, one), zero, 0),
            Tensor(DType.I64, (one,), (one,), zero, -1),
            Tensor(DType.F32, (s, width), (width, one), zero, 1),
            Tensor(DType.F32, (rows, width), (width, one), zero, 3),
        ),
        shaders=(make_shader(APPEND), make_shader(COLUMN_SUMS)),
        kernels=(
            Kernel(0, "main", (count, across, position), (read, write), (64, 1, 1)),
            Kernel(1, "main", (count, across), (read, read, write), (64, 1, 1)),
        ),
        steps=(
            Step((Route("", (append,)),)),
            Step((Route("decode", (sums,), guard=decode), Route("prefill", (sums,)))),
        ),
        checks=(Check(fits, "input_pos {0} + {1} rows exceed the cache of 32 rows", (pos, s)),),
        inputs=(
            Input("x", ValueKind.TENSOR, 0),
            Input("input_pos", ValueKind.TENSOR, 1),
        ),
        outputs=(Output("y", ValueKind.TENSOR, 2),),
    )


def make_pte(payload: bytes, backend: str = BACKEND_ID) -> bytes:
    """A ``.pte`` with one method, ``forward(x, input_pos) -> y``, that is one delegate call; the
    named data lie in a segment behind the flatbuffer."""
    b = flatbuffers.Builder(4096)

    def vector(items: list[int]) -> int:
        b.StartVector(4, len(items), 4)
        for item in reversed(items):
            b.PrependUOffsetTRelative(item)
        return b.EndVector()

    def tensor(scalar_type: int, sizes: list[int], dynamism: int) -> int:
        shape = b.CreateNumpyVector(np.array(sizes, np.int32))
        order = b.CreateNumpyVector(np.arange(len(sizes), dtype=np.uint8))
        fb.AllocationDetailsStart(b)
        allocation = fb.AllocationDetailsEnd(b)
        fb.TensorStart(b)
        fb.TensorAddScalarType(b, scalar_type)
        fb.TensorAddSizes(b, shape)
        fb.TensorAddDimOrder(b, order)
        fb.TensorAddAllocationInfo(b, allocation)
        fb.TensorAddShapeDynamism(b, dynamism)
        value = fb.TensorEnd(b)
        fb.EValueStart(b)
        fb.EValueAddValType(b, fb.KernelTypes.Tensor)
        fb.EValueAddVal(b, value)
        return fb.EValueEnd(b)

    values = vector(
        [
            tensor(fb.ScalarType.FLOAT, [MAX_S, WIDTH], 1),
            tensor(fb.ScalarType.LONG, [1], 0),
            tensor(fb.ScalarType.FLOAT, [MAX_S, WIDTH], 1),
        ]
    )
    inputs = b.CreateNumpyVector(np.array([0, 1], np.int32))
    outputs = b.CreateNumpyVector(np.array([2], np.int32))
    args = b.CreateNumpyVector(np.array([0, 1, 2], np.int32))
    fb.DelegateCallStart(b)
    fb.DelegateCallAddArgs(b, args)
    call = fb.DelegateCallEnd(b)
    fb.InstructionStart(b)
    fb.InstructionAddInstrArgsType(b, fb.InstructionArguments.DelegateCall)
    fb.InstructionAddInstrArgs(b, call)
    instructions = vector([fb.InstructionEnd(b)])
    fb.ChainStart(b)
    fb.ChainAddInstructions(b, instructions)
    chains = vector([fb.ChainEnd(b)])
    name = b.CreateString(backend)
    fb.BackendDelegateDataReferenceStart(b)
    processed = fb.BackendDelegateDataReferenceEnd(b)  # inline, the first
    fb.BackendDelegateStart(b)
    fb.BackendDelegateAddId(b, name)
    fb.BackendDelegateAddProcessed(b, processed)
    delegates = vector([fb.BackendDelegateEnd(b)])
    forward = b.CreateString("forward")
    fb.ExecutionPlanStart(b)
    fb.ExecutionPlanAddName(b, forward)
    fb.ExecutionPlanAddValues(b, values)
    fb.ExecutionPlanAddInputs(b, inputs)
    fb.ExecutionPlanAddOutputs(b, outputs)
    fb.ExecutionPlanAddChains(b, chains)
    fb.ExecutionPlanAddDelegates(b, delegates)
    plans = vector([fb.ExecutionPlanEnd(b)])
    blob = b.CreateByteVector(payload)
    fb.BackendDelegateInlineDataStart(b)
    fb.BackendDelegateInlineDataAddData(b, blob)
    inline = vector([fb.BackendDelegateInlineDataEnd(b)])
    fb.DataSegmentStart(b)
    fb.DataSegmentAddSize(b, WEIGHT.nbytes)
    segments = vector([fb.DataSegmentEnd(b)])
    key = b.CreateString("wgpu/weight")
    fb.NamedDataStart(b)
    fb.NamedDataAddKey(b, key)
    named = vector([fb.NamedDataEnd(b)])
    fb.ProgramStart(b)
    fb.ProgramAddExecutionPlan(b, plans)
    fb.ProgramAddBackendDelegateData(b, inline)
    fb.ProgramAddSegments(b, segments)
    fb.ProgramAddNamedData(b, named)
    b.Finish(fb.ProgramEnd(b), b"ET12")
    flat = bytes(b.Output())
    # The extended header lies between the identifier and the tables; flatbuffers leave no room
    # for it, so the root offset, the only absolute one, moves by its size.
    header = 32
    root = struct.unpack_from("<I", flat)[0] + header
    size = len(flat) + header
    base = -(-size // 64) * 64
    extended = struct.pack("<4sIQQ", b"eh00", 24, size, base).ljust(header, b"\0")
    whole = struct.pack("<I", root) + b"ET12" + extended + flat[8:]
    return whole.ljust(base, b"\0") + WEIGHT.tobytes()


def tiny_pte() -> bytes:
    """A whole file."""
    return make_pte(serialize(make_program()))
