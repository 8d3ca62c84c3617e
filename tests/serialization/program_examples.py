"""Programs to test with: one that uses everything, one as large as a llama's, and any valid one.

from program_examples import example, llama_like, programs
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st

from executorch_wgpu.serialization import (
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
    InvalidProgramError,
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
    bounds,
    device_needs,
    make_shader,
)

WGSL = """\
// Doubles {note}.
override COUNT: u32;
override LIVE_COUNT: u32;
override SCALE: f32;
override SHIFT: i32;
override FLAG: bool;
@group(0) @binding(0) var<uniform> live: array<vec4<u32>, 64>;
@group(1) @binding(0) var<storage, read> x: array<f32>;
@group(1) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let n = live[LIVE_COUNT / 4u][LIVE_COUNT % 4u];
  if (id.x < n && FLAG) {{ y[id.x] = 2.0 * SCALE * x[id.x]; }}
}}
"""


class ExprTable:
    """A deduplicated expression table under construction; methods return indices."""

    def __init__(self) -> None:
        self.exprs: list[Expr] = []
        self._index: dict[Expr, int] = {}

    def add(self, op: ExprOp, a: int, b: int = 0) -> int:
        expr = Expr(op, a, b)
        if expr not in self._index:
            self._index[expr] = len(self.exprs)
            self.exprs.append(expr)
        return self._index[expr]

    def const(self, value: int) -> int:
        return self.add(ExprOp.CONST, value)

    def sym(self, index: int) -> int:
        return self.add(ExprOp.SYM, index)

    def contiguous(self, shape: list[int]) -> tuple[int, ...]:
        """Strides (indices) of a contiguous tensor of ``shape`` (indices)."""
        strides: list[int] = []
        step = self.const(1)
        for size in reversed(shape):
            strides.insert(0, step)
            first = self.exprs[step] == Expr(ExprOp.CONST, 1)
            step = size if first else self.add(ExprOp.MUL, step, size)
        return tuple(strides)


def example() -> Program:
    """A small program with live scalars, checks, state, two routes, and every kind of buffer.

    ``x[S, 8] f32``, ``pos[1] i64``, ``n`` an int -> ``y[S, 8] f32``, and ``pos + S``.
    """
    t = ExprTable()
    s, pos, n = t.sym(0), t.sym(1), t.sym(2)
    zero, one, eight = t.const(0), t.const(1), t.const(8)
    total = t.add(ExprOp.ADD, s, pos)
    fits = t.add(ExprOp.LE, total, t.const(32))
    elements = t.add(ExprOp.MUL, s, eight)
    groups = t.add(ExprOp.CEILDIV, elements, t.const(64))
    decode = t.add(ExprOp.EQ, s, one)
    cached = t.add(ExprOp.MUL, total, eight)
    plain = make_shader(WGSL.format(note="it"))
    fast = make_shader(WGSL.format(note="it quickly, with subgroups"), ["subgroups"])
    params = (
        Param("COUNT", ParamKind.U32, 64.0),
        Param("LIVE_COUNT", ParamKind.LIVE, 1.0),
        Param("SCALE", ParamKind.F32, 0.5),
        Param("SHIFT", ParamKind.I32, -3.0),
        Param("FLAG", ParamKind.BOOL, 1.0),
    )
    accesses = (Access.READ, Access.READ_WRITE)
    kernels = (
        Kernel(0, "main", params, accesses, (64, 1, 1)),
        Kernel(1, "main", params, accesses, (32, 2, 1), 512),
    )
    buffers = (
        Buffer(BufferKind.INPUT, 16 * 8 * 4, "x"),
        Buffer(BufferKind.INPUT, 4, "pos"),
        Buffer(BufferKind.OUTPUT, 16 * 8 * 4, "y"),
        Buffer(BufferKind.CONSTANT, 1024, "layers.0.weight", "layers.0.weight", data_offset=4),
        Buffer(BufferKind.STATE, 32 * 8 * 4, "layers.0.k_cache", share="kv"),
        Buffer(BufferKind.SCRATCH, 2048, "scratch 0"),
    )

    def dispatch(kernel: int, source: Binding, target: Binding, label: str) -> Dispatch:
        return Dispatch(
            kernel,
            (source, target),
            (groups, one, one),
            label,
            "aten.mul.Tensor",
            "layers.0",
            debug_handle=17,
            bytes=cached,
            flops=total,
            debug_handles=(17, 18),
        )

    x, y = Binding(0, 0, 512), Binding(2, 0, 512)
    weight, cache, scratch = Binding(3, 256, 768), Binding(4, 0, 1024), Binding(5, 1024, 512)
    steps = (
        Step((Route("", (dispatch(0, x, cache, "layers.0/update_cache"),)),)),
        Step(
            (
                Route(
                    "subgroups",
                    (dispatch(1, cache, y, "layers.0/mul_subgroups"),),
                    guard=decode,
                    features=("subgroups",),
                ),
                Route(
                    "big",
                    (dispatch(0, weight, y, "layers.0/mul_big"),),
                    limits=(("max-storage-buffer-binding-size", 1 << 30),),
                ),
                Route(
                    "plain",
                    (
                        dispatch(0, weight, scratch, "layers.0/mul_a"),
                        dispatch(0, scratch, y, "layers.0/mul_b"),
                    ),
                ),
            )
        ),
    )
    return Program(
        producer="executorch-wgpu test",
        symints=(
            SymInt("S", SymSource.INPUT_DIM, 0, 0, 1, 16),
            SymInt("pos", SymSource.TENSOR_ELEMENT, 1, 0, 0, 31),
            SymInt("n", SymSource.INT_ARG, 2, 0, -5, 5),
        ),
        exprs=tuple(t.exprs),
        live=(total, elements, n),
        buffers=buffers,
        tensors=(
            Tensor(DType.F32, (s, eight), (eight, one), zero, 0),
            Tensor(DType.I64, (one,), (one,), zero, 1),
            Tensor(DType.F32, (s, eight), (eight, one), zero, 2),
            # A view of the rows of the cache up to pos + S: only the check says that it fits.
            Tensor(DType.F32, (total, eight), (eight, one), zero, 4),
            Tensor(DType.F32, (cached,), (one,), zero, 4),
        ),
        shaders=(plain, fast),
        kernels=kernels,
        steps=steps,
        checks=(Check(fits, "pos {0} + {1} rows exceed the cache of 32", (pos, s)),),
        inputs=(
            Input("x", ValueKind.TENSOR, 0),
            Input("pos", ValueKind.TENSOR, 1),
            Input("n", ValueKind.INT, 2),
            Input("unused", ValueKind.INT, NONE),
        ),
        outputs=(Output("y", ValueKind.TENSOR, 2), Output("next", ValueKind.INT, total)),
        feedback=(Feedback(0, 0),),
    )


def llama_like(layers: int = 30, dispatches: int = 23) -> Program:
    """As many dispatches, weights, shaders and expressions as a llama of ``layers`` has."""
    base = example()
    t = ExprTable()
    for expr in base.exprs:
        t.add(expr.op, expr.a, expr.b)
    grids = [(t.const(1000 + i), t.const(1), t.const(1)) for i in range(90)]
    shaders = tuple(make_shader(WGSL.format(note=f"kernel {i} {'x' * 14_000}")) for i in range(20))
    accesses = (Access.READ, Access.READ, Access.READ, Access.READ_WRITE)
    kernels = tuple(
        Kernel(i, "main", base.kernels[0].params, accesses, (64, 1, 1)) for i in range(len(shaders))
    )
    first = len(base.buffers)
    weights = tuple(
        Buffer(BufferKind.CONSTANT, 1 << 20, f"layers.{i // 9}.w{i % 9}", f"key {i}")
        for i in range(layers * 9)
    )
    steps = []
    for i in range(layers * dispatches):
        bindings = (
            Binding(0, 0, 512),
            Binding(first + i % len(weights), 0, 1 << 20),
            Binding(first + (i + 1) % len(weights), 512, 1 << 10),
            Binding(2 if i % dispatches == dispatches - 1 else 5, 0, 512),
        )
        path = f"layers.{i // dispatches}.attention"
        label, grid = f"{path}/op_{i % dispatches}", grids[i % len(grids)]
        one = Dispatch(i % len(kernels), bindings, grid, label, "aten.mm.default", path, i)
        steps.append(Step((Route("", (one,)),)))
    return replace(
        base,
        exprs=tuple(t.exprs),
        buffers=base.buffers + weights,
        shaders=shaders,
        kernels=kernels,
        steps=tuple(steps),
    )


# -- any valid program -----------------------------------------------------------------------

NAMES = st.text("abcxyz_.é 01", max_size=12)
_COMMENTS = st.text("abc é\n\t{};@*", max_size=40).map(lambda text: text.replace("*", ""))
_BINARY = [op for op in ExprOp if op > ExprOp.SYM]
_INTS = st.one_of(
    st.integers(-9, 130), st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 31, -(1 << 31) - 1])
)


@st.composite
def expr_tables(
    draw: st.DrawFn, symints: list[SymInt] | None = None, start: ExprTable | None = None
) -> ExprTable:
    """A table whose every value stays within 64 bits; it may still divide by zero."""
    table = start or ExprTable()
    symints = symints or []
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, 5))
        if kind == 0 or not table.exprs:
            table.const(draw(_INTS))
        elif kind == 1 and symints:
            table.sym(draw(st.integers(0, len(symints) - 1)))
        else:
            index = st.integers(0, len(table.exprs) - 1)
            expr = Expr(draw(st.sampled_from(_BINARY)), draw(index), draw(index))
            try:
                bounds([*table.exprs, expr], symints)
            except InvalidProgramError:
                continue
            table.add(expr.op, expr.a, expr.b)
    return table


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any valid program, small."""
    return _Generator(draw).program()


class _Generator:
    """Draws a program part by part; each part refers to those before it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.table = ExprTable()
        self.symints: list[SymInt] = []
        self.buffers: list[Buffer] = []
        self.tensors: list[Tensor] = []
        self.inputs: list[Input] = []
        self.outputs: list[Output] = []

    def below(self, count: int) -> int:
        return self.draw(st.integers(0, count - 1))

    def program(self) -> Program:
        draw = self.draw
        for _ in range(draw(st.integers(0, 3))):
            self.input()
        for _ in range(draw(st.integers(0, 3))):
            self.output()
        for kind in draw(st.lists(st.sampled_from([BufferKind.CONSTANT, BufferKind.STATE]))):
            key = draw(NAMES.filter(bool)) if kind is BufferKind.CONSTANT else draw(NAMES)
            self.buffer(kind, draw(st.integers(1, 300)) * 4, draw(NAMES.filter(bool)), key)
        for _ in range(draw(st.integers(0, 2))):
            self.buffer(BufferKind.SCRATCH, draw(st.integers(1, 300)) * 4)
        draw(expr_tables(self.symints, self.table))
        one = self.table.const(1)
        grid_exprs = [
            self.table.const(0),
            one,
            *[self.table.sym(i) for i in range(len(self.symints))],
        ]
        shaders = [
            make_shader(
                f"/* {draw(_COMMENTS)} */\noverride P: u32;\noverride Q: f32;\nfn k() {{}}",
                draw(st.sets(st.sampled_from(["f16", "subgroups"]))),
            )
            for _ in range(draw(st.integers(1, 3)))
        ]
        ranges = bounds(self.table.exprs, self.symints)
        fitting = [i for i, (lo, hi) in enumerate(ranges) if lo >= -(1 << 31) and hi < 1 << 32]
        live = draw(st.lists(st.sampled_from(fitting), max_size=5))
        self.live_count = len(live)
        self.kernels: list[Kernel] = []
        self.shader_count = len(shaders)
        steps = self.steps(grid_exprs)
        draft = Program(
            producer=draw(NAMES),
            symints=tuple(self.symints),
            exprs=tuple(self.table.exprs),
            live=tuple(live),
            buffers=tuple(self.buffers),
            tensors=tuple(self.tensors),
            shaders=tuple(shaders),
            kernels=tuple(self.kernels),
            steps=tuple(steps),
            checks=tuple(self.checks()),
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
        )
        everything = [d for s in steps for r in s.routes for d in r.dispatches]
        features, limits = device_needs(everything, draft.kernels, draft.shaders, draft.buffers)
        return replace(draft, features=features, limits=limits)

    def buffer(self, kind: BufferKind, size: int, name: str = "", key: str = "") -> int:
        name = name or self.draw(NAMES)
        offset = 4 * self.draw(st.integers(0, 99)) if key else 0
        share = self.draw(NAMES) if kind is BufferKind.STATE else ""
        if kind is BufferKind.STATE and any(
            b.kind is kind and b.name == name for b in self.buffers
        ):
            name += str(len(self.buffers))  # no two states have one name
        self.buffers.append(Buffer(kind, size, name, key, share, offset))
        return len(self.buffers) - 1

    def shape(self, owner: int) -> list[int]:
        """Sizes as expressions; for an input (``owner`` >= 0) some are its own dimensions."""
        shape = []
        for dim in range(self.draw(st.integers(0, 3))):
            if owner >= 0 and self.draw(st.booleans()):
                lo = self.draw(st.integers(0, 4))
                hi = lo + self.draw(st.integers(0, 6))
                self.symints.append(
                    SymInt(self.draw(NAMES), SymSource.INPUT_DIM, owner, dim, lo, hi)
                )
                shape.append(self.table.sym(len(self.symints) - 1))
            else:
                shape.append(self.table.const(self.draw(st.integers(0, 5))))
        return shape

    def tensor(self, kind: BufferKind, owner: int) -> int:
        dtype = self.draw(st.sampled_from(list(DType)))
        shape = self.shape(owner)
        elements = 1
        for size in shape:
            elements *= bounds(self.table.exprs, self.symints)[size][1]
        size = max(4, -(-elements * dtype.storage_bytes // 4) * 4)
        unread = kind is BufferKind.INPUT and self.draw(st.integers(0, 4)) == 0
        buffer = NONE if unread else self.buffer(kind, size)
        zero = self.table.const(0)
        strides = self.table.contiguous(shape)
        self.tensors.append(Tensor(dtype, tuple(shape), strides, zero, buffer))
        if owner >= 0 and dtype in (DType.I32, DType.I64) and elements:
            self.symints.append(
                SymInt("e", SymSource.TENSOR_ELEMENT, owner, self.below(elements), 0, 1 << 20)
            )
        return len(self.tensors) - 1

    def input(self) -> None:
        position, name = len(self.inputs), self.draw(NAMES)
        kind = self.draw(st.sampled_from(["tensor", "int", "unused"]))
        if kind == "tensor":
            tensor = self.tensor(BufferKind.INPUT, position)
            self.inputs.append(Input(name, ValueKind.TENSOR, tensor))
        elif kind == "unused":
            self.inputs.append(Input(name, ValueKind.INT, NONE))
        else:
            lo = self.draw(st.integers(0, 100))
            self.symints.append(
                SymInt(self.draw(NAMES), SymSource.INT_ARG, position, 0, lo, lo + 9)
            )
            self.inputs.append(Input(name, ValueKind.INT, len(self.symints) - 1))

    def output(self) -> None:
        name = self.draw(NAMES)
        if self.table.exprs and self.draw(st.booleans()):
            index = self.below(len(self.table.exprs))
            self.outputs.append(Output(name, ValueKind.INT, index))
        else:
            tensor = self.tensor(BufferKind.OUTPUT, -1)
            self.outputs.append(Output(name, ValueKind.TENSOR, tensor))

    def checks(self) -> list[Check]:
        found = []
        for _ in range(self.draw(st.integers(0, 2))):
            count = len(self.table.exprs)
            args = self.draw(st.lists(st.integers(0, count - 1), max_size=3))
            text = " ".join(["value", *[f"{{{i}}}" for i in range(len(args))]])
            found.append(Check(self.below(count), text, tuple(args)))
        return found

    def steps(self, grid_exprs: list[int]) -> list[Step]:
        """Steps that write every output; scratch is written before it is read."""
        of_kind = [b.kind for b in self.buffers]
        readable = {
            i for i, k in enumerate(of_kind) if k not in (BufferKind.SCRATCH, BufferKind.OUTPUT)
        }
        targets = [i for i, k in enumerate(of_kind) if k in (BufferKind.OUTPUT, BufferKind.STATE)]
        scratch = [i for i, k in enumerate(of_kind) if k is BufferKind.SCRATCH]
        steps = []
        for target in targets:
            routes = []
            for last in [False] * self.below(3) + [True]:
                sources = set(readable)
                dispatches = []
                if scratch and self.draw(st.booleans()):
                    chosen = self.draw(st.sampled_from(scratch))
                    dispatches.append(self.dispatch(chosen, sources, grid_exprs))
                    sources.add(chosen)
                dispatches.append(self.dispatch(target, sources, grid_exprs))
                guard = NONE if last else self.below(len(self.table.exprs) + 1) - 1
                routes.append(Route(self.draw(NAMES), tuple(dispatches), guard))
            steps.append(Step(tuple(routes)))
            readable.add(target)
        return steps

    def dispatch(self, target: int, sources: set[int], grid_exprs: list[int]) -> Dispatch:
        draw = self.draw
        reads = (
            sorted(draw(st.sets(st.sampled_from(sorted(sources)), max_size=3))) if sources else []
        )
        reads = [index for index in reads if index != target]
        order = draw(st.permutations([*reads, target]))
        accesses = tuple(Access.READ_WRITE if i == target else Access.READ for i in order)
        params = [Param("Q", ParamKind.F32, draw(st.floats(width=32, allow_nan=False,
                                                           allow_infinity=False)))]  # fmt: skip
        if self.live_count:
            params.append(Param("P", ParamKind.LIVE, float(self.below(self.live_count))))
        size = (draw(st.integers(1, 32)), draw(st.integers(1, 4)), draw(st.integers(1, 2)))
        shader = self.below(self.shader_count)
        self.kernels.append(
            Kernel(shader, "k", tuple(params), accesses, size, draw(st.integers(0, 4096)))
        )
        grid = st.sampled_from(grid_exprs)
        return Dispatch(
            len(self.kernels) - 1,
            tuple(self.binding(i) for i in order),
            (draw(grid), draw(grid), draw(grid)),
            draw(NAMES.filter(bool)),
            draw(NAMES),
            draw(NAMES),
            draw(st.integers(-1, 1 << 40)),
            draw(st.sampled_from([-1, *grid_exprs])),
            draw(st.sampled_from([-1, *grid_exprs])),
            tuple(draw(st.lists(st.integers(-1, 1 << 40), max_size=3))),
        )

    def binding(self, index: int) -> Binding:
        size = self.buffers[index].size
        offset = 256 * self.draw(st.integers(0, (size - 4) // 256))
        return Binding(index, offset, 4 * self.draw(st.integers(1, (size - offset) // 4)))
