"""Programs made by hand, for the runtime's tests: no torch, no lowering."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from executorch_wgpu.serialization.dispatch_list import (
    NONE,
    Access,
    Binding,
    Buffer,
    BufferKind,
    Check,
    Dispatch,
    DType,
    Expr,
    ExprOp,
    Feedback,
    Input,
    Kernel,
    Output,
    Param,
    ParamKind,
    Program,
    Route,
    Shader,
    Step,
    SymInt,
    SymSource,
    Tensor,
    ValueKind,
)

R, W = Access.READ, Access.READ_WRITE

LIVE = "@group(0) @binding(0) var<uniform> live: array<vec4<u32>, 64>;\n"
X = "@group(1) @binding(0) var<storage, read> x: array<f32>;\n"
Y = "@group(1) @binding(1) var<storage, read_write> y: array<f32>;\n"
MAIN = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {\n"

#: y[i] = x[i] * SCALE + BIAS for i below the live value at slot N.
AFFINE = (
    "override N: u32;\noverride SCALE: f32;\noverride BIAS: f32;\n"
    + LIVE
    + X
    + Y
    + MAIN
    + """    let i = id.y * 4194240u + id.x;
    if (i < live[N / 4u][N % 4u]) { y[i] = x[i] * SCALE + BIAS; }
}
"""
)

#: state[i] += x[i]; y[i] = state[i], for i below the live value at slot N.
ACCUMULATE = (
    "override N: u32;\n"
    + LIVE
    + X
    + "@group(1) @binding(1) var<storage, read_write> state: array<f32>;\n"
    + "@group(1) @binding(2) var<storage, read_write> y: array<f32>;\n"
    + MAIN
    + """    let i = id.x;
    if (i < live[N / 4u][N % 4u]) { state[i] += x[i]; y[i] = state[i]; }
}
"""
)


def shader(wgsl: str, extensions: tuple[str, ...] = ()) -> Shader:
    """A shader with its digest."""
    text = "\n".join([*sorted(extensions), wgsl])
    return Shader(wgsl, extensions, hashlib.sha256(text.encode()).hexdigest())


class Build:
    """Collects the tables of a program."""

    def __init__(self) -> None:
        self.symints: list[SymInt] = []
        self.exprs: list[Expr] = []
        self.live: list[int] = []
        self.buffers: list[Buffer] = []
        self.tensors: list[Tensor] = []
        self.shaders: list[Shader] = []
        self.kernels: list[Kernel] = []
        self.steps: list[Step] = []
        self.checks: list[Check] = []
        self.inputs: list[Input] = []
        self.outputs: list[Output] = []
        self.feedback: list[Feedback] = []

    def expr(self, op: ExprOp, a: int = 0, b: int = 0) -> int:
        node = Expr(op, a, b)
        if node not in self.exprs:
            self.exprs.append(node)
        return self.exprs.index(node)

    def const(self, value: int) -> int:
        return self.expr(ExprOp.CONST, value)

    def sym(
        self, name: str, source: SymSource, input: int, index: int = 0, lo: int = 0, hi: int = 1024
    ) -> int:
        """The expression that is a new live scalar."""
        self.symints.append(SymInt(name, source, input, index, lo, hi))
        return self.expr(ExprOp.SYM, len(self.symints) - 1)

    def slot(self, expr: int) -> int:
        """The slot of the live block that holds ``expr``."""
        if expr not in self.live:
            self.live.append(expr)
        return self.live.index(expr)

    def buffer(
        self, kind: BufferKind, size: int, name: str, data_key: str = "", **more: Any
    ) -> int:
        self.buffers.append(Buffer(kind, size, name, data_key, **more))
        return len(self.buffers) - 1

    def tensor(self, dtype: DType, shape: Sequence[int], buffer: int) -> int:
        """A contiguous tensor; ``shape`` in expressions."""
        strides = [self.const(1)]
        for extent in list(shape)[:0:-1]:
            strides.insert(0, self.expr(ExprOp.MUL, strides[0], extent))
        strides = strides[: len(shape)]
        self.tensors.append(Tensor(dtype, tuple(shape), tuple(strides), self.const(0), buffer))
        return len(self.tensors) - 1

    def input(self, name: str, dtype: DType, shape: Sequence[int], size: int | None) -> int:
        """A tensor input and its buffer (its index is returned); no buffer when size is None."""
        buffer = NONE if size is None else self.buffer(BufferKind.INPUT, size, name)
        self.inputs.append(Input(name, ValueKind.TENSOR, self.tensor(dtype, shape, buffer)))
        return buffer

    def output(self, name: str, dtype: DType, shape: Sequence[int], size: int) -> int:
        buffer = self.buffer(BufferKind.OUTPUT, size, name)
        self.outputs.append(Output(name, ValueKind.TENSOR, self.tensor(dtype, shape, buffer)))
        return buffer

    def kernel(
        self,
        wgsl: str,
        accesses: Sequence[Access],
        params: Sequence[Param] = (),
        workgroup_size: tuple[int, int, int] = (64, 1, 1),
        extensions: tuple[str, ...] = (),
    ) -> int:
        new = shader(wgsl, extensions)
        if new not in self.shaders:
            self.shaders.append(new)
        self.kernels.append(
            Kernel(self.shaders.index(new), "main", tuple(params), tuple(accesses), workgroup_size)
        )
        return len(self.kernels) - 1

    def affine(self, n: int, scale: float, bias: float = 0.0) -> int:
        """A kernel of AFFINE over the first ``n`` (an expression) elements."""
        return self.kernel(
            AFFINE,
            (R, W),
            [
                Param("N", ParamKind.LIVE, self.slot(n)),
                Param("SCALE", ParamKind.F32, scale),
                Param("BIAS", ParamKind.F32, bias),
            ],
        )

    def dispatch(
        self, kernel: int, buffers: Sequence[int], grid: tuple[int, int, int], label: str
    ) -> Dispatch:
        """A dispatch that binds whole buffers."""
        bindings = tuple(Binding(b, 0, self.buffers[b].size) for b in buffers)
        return Dispatch(kernel, bindings, grid, label, op="aten.test", module_path="layers.0")

    def step(self, *routes: Route) -> None:
        self.steps.append(Step(routes))

    def simple(self, *dispatches: Dispatch) -> None:
        """A step with one route."""
        self.step(Route("plain", dispatches))

    def program(
        self, features: tuple[str, ...] = (), limits: tuple[tuple[str, int], ...] = ()
    ) -> Program:
        return Program(
            producer="tests",
            symints=tuple(self.symints),
            exprs=tuple(self.exprs),
            live=tuple(self.live),
            buffers=tuple(self.buffers),
            tensors=tuple(self.tensors),
            shaders=tuple(self.shaders),
            kernels=tuple(self.kernels),
            steps=tuple(self.steps),
            checks=tuple(self.checks),
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            feedback=tuple(self.feedback),
            features=features,
            limits=limits,
        )


def grid_of(b: Build, n: int) -> tuple[int, int, int]:
    """Workgroups of 64 for ``n`` (an expression) elements: x up to 65,535, then rows in y."""
    groups = b.expr(ExprOp.CEILDIV, n, b.const(64))
    x = b.expr(ExprOp.MIN, groups, b.const(65535))
    return x, b.expr(ExprOp.CEILDIV, groups, b.const(65535)), b.const(1)


def chain(links: int, size: int, *, dynamic: bool = False) -> Program:
    """``links`` dependent dispatches, each ``y = x * 0.5 + k``; over ``size`` float32 elements, or
    up to ``size`` when ``dynamic``."""
    b = Build()
    n = b.sym("n", SymSource.INPUT_DIM, 0, 0, 0, size) if dynamic else b.const(size)
    nbytes = size * 4
    at = b.input("x", DType.F32, [n], nbytes)
    scratch = [b.buffer(BufferKind.SCRATCH, nbytes, f"scratch{i}") for i in range(2)]
    out = b.output("y", DType.F32, [n], nbytes)
    for k in range(links):
        to = out if k == links - 1 else scratch[k % 2]
        b.simple(
            b.dispatch(b.affine(n, 0.5, float(k)), [at, to], grid_of(b, n), f"link.{k}/affine")
        )
        at = to
    return b.program()


def chain_reference(x: object, links: int) -> object:
    """What :func:`chain` computes, in float32."""
    import numpy as np

    y = np.asarray(x, np.float32)
    for k in range(links):
        y = y * np.float32(0.5) + np.float32(k)
    return y


def accumulator(size: int = 8, *, initial_key: str = "") -> Program:
    """state += x, output = state; with a check that x's live element, ``pos``, is below 4."""
    b = Build()
    n = b.const(size)
    x = b.input("x", DType.F32, [n], size * 4)
    b.input("pos", DType.I64, [b.const(1)], None)
    pos = b.sym("pos", SymSource.TENSOR_ELEMENT, 1, 0, 0, 100)
    state = b.buffer(BufferKind.STATE, size * 4, "layers.0.state", initial_key)
    b.tensor(DType.F32, [n], state)
    y = b.output("y", DType.F32, [n], size * 4)
    kernel = b.kernel(ACCUMULATE, (R, W, W), [Param("N", ParamKind.LIVE, b.slot(n))])
    b.simple(b.dispatch(kernel, [x, state, y], grid_of(b, n), "layers.0/accumulate"))
    b.checks.append(
        Check(
            b.expr(ExprOp.LT, pos, b.const(4)),
            "pos {0} exceeds the cache of {1} positions",
            (pos, b.const(4)),
        )
    )
    return b.program()
