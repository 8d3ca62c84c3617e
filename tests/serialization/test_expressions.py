"""Evaluation against Python itself, ranges that hold what is evaluated, and text that means it."""

from __future__ import annotations

import ast
import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_examples import ExprTable, expr_tables

from executorch_wgpu.serialization import (
    EvaluationError,
    Evaluator,
    Expr,
    ExprOp,
    InvalidProgramError,
    SymInt,
    SymSource,
    bounds,
    evaluate,
    evaluate_subset,
    format_expr,
)
from executorch_wgpu.serialization.ranges import known_maxima

SYMS = [
    SymInt("S", SymSource.INT_ARG, 0, 0, 1, 16),
    SymInt("input_pos", SymSource.INT_ARG, 1, 0, -7, 90),
    SymInt("k", SymSource.INT_ARG, 2, 0, 0, 3),
]
VALUES = st.tuples(*[st.integers(s.lo, s.hi) for s in SYMS])


def oracle(exprs: list[Expr], index: int, syms: tuple[int, ...]) -> int:
    """What the documentation of ExprOp says, recursively. Raises ZeroDivisionError."""
    expr = exprs[index]
    if expr.op is ExprOp.CONST:
        return expr.a
    if expr.op is ExprOp.SYM:
        return syms[expr.a]
    a, b = oracle(exprs, expr.a, syms), oracle(exprs, expr.b, syms)
    return {
        ExprOp.ADD: lambda: a + b,
        ExprOp.SUB: lambda: a - b,
        ExprOp.MUL: lambda: a * b,
        ExprOp.FLOORDIV: lambda: a // b,
        ExprOp.MOD: lambda: a % b,
        ExprOp.MIN: lambda: min(a, b),
        ExprOp.MAX: lambda: max(a, b),
        ExprOp.CEILDIV: lambda: a // b + (a % b != 0),
        ExprOp.EQ: lambda: int(a == b),
        ExprOp.NE: lambda: int(a != b),
        ExprOp.LT: lambda: int(a < b),
        ExprOp.LE: lambda: int(a <= b),
        ExprOp.AND: lambda: int(a != 0 and b != 0),
        ExprOp.OR: lambda: int(a != 0 or b != 0),
    }[expr.op]()


@settings(max_examples=400, deadline=None)
@given(expr_tables(SYMS), VALUES, st.data())
def test_evaluation(table: ExprTable, syms: tuple[int, ...], data: st.DataObject) -> None:
    exprs = table.exprs
    for index in range(len(exprs)):
        evaluator = Evaluator(exprs, [index])
        try:
            expected = oracle(exprs, index, syms)
        except ZeroDivisionError:
            with pytest.raises(EvaluationError, match="divides by zero"):
                evaluator(syms)
        else:
            assert evaluator(syms) == [expected]
            lo, hi = bounds(exprs, SYMS)[index]
            assert lo <= expected <= hi
    try:
        everything = evaluate(exprs, syms)
    except EvaluationError:
        return
    assert everything == [oracle(exprs, i, syms) for i in range(len(exprs))]
    if exprs:
        wanted = data.draw(st.lists(st.integers(0, len(exprs) - 1)))
        assert evaluate_subset(exprs, wanted, syms) == [everything[i] for i in wanted]


class _LogicGivesOneOrZero(ast.NodeTransformer):
    """Python's ``and`` gives an operand; ours gives 0 or 1."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return ast.parse(f"int(bool({ast.unparse(node)}))", mode="eval").body


def python_value(text: str, syms: tuple[int, ...]) -> int:
    """What Python makes of the text. (Tests may use eval, players may not.)"""
    names: dict[str, object] = {s.name: value for s, value in zip(SYMS, syms, strict=True)}
    names |= {"ceil_div": lambda a, b: -(-a // b)}
    tree = ast.fix_missing_locations(_LogicGivesOneOrZero().visit(ast.parse(text, mode="eval")))
    return int(eval(compile(tree, text, "eval"), names))


@settings(max_examples=200, deadline=None)
@given(expr_tables(SYMS), VALUES)
def test_text_means_the_expression(table: ExprTable, syms: tuple[int, ...]) -> None:
    exprs = table.exprs
    for index in range(len(exprs)):
        text = format_expr(exprs, index, SYMS)
        try:
            expected = oracle(exprs, index, syms)
        except ZeroDivisionError:
            continue
        if "exprs[" not in text:
            assert python_value(text, syms) == expected, text


def table_of(build: object) -> tuple[list[Expr], int]:
    t = ExprTable()
    index = build(t)  # type: ignore[operator]
    return t.exprs, index


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda t: t.add(
                ExprOp.FLOORDIV,
                t.add(ExprOp.ADD, t.add(ExprOp.ADD, t.sym(0), t.sym(1)), t.const(63)),
                t.const(64),
            ),
            "(S + input_pos + 63) // 64",
        ),
        (lambda t: t.add(ExprOp.ADD, t.sym(0), t.const(-3)), "S - 3"),
        (lambda t: t.add(ExprOp.SUB, t.sym(0), t.const(-3)), "S - (-3)"),
        (lambda t: t.add(ExprOp.MUL, t.const(-3), t.sym(0)), "(-3) * S"),
        (
            lambda t: t.add(ExprOp.SUB, t.sym(0), t.add(ExprOp.SUB, t.sym(1), t.sym(2))),
            "S - (input_pos - k)",
        ),
        (
            lambda t: t.add(ExprOp.ADD, t.sym(0), t.add(ExprOp.SUB, t.sym(1), t.sym(2))),
            "S + input_pos - k",
        ),
        (
            lambda t: t.add(ExprOp.MUL, t.sym(0), t.add(ExprOp.FLOORDIV, t.sym(1), t.sym(2))),
            "S * (input_pos // k)",
        ),
        (
            lambda t: t.add(
                ExprOp.AND,
                t.add(ExprOp.LE, t.sym(0), t.add(ExprOp.CEILDIV, t.sym(1), t.const(4))),
                t.add(ExprOp.OR, t.sym(2), t.add(ExprOp.MAX, t.sym(0), t.sym(1))),
            ),
            "S <= ceil_div(input_pos, 4) and (k or max(S, input_pos))",
        ),
        (
            lambda t: t.add(ExprOp.EQ, t.add(ExprOp.LT, t.sym(0), t.sym(1)), t.const(0)),
            "(S < input_pos) == 0",
        ),
    ],
)
def test_text(build: object, text: str) -> None:
    exprs, index = table_of(build)
    assert format_expr(exprs, index, SYMS) == text


def test_text_of_shared_parts_stays_short() -> None:
    """x + x of x + x of ...: sixty entries whose text would have 2 ** 60 parts."""
    exprs = [Expr(ExprOp.SYM, 2)] + [Expr(ExprOp.MAX, i, i) for i in range(60)]
    text = format_expr(exprs, 60, SYMS)
    assert "exprs[" in text
    assert len(text) < 1000


def test_division_by_zero_is_named() -> None:
    exprs = [Expr(ExprOp.SYM, 0), Expr(ExprOp.SYM, 2), Expr(ExprOp.FLOORDIV, 0, 1)]
    with pytest.raises(EvaluationError, match=r"expression 2 divides by zero .*\[8, 1, 0\]"):
        evaluate(exprs, [8, 1, 0])
    assert isinstance(EvaluationError(), ValueError)


def test_both_sides_of_logic_are_evaluated() -> None:
    exprs = [
        Expr(ExprOp.CONST, 0),
        Expr(ExprOp.SYM, 2),
        Expr(ExprOp.MOD, 0, 1),
        Expr(ExprOp.AND, 0, 2),
    ]
    with pytest.raises(EvaluationError):
        evaluate(exprs, [1, 1, 0])


def test_only_the_needed_are_evaluated() -> None:
    exprs = [Expr(ExprOp.SYM, 2), Expr(ExprOp.MOD, 0, 0), Expr(ExprOp.ADD, 0, 0)]
    assert evaluate_subset(exprs, [2, 2, 0], [1, 1, 0]) == [0, 0, 0]


def test_sixteen_expressions_take_microseconds() -> None:
    ops = [ExprOp.ADD, ExprOp.MUL, ExprOp.CEILDIV, ExprOp.MIN]
    exprs = [Expr(ExprOp.SYM, 0), Expr(ExprOp.SYM, 1), Expr(ExprOp.CONST, 64)]
    exprs += [Expr(ops[i % 4], i % 3, 2) for i in range(16)]
    evaluator = Evaluator(exprs, range(3, 19))
    best = min(timeit.repeat(lambda: evaluator((5, 7)), number=2000, repeat=5)) / 2000
    assert best < 40e-6  # usual: 2.5 us


def test_bounds_reject_what_leaves_64_bits() -> None:
    """Squares of squares: without the check, evaluating 64 entries would never end."""
    exprs = [Expr(ExprOp.SYM, 1)] + [Expr(ExprOp.MUL, i, i) for i in range(64)]
    with pytest.raises(InvalidProgramError, match=r"exprs\[4\] \(MUL\) can reach .* 64 bits"):
        bounds(exprs, SYMS)


def test_bounds_reject_a_certain_division_by_zero() -> None:
    exprs = [Expr(ExprOp.CONST, 0), Expr(ExprOp.MOD, 0, 0)]
    with pytest.raises(InvalidProgramError, match=r"exprs\[1\] \(MOD\) always divides by zero"):
        bounds(exprs, SYMS)


def test_checks_bound_other_expressions() -> None:
    t = ExprTable()
    total = t.add(ExprOp.ADD, t.sym(0), t.sym(1))
    fits = t.add(ExprOp.LE, total, t.const(64))
    below = t.add(ExprOp.LT, t.sym(1), t.const(50))
    both = t.add(ExprOp.AND, fits, below)
    bytes_ = t.add(ExprOp.MUL, total, t.const(4))
    plain = bounds(t.exprs, SYMS)
    assert plain[bytes_] == (-24, 4 * 106)
    maxima = known_maxima(t.exprs, [both], plain)
    assert dict(maxima) == {total: 64, t.sym(1): 49}
    ranges = bounds(t.exprs, SYMS, maxima)
    assert ranges[total] == (-6, 64)
    assert ranges[bytes_] == (-24, 256)
