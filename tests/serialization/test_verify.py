"""Every invariant of the tables of data, broken once: the verifier refuses it and names the place.

Shaders, kernels and steps: test_verify_steps.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from program_examples import llama_like
from verify_edits import (
    BASE,
    CONST,
    EIGHT,
    LAST,
    ONE,
    ZERO,
    S,
    edit,
    entry,
    program,
    with_expr,
)

from executorch_wgpu.serialization import (
    FORMAT_VERSION,
    LIVE_SLOTS,
    NONE,
    Buffer,
    BufferKind,
    Check,
    DType,
    Expr,
    ExprOp,
    Feedback,
    Input,
    InvalidProgramError,
    Output,
    Program,
    SymInt,
    SymSource,
    Tensor,
    ValueKind,
    verify,
)

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
        r"buffers\[6\] 'layers.0.k_cache': buffers\[4\] is a STATE of that name already",
    ),
    "two states of one name that share nothing": (
        program(buffers=(*BASE.buffers, BASE.buffers[4])),
        r"buffers\[6\] 'layers.0.k_cache': buffers\[4\] is a STATE of that name already",
    ),
    "two states of one name in two groups": (
        program(buffers=(*edit(BASE.buffers, 4, share="kv"),
                         replace(BASE.buffers[4], share="other"))),
        r"buffers\[6\] 'layers.0.k_cache': buffers\[4\] is a STATE of that name already",
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


@pytest.mark.parametrize("index", [True, 1.0, "1", None, np.int64(1)])
def test_only_an_int_is_an_index(index: Any) -> None:
    with pytest.raises(InvalidProgramError, match="into exprs"):
        verify(program(checks=(Check(index, "m"),)))
