"""A program with as much constant data as a test wants."""

from __future__ import annotations

from programs import LIVE, MAIN, Build, R, W

from executorch_wgpu.serialization.dispatch_list import BufferKind, DType, Program

#: y[i] = x[i] + the first and the last element of w.
_ADD = (
    LIVE
    + "@group(1) @binding(0) var<storage, read> w: array<f32>;\n"
    + "@group(1) @binding(1) var<storage, read> x: array<f32>;\n"
    + "@group(1) @binding(2) var<storage, read_write> y: array<f32>;\n"
    + MAIN
    + "    let i = id.x;\n"
    + "    if (i < 4u) { y[i] = x[i] + w[0] + w[arrayLength(&w) - 1u]; }\n}\n"
)


def many_constants(count: int, size: int) -> Program:
    """``count`` constants ``w0``, ``w1`` ... of ``size`` bytes, read one after another."""
    b = Build()
    n, one = b.const(4), b.const(1)
    at = b.input("x", DType.F32, [n], 16)
    kernel = b.kernel(_ADD, (R, R, W))
    for i in range(count):
        weight = b.buffer(BufferKind.CONSTANT, size, f"w{i}", f"w{i}")
        last = i == count - 1
        to = (
            b.output("y", DType.F32, [n], 16)
            if last
            else b.buffer(BufferKind.SCRATCH, 16, f"scratch{i % 2}")
        )
        b.simple(b.dispatch(kernel, [weight, at, to], (one, one, one), f"layers.{i}/add"))
        at = to
    return b.program()
