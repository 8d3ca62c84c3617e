"""Every invariant, broken once: the verifier refuses it and names the place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from program_examples import WGSL, example, llama_like

from executorch_wgpu.serialization import (
    FORMAT_VERSION,
    LIVE_SLOTS,
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
    Output,
    Program,
    Route,
    Step,
    SymInt,
    SymSource,
    Tensor,
    ValueKind,
    device_needs,
    make_shader,
    verify,
)

BASE = example()


def having(expr: Expr) -> tuple[tuple[Expr, ...], int]:
    """The example's expressions with ``expr`` among them, and its index."""
    if expr in BASE.exprs:
        return BASE.exprs, BASE.exprs.index(expr)
    return (*BASE.exprs, expr), len(BASE.exprs)


def edit(items: Sequence[Any], index: int, /, **changes: Any) -> tuple[Any, ...]:
    """``items`` with fields of one entry replaced."""
    return (*items[:index], replace(items[index], **changes), *items[index + 1 :])


def program(**changes: Any) -> Program:
    return replace(BASE, **changes)


def entry(table: str, index: int, /, **changes: Any) -> Program:
    """The example with one entry of one table changed."""
    return program(**{table: edit(getattr(BASE, table), index, **changes)})


def route(step: int, index: int, /, **changes: Any) -> Program:
    routes = edit(BASE.steps[step].routes, index, **changes)
    return entry("steps", step, routes=routes)


def dispatch(step: int = 0, index: int = 0, number: int = 0, **changes: Any) -> Program:
    dispatches = edit(BASE.steps[step].routes[index].dispatches, number, **changes)
    return route(step, index, dispatches=dispatches)


def binding(number: int, step: int = 0, **changes: Any) -> Program:
    """Binding ``number`` of the first dispatch of ``step`` changed."""
    bindings = BASE.steps[step].routes[0].dispatches[0].bindings
    return dispatch(step, bindings=edit(bindings, number, **changes))


def param(index: int, **changes: Any) -> Program:
    return entry("kernels", 0, params=edit(BASE.kernels[0].params, index, **changes))


def shader(wgsl: str, extensions: Sequence[str] = ()) -> Program:
    return program(shaders=(make_shader(wgsl, extensions), BASE.shaders[1]))


def with_expr(expr: Expr, build: Callable[[int], dict[str, Any]]) -> Program:
    exprs, index = having(expr)
    return program(exprs=exprs, **build(index))


CONST = ExprOp.CONST
S, POS = (BASE.exprs.index(Expr(ExprOp.SYM, i)) for i in (0, 1))
ZERO, ONE, EIGHT = (BASE.exprs.index(Expr(CONST, i)) for i in (0, 1, 8))
LAST = len(BASE.exprs)

BROKEN: dict[str, tuple[Program, str]] = {
    "newer format": (program(format_version=FORMAT_VERSION + 1), "format_version: 2"),
    "producer": (program(producer="a\nb"), "producer: .* cannot be printed"),
    # Expressions
    "operand not earlier": (
        program(exprs=(*BASE.exprs, Expr(ExprOp.ADD, 0, LAST))),
        rf"exprs\[{LAST}\]: ADD of 0 and {LAST}, which must be earlier",
    ),
    "operand negative": (program(exprs=(*BASE.exprs, Expr(ExprOp.ADD, -1, 0))), "ADD of -1 and 0"),
    "constant beyond 64 bits": (program(exprs=(*BASE.exprs, Expr(CONST, 1 << 63))), "outside of"),
    "operand where none is": (program(exprs=(*BASE.exprs, Expr(CONST, 77, 1))), "no operand b"),
    "unknown live scalar": (
        program(exprs=(*BASE.exprs, Expr(ExprOp.SYM, 3))),
        "index 3 into symints, which has 3",
    ),
    "op not an enum": (program(exprs=(*BASE.exprs, Expr(2, 0, 0))), "an ExprOp and two ints"),  # type: ignore[arg-type]
    "expression twice": (program(exprs=(*BASE.exprs, BASE.exprs[5])), "there already"),
    "expression overflows": (
        program(exprs=(*BASE.exprs, Expr(CONST, 1 << 62), Expr(ExprOp.MUL, S, LAST))),
        "more than 64 bits",
    ),
    "certain division by zero": (
        program(exprs=(*BASE.exprs, Expr(ExprOp.MOD, S, ZERO))),
        "always divides by zero",
    ),
    # Live scalars
    "empty range": (entry("symints", 0, lo=17), "range 17..16 is empty"),
    "beyond int32": (entry("symints", 1, hi=1 << 31), "hi: 2147483648 is outside"),
    "no such input": (entry("symints", 1, input=4), "index 4 into inputs, which has 4"),
    "source of another kind": (
        entry("symints", 1, source=SymSource.INPUT_DIM, input=2),
        r"symints\[1\] 'pos': is a INPUT_DIM of inputs\[2\], a INT",
    ),
    "int of a tensor": (entry("symints", 2, input=0), r"inputs\[2\] 'n': symints\[2\] 'n' is not"),
    "int with an index": (entry("symints", 2, index=1), r"symints\[2\], index 1"),
    "int that the input does not name": (
        program(symints=(*BASE.symints, SymInt("m", SymSource.INT_ARG, 3, 0, 0, 1))),
        r"symints\[3\] 'm': inputs\[3\] names symints\[-1\]",
    ),
    "no such dimension": (entry("symints", 0, index=2), "dimension: 2 is outside of 0..1"),
    "negative size": (entry("symints", 0, lo=-1), "may not be -1|can reach \\[-1, 16\\]"),
    "no such element": (entry("symints", 1, index=1), "element 1 of a tensor of at most 1"),
    "no such element from the end": (entry("symints", 1, index=-2), "element -2"),
    "element of floats": (entry("tensors", 1, dtype=DType.F32), "tensor of F32, not of integers"),
    "source twice": (
        program(symints=(*BASE.symints, replace(BASE.symints[0], name="again"))),
        r"symints\[3\] 'again': has the same source as symints\[0\]",
    ),
    # Checks
    "check of nothing": (entry("checks", 0, expr=99), r"checks\[0\].expr: index 99"),
    "check without words": (entry("checks", 0, message=""), "message: is empty"),
    "placeholder out of range": (entry("checks", 0, message="a {2}"), r"\{2\} but there are 2"),
    "attribute in a placeholder": (entry("checks", 0, message="{0.real}"), "hold no number"),
    "open brace": (entry("checks", 0, message="{"), "hold no number"),
    "argument out of range": (entry("checks", 0, args=(0, -1)), "args: index -1"),
    # Live block
    "live out of range": (program(live=(LAST,)), rf"live\[0\]: index {LAST} into exprs"),
    "live too long": (program(live=(0,) * (LIVE_SLOTS + 1)), "257 elements, at most 256"),
    "live beyond 32 bits": (
        with_expr(Expr(CONST, 1 << 32), lambda i: {"live": (*BASE.live, i)}),
        r"live\[3\]: expression \d+ can reach \[4294967296, 4294967296\]",
    ),
    # Buffers
    "size not of words": (entry("buffers", 5, size=2046), "2046 bytes is no multiple of 4"),
    "size zero": (entry("buffers", 5, size=0), "size: 0 is outside of 4.."),
    "size absurd": (entry("buffers", 5, size=1 << 40), "size: 1099511627776 is outside"),
    "size not an int": (entry("buffers", 5, size=4.0), "4.0 is float, not int"),
    "constant without data": (entry("buffers", 3, data_key=""), "CONSTANT without a data_key"),
    "scratch with data": (entry("buffers", 5, data_key="k"), "kind SCRATCH has no data_key"),
    "state without a name": (entry("buffers", 4, name=""), "STATE is found by its name"),
    "kind not an enum": (entry("buffers", 4, kind=3), "3 is not a BufferKind"),
    "unprintable name": (entry("buffers", 4, name="a\x1b[2J"), "cannot be printed"),
    "buffer beyond the limit": (
        entry("buffers", 5, size=(256 << 20) + 4),
        "'layers.0/mul_a': binding 1: needs max-buffer-size of 268435460, .* only 268435456",
    ),
    "state beyond the limit": (
        entry("buffers", 4, size=(256 << 20) + 4),
        r"buffers\[4\] 'layers.0.k_cache': needs max-buffer-size of 268435460",
    ),
    "data offset not of words": (entry("buffers", 3, data_offset=6), "data_offset of 6 bytes"),
    "data offset negative": (entry("buffers", 3, data_offset=-4), "data_offset: -4 is outside"),
    "data offset of nothing": (entry("buffers", 4, data_offset=8), "of 8 and no data_key"),
    "constant shared": (entry("buffers", 3, share="kv"), "kind CONSTANT cannot be shared"),
    "state twice in its group": (
        program(buffers=(*edit(BASE.buffers, 4, share="kv"),
                         replace(BASE.buffers[4], share="kv"))),
        r"buffers\[6\] 'layers.0.k_cache': the group 'kv' has a STATE of that name already",
    ),
    # Tensors
    "strides missing": (entry("tensors", 0, strides=(ONE,)), "2 sizes but 1 strides"),
    "no such size": (entry("tensors", 3, shape=(LAST, EIGHT)), "into exprs"),
    "no such buffer": (entry("tensors", 3, buffer=6), "index 6 into buffers, which has 6"),
    "no buffer": (entry("tensors", 3, buffer=NONE), "has no buffer and is no input"),
    "does not fit": (
        entry("buffers", 4, size=1020),
        r"tensors\[3\]: reaches byte 1024 of buffer 4 'layers.0.k_cache', which has 1020",
    ),
    "does not fit with its offset": (
        entry("tensors", 3, offset=EIGHT),
        r"tensors\[3\]: reaches byte 1056 of buffer 4",
    ),
    "negative stride": (
        with_expr(
            Expr(CONST, -8), lambda i: {"tensors": edit(BASE.tensors, 3, strides=(i, ONE))}
        ),
        "shape, strides or offset: expression .* outside of 0",
    ),
    # Inputs and outputs
    "input of no tensor": (entry("inputs", 0, index=5), "index 5 into tensors"),
    "input in another kind": (
        entry("buffers", 0, kind=BufferKind.SCRATCH),
        "lies in buffer 0, which is of kind SCRATCH",
    ),
    "inputs share": (
        program(inputs=(*BASE.inputs, Input("z", ValueKind.TENSOR, 0))),
        r"inputs\[4\] 'z': shares buffer 0 with inputs\[0\]",
    ),
    "nobody fills": (
        program(buffers=(*BASE.buffers, Buffer(BufferKind.INPUT, 4, "lost"))),
        r"buffers\[6\] 'lost': is of kind INPUT and no input fills it",
    ),
    "input not contiguous": (
        entry("tensors", 0, strides=(ONE, S)),
        r"not contiguous: at shape \[1, 8\] its strides are \[1, 1\]|not contiguous: at shape",
    ),
    "input contiguous at the upper bound only": (
        with_expr(
            Expr(CONST, 16),
            lambda i: {
                "tensors": edit(BASE.tensors, 0, shape=(EIGHT, S), strides=(i, ONE)),
                "symints": edit(BASE.symints, 0, index=1),
            },
        ),
        r"inputs\[0\] 'x': tensors\[0\] is not contiguous: at shape \[8, 1\]",
    ),
    "output with an offset": (
        with_expr(
            Expr(CONST, 256),
            lambda i: {
                "tensors": edit(BASE.tensors, 2, offset=i),
                "buffers": edit(BASE.buffers, 2, size=4096),
            },
        ),
        r"outputs\[0\] 'y': tensors\[2\] starts at element 256",
    ),
    "output in another kind": (entry("outputs", 0, index=3), "buffer 4, which is of kind STATE"),
    "output of an input without a buffer": (
        program(
            tensors=edit(BASE.tensors, 1, buffer=NONE),
            buffers=edit(BASE.buffers, 1, kind=BufferKind.SCRATCH),
            outputs=(Output("p", ValueKind.TENSOR, 1),),
        ),
        "which is of kind none",
    ),
    "outputs share": (
        program(outputs=(*BASE.outputs, Output("z", ValueKind.TENSOR, 2))),
        r"outputs\[2\] 'z': shares buffer 2 with outputs\[0\]",
    ),
    "output int of nothing": (entry("outputs", 1, index=LAST), "into exprs"),
    "output never written": (
        program(steps=BASE.steps[:1]),
        r"outputs\[0\] 'y': nothing writes its buffer 2",
    ),
    # Shaders
    "empty shader": (shader("  \n"), "has no WGSL"),
    "directive": (shader("/* /* a */ b */ // c\n enable f16;\n" + WGSL), "directive 'enable'"),
    "digest": (entry("shaders", 0, wgsl=BASE.shaders[0].wgsl + " "), "but its text gives"),
    "extension unknown": (shader(WGSL, ["subgroup_matrix"]), "'subgroup_matrix' is unknown"),
    "extension twice": (
        entry("shaders", 1, extensions=("subgroups", "subgroups")),
        "'subgroups' stands twice",
    ),
    # Kernels
    "no such shader": (entry("kernels", 0, shader=2), "index 2 into shaders, which has 2"),
    "entry point missing": (entry("kernels", 0, entry_point="other"), "no function of that name"),
    "entry point no name": (entry("kernels", 0, entry_point="a b"), "no function of that name"),
    "param no name": (param(0, name="1a"), "not a WGSL identifier"),
    "param reserved": (param(0, name="__a"), "not a WGSL identifier"),
    "param undeclared": (param(0, name="OTHER"), "declares no override 'OTHER'"),
    "param twice": (param(0, name="SHIFT"), "'SHIFT' stands twice"),
    "param not finite": (param(2, value=float("inf")), "not a finite number"),
    "param beyond f32": (param(2, value=1e39), "does not fit an f32"),
    "param negative u32": (param(0, value=-1.0), "of kind U32 is not in 0..4294967295"),
    "param no integer": (param(3, value=1.5), "of kind I32 is not in"),
    "param bool 2": (param(4, value=2.0), "of kind BOOL is not in 0..1"),
    "param slot": (param(1, value=3.0), "of kind LIVE is not in 0..2"),
    "param slot of none": (
        program(live=(), kernels=BASE.kernels),
        "a slot of the live block, which has 0",
    ),
    "workgroup of none": (entry("kernels", 0, workgroup_size=(0, 1, 1)), "0 is outside of 1..1024"),
    "workgroup too large": (
        entry("kernels", 0, workgroup_size=(64, 64, 1)),
        r"\(64, 64, 1\) has 4096 invocations",
    ),
    "workgroup of two": (entry("kernels", 0, workgroup_size=(64, 1)), "not three members"),
    "workgroup beyond the limit": (
        entry("kernels", 0, workgroup_size=(512, 1, 1)),
        "'layers.0/update_cache': needs max-compute-workgroup-size-x of 512, .* only 256",
    ),
    "workgroup memory beyond the limit": (
        entry("kernels", 0, workgroup_bytes=20000),
        "needs max-compute-workgroup-storage-size of 20000",
    ),
    "too many bindings": (
        program(
            kernels=edit(BASE.kernels, 0, accesses=(Access.READ,) * 8 + (Access.READ_WRITE,)),
        ),
        "needs max-storage-buffers-per-shader-stage of 9, .* only 8",
    ),
    # Steps and routes
    "no routes": (entry("steps", 0, routes=()), r"steps\[0\]: has no routes"),
    "last route guarded": (route(1, 2, guard=ONE), "the last route has a guard or requirements"),
    "last route wants a feature": (route(1, 2, features=("subgroups",)), "the last route has"),
    "last route wants a limit": (
        route(1, 2, limits=(("max-buffer-size", 1 << 30),)),
        "the last route has",
    ),
    "guard of nothing": (route(1, 0, guard=LAST), r"routes\[0\] 'subgroups'.guard: index"),
    "feature unknown": (route(1, 0, features=("subgroup",)), "'subgroup' is unknown"),
    "feature missing": (
        route(1, 0, features=()),
        "its shader uses 'subgroups', but neither the route nor the program requires",
    ),
    "limit unknown": (route(1, 1, limits=(("max-fun", 3),)), "'max-fun' is no limit"),
    "limit of alignment": (
        route(1, 1, limits=(("min-storage-buffer-offset-alignment", 512),)),
        "is no limit that a program can raise",
    ),
    "limit within the default": (
        program(limits=(("max-buffer-size", 1 << 20),)),
        "1048576 is within WebGPU's default of 268435456",
    ),
    "limit twice": (
        program(limits=(("max-buffer-size", 1 << 30), ("max-buffer-size", 1 << 31))),
        "'max-buffer-size' stands twice",
    ),
    "feature twice": (program(features=("subgroups",) * 2), "'subgroups' stands twice"),
    "routes write different buffers": (
        dispatch(
            1, 1, bindings=(Binding(3, 0, 512), Binding(4, 0, 512))
        ),
        r"routes\[1\] 'big': writes buffers \[4\], but routes\[0\] writes \[2\]",
    ),
    # Dispatches
    "no such kernel": (dispatch(kernel=2), "kernel: index 2 into kernels, which has 2"),
    "no label": (dispatch(label=""), "is empty"),
    "label of lines": (dispatch(label="a\nb"), "cannot be printed"),
    "label too long": (dispatch(label="a" * 1025), "1025 characters"),
    "grid of nothing": (dispatch(grid=(LAST, ONE, ONE)), "grid: index"),
    "bytes of nothing": (dispatch(bytes=LAST), "bytes: index"),
    "flops of nothing": (dispatch(flops=-2), "flops: index"),
    "a handle of text": (dispatch(debug_handles=(1, "2")), "debug_handles: '2' is str, not int"),
    "handles without end": (dispatch(debug_handles=(0,) * 1025), "1025 elements"),
    "grid of two": (dispatch(grid=(ONE, ONE)), "not three members"),
    "grid negative": (
        with_expr(
            Expr(ExprOp.SUB, POS, EIGHT),
            lambda i: {"steps": dispatch(grid=(i, ONE, ONE)).steps},
        ),
        r"grid: expression \d+ can reach \[-8, 23\], outside of 0",
    ),
    "binding missing": (
        dispatch(bindings=(Binding(0, 0, 512),)),
        "1 bindings, but kernel 0 'main' has 2",
    ),
    "binding of nothing": (binding(0, buffer=6), "binding 0: index 6 into buffers"),
    "binding too long": (
        binding(1, size=1028),
        r"steps\[0\].routes\[0\].dispatches\[0\] 'layers.0/update_cache': binding 1 reaches byte "
        r"1028 of buffer 4 'layers.0.k_cache', which has 1024",
    ),
    "binding not aligned": (binding(0, offset=128, size=256), "128, to be a multiple of 256"),
    "binding of half words": (binding(0, size=510), "size 510, to be one of 4"),
    "binding of nothing at all": (binding(0, size=0), "size 0"),
    "binding negative": (binding(0, offset=-256), "offset -256"),
    "binding beyond the limit": (
        program(
            buffers=edit(BASE.buffers, 3, size=256 << 20),
            steps=dispatch(1, 2, 0, bindings=(Binding(3, 0, 256 << 20), Binding(5, 0, 512))).steps,
        ),
        "binding 0: needs max-storage-buffer-binding-size of 268435456, .* only 134217728",
    ),
    "writes a constant": (
        binding(1, buffer=3),
        "binding 1 writes buffer 3 'layers.0.weight' of kind CONSTANT",
    ),
    "writes an input": (
        dispatch(bindings=(Binding(3, 0, 512), Binding(0, 0, 512))),
        "binding 1 writes buffer 0 'x' of kind INPUT",
    ),
    "reads what it writes": (binding(0, buffer=4), "buffer 4 'layers.0.k_cache' is bound READ_WR"),
    "writes twice": (
        program(kernels=edit(BASE.kernels, 0, accesses=(Access.READ_WRITE,) * 2),
                steps=binding(0, buffer=4, offset=512, size=256).steps),
        "binding 1: buffer 4 .* is bound READ_WRITE and once more",
    ),
    "reads scratch before it is written": (
        binding(0, buffer=5),
        "reads buffer 5 'scratch 0' of kind SCRATCH, which nothing has written",
    ),
    "reads an output before it is written": (
        binding(0, buffer=2),
        "reads buffer 2 'y' of kind OUTPUT, which nothing has written",
    ),
    "reads scratch that one route only wrote": (
        program(
            steps=(
                *BASE.steps,
                Step((Route("", (replace(
                    BASE.steps[0].routes[0].dispatches[0],
                    bindings=(Binding(5, 1024, 512), Binding(4, 0, 512)),
                ),)),)),
            )
        ),
        r"steps\[2\].*reads buffer 5 'scratch 0' of kind SCRATCH",
    ),
    # Feedback
    "feedback of nothing": (program(feedback=(Feedback(2, 0),)), r"feedback\[0\].output: index 2"),
    "feedback to nothing": (program(feedback=(Feedback(0, 4),)), r"feedback\[0\].input: index 4"),
    "feedback of an int": (
        program(feedback=(Feedback(1, 0),)),
        r"feedback\[0\] of output 'next' to input 'x': INT to TENSOR",
    ),
    "feedback to an int": (program(feedback=(Feedback(0, 2),)), "TENSOR to INT"),
    "feedback twice": (
        program(feedback=(Feedback(0, 0), Feedback(0, 0))),
        r"feedback\[1\] of output 'y' to input 'x': another pair feeds that input",
    ),
    "feedback of another dtype": (
        program(feedback=(Feedback(0, 1),)),
        "F32 of 2 dimensions to I64 of 1",
    ),
    "feedback of another size": (
        program(
            tensors=edit(BASE.tensors, 2, shape=(S, ONE), strides=(ONE, ONE)),
            feedback=(Feedback(0, 0),),
        ),
        "dimension 1 is 1..1 there and 8..8 here",
    ),
    "feedback to what the GPU does not read": (
        program(
            buffers=edit(BASE.buffers, 0, kind=BufferKind.STATE),
            tensors=edit(BASE.tensors, 0, buffer=NONE),
            feedback=(Feedback(0, 0),),
        ),
        "the GPU does not read that input",
    ),
    "feedback into a live scalar": (
        program(
            tensors=(
                *BASE.tensors[:2],
                Tensor(DType.I64, (ONE,), (ONE,), ZERO, 2),
                *BASE.tensors[3:],
            ),
            feedback=(Feedback(0, 1),),
        ),
        r"feedback\[0\] of output 'y' to input 'pos': the live scalar 'pos' is an element",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    broken, match = BROKEN[name]
    with pytest.raises(InvalidProgramError, match=match):
        verify(broken)


def test_valid() -> None:
    verify(BASE)
    verify(program(feedback=(Feedback(0, 0),)))
    verify(entry("buffers", 3, data_offset=4096))
    verify(entry("buffers", 4, share="kv"))
    verify(llama_like(2))
    verify(Program(producer=""))


def test_only_the_check_makes_the_view_fit() -> None:
    """tensors[3] is pos + S rows: 47 of them but for the check, and the cache has 32."""
    with pytest.raises(InvalidProgramError, match=r"tensors\[3\]: reaches byte 1504"):
        verify(program(checks=()))


def test_what_intervals_cannot_prove_is_not_refused() -> None:
    """S - S % 8 + S % 8 is at most 16, though its interval reaches 23."""
    exprs = list(BASE.exprs)
    rest = len(exprs)
    exprs += [
        Expr(ExprOp.MOD, S, EIGHT),
        Expr(ExprOp.SUB, S, rest),
        Expr(ExprOp.ADD, rest + 1, rest),
    ]
    tensors = (*BASE.tensors, Tensor(DType.F32, (rest + 2, EIGHT), (EIGHT, ONE), ZERO, 2))
    verify(program(exprs=tuple(exprs), tensors=tensors))


def test_two_dispatches_in_one_route_may_share_scratch() -> None:
    first = BASE.steps[0].routes[0].dispatches[0]
    to_scratch = replace(first, bindings=(Binding(0, 0, 512), Binding(5, 0, 512)))
    from_scratch = replace(first, bindings=(Binding(5, 0, 512), Binding(4, 0, 512)))
    steps = (Step((Route("", (to_scratch, from_scratch)),)), BASE.steps[1])
    verify(program(steps=steps))


def test_empty_outputs_need_no_writer() -> None:
    tensors = edit(BASE.tensors, 2, shape=(ZERO, EIGHT))
    verify(program(tensors=tensors, steps=BASE.steps[:1], feedback=()))


def test_device_needs_cover_what_is_verified() -> None:
    big = program(
        buffers=(*BASE.buffers[:3], replace(BASE.buffers[3], size=1 << 30), *BASE.buffers[4:]),
        kernels=edit(BASE.kernels, 0, workgroup_size=(512, 1, 1), shader=1),
    )
    last: list[Dispatch] = [d for step in big.steps for d in step.routes[-1].dispatches]
    features, limits = device_needs(last, big.kernels, big.shaders, big.buffers)
    assert features == ("subgroups",)
    assert limits == (
        ("max-buffer-size", 1 << 30),
        ("max-compute-invocations-per-workgroup", 512),
        ("max-compute-workgroup-size-x", 512),
    )
    with pytest.raises(InvalidProgramError, match="max-compute-workgroup-size-x of 512"):
        verify(replace(big, features=features))
    verify(replace(big, features=features, limits=limits))


def test_a_large_buffer_of_one_route_is_that_routes_need() -> None:
    """A weight bound whole where the device allows it, in pieces behind that."""
    whole = Buffer(BufferKind.CONSTANT, 512 << 20, "w", "w")
    big = BASE.steps[1].routes[1]
    only = replace(big.dispatches[0], bindings=(Binding(6, 0, 512), Binding(2, 0, 512)))

    def program_with(limits: tuple[tuple[str, int], ...]) -> Program:
        routes = edit(BASE.steps[1].routes, 1, dispatches=(only,), limits=limits)
        return program(buffers=(*BASE.buffers, whole), steps=edit(BASE.steps, 1, routes=routes))

    _, limits = device_needs([only], BASE.kernels, BASE.shaders, [whole])
    assert limits == (("max-buffer-size", 512 << 20),)
    verify(program_with(limits))
    with pytest.raises(InvalidProgramError, match="binding 0: needs max-buffer-size"):
        verify(program_with(big.limits))


@pytest.mark.parametrize("index", [True, 1.0, "1", None, np.int64(1)])
def test_only_an_int_is_an_index(index: Any) -> None:
    with pytest.raises(InvalidProgramError, match="into exprs"):
        verify(program(checks=(Check(index, "m"),)))


def with_grid(build: Callable[[int], tuple[Route, ...]]) -> Program:
    """The example whose first step has routes built around a grid of S - 2, negative at S = 1."""
    exprs = (*BASE.exprs, Expr(CONST, 2), Expr(ExprOp.SUB, S, LAST))
    return program(exprs=exprs, steps=(Step(build(LAST + 1)), *BASE.steps[1:]))


def test_grids_count_only_where_their_route_runs() -> None:
    (plain,) = BASE.steps[0].routes
    decode = BASE.exprs.index(Expr(ExprOp.EQ, S, ONE))
    guarded = replace(plain, guard=decode)

    def late(grid: int) -> Route:
        return replace(plain, dispatches=edit(plain.dispatches, 0, grid=(grid, ONE, ONE)))

    verify(with_grid(lambda grid: (guarded, late(grid))))  # S = 1 goes the first way
    for routes in (
        lambda grid: (late(grid),),
        # A device without subgroups goes the second way at S = 1, too.
        lambda grid: (replace(guarded, features=("subgroups",)), late(grid)),
        lambda grid: (replace(late(grid), guard=decode), plain),
    ):
        with pytest.raises(InvalidProgramError, match=r"grid: expression \d+ can reach \[-1, 14\]"):
            verify(with_grid(routes))
