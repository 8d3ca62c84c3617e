"""Integer expressions over live scalars: evaluation, ranges, and text for people.

Nothing here runs text from a file: an expression is a row of numbers, and an evaluator is a list
of (function, operand, operand) prepared once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

from .dispatch_list import Expr, ExprOp, SymInt
from .errors import WgpuDelegateError


class EvaluationError(WgpuDelegateError, ValueError):
    """The live scalars of this call make an expression divide by zero."""


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


# min and max of two as a conditional: half the time of the builtins.
def _min(a: int, b: int) -> int:
    return a if a < b else b


def _max(a: int, b: int) -> int:
    return a if a > b else b


_FUNCTIONS: dict[ExprOp, Callable[[int, int], int]] = {
    ExprOp.ADD: operator.add,
    ExprOp.SUB: operator.sub,
    ExprOp.MUL: operator.mul,
    ExprOp.FLOORDIV: operator.floordiv,
    ExprOp.MOD: operator.mod,
    ExprOp.MIN: _min,
    ExprOp.MAX: _max,
    ExprOp.CEILDIV: _ceildiv,
    ExprOp.EQ: lambda a, b: 1 if a == b else 0,
    ExprOp.NE: lambda a, b: 1 if a != b else 0,
    ExprOp.LT: lambda a, b: 1 if a < b else 0,
    ExprOp.LE: lambda a, b: 1 if a <= b else 0,
    ExprOp.AND: lambda a, b: 1 if a and b else 0,
    ExprOp.OR: lambda a, b: 1 if a or b else 0,
}


def needed_by(exprs: Sequence[Expr], roots: Iterable[int]) -> list[int]:
    """The indices that must be evaluated to know ``roots``: themselves and all their operands,
    ascending, each once. Operands stand earlier, so one backward walk finds them."""
    marked = bytearray(len(exprs))
    for root in roots:
        marked[root] = 1
    for index in range(len(exprs) - 1, -1, -1):
        expr = exprs[index]
        if marked[index] and expr.op > ExprOp.SYM:
            marked[expr.a] = marked[expr.b] = 1
    return [index for index, mark in enumerate(marked) if mark]


class Evaluator:
    """A prepared walk over the few expressions that a step needs.

    Built once from a verified table; a call costs about 0.1 us an expression, and next to nothing
    where the live scalars that they depend on are the last call's, as sizes are in a loop of
    single tokens. Both operands of AND and OR are always evaluated.
    """

    __slots__ = ("_code", "_constants", "_last", "_origins", "_outputs", "_syms")

    def __init__(self, exprs: Sequence[Expr], needed: Iterable[int]) -> None:
        """``needed``: indices into ``exprs``, in the order in which a call returns them."""
        wanted = list(needed)
        used = needed_by(exprs, wanted)
        # Values of one call lie in one list: constants, then live scalars, then results.
        place: dict[int, int] = {}
        constants = [i for i in used if exprs[i].op is ExprOp.CONST]
        syms = [i for i in used if exprs[i].op is ExprOp.SYM]
        results = [i for i in used if exprs[i].op > ExprOp.SYM]
        for position, index in enumerate([*constants, *syms, *results]):
            place[index] = position
        self._constants = [exprs[i].a for i in constants]
        self._syms = [exprs[i].a for i in syms]
        self._code = [
            (_FUNCTIONS[exprs[i].op], place[exprs[i].a], place[exprs[i].b]) for i in results
        ]
        self._origins = results
        self._outputs = [place[i] for i in wanted]
        #: The last call's live scalars and results: one object, for threads.
        self._last: tuple[list[int], list[int]] | None = None

    def __call__(self, sym_values: Sequence[int]) -> list[int]:
        """The values of the needed expressions, given one value for each SymInt of the program. The
        list may be another call's, too: it is not to be changed.

        Raises EvaluationError when one divides by zero.
        """
        syms = [sym_values[s] for s in self._syms]
        last = self._last
        if last is not None and last[0] == syms:
            return last[1]
        values = self._constants + syms
        append = values.append
        try:
            for function, a, b in self._code:
                append(function(values[a], values[b]))
        except ZeroDivisionError:
            done = len(values) - len(self._constants) - len(self._syms)
            raise EvaluationError(
                f"expression {self._origins[done]} divides by zero "
                f"(live scalars: {list(sym_values)})"
            ) from None
        found = [values[i] for i in self._outputs]
        self._last = (syms, found)
        return found


def evaluate(exprs: Sequence[Expr], sym_values: Sequence[int]) -> list[int]:
    """The value of every expression of the table, in one forward walk.

    Raises EvaluationError when one divides by zero.
    """
    return Evaluator(exprs, range(len(exprs)))(sym_values)


def evaluate_subset(
    exprs: Sequence[Expr], needed: Iterable[int], sym_values: Sequence[int]
) -> list[int]:
    """The values of the ``needed`` expressions. To do it more than once, keep an Evaluator."""
    return Evaluator(exprs, needed)(sym_values)


# -- text ------------------------------------------------------------------------------------

_SYMBOLS = {
    ExprOp.ADD: "+",
    ExprOp.SUB: "-",
    ExprOp.MUL: "*",
    ExprOp.FLOORDIV: "//",
    ExprOp.MOD: "%",
    ExprOp.EQ: "==",
    ExprOp.NE: "!=",
    ExprOp.LT: "<",
    ExprOp.LE: "<=",
    ExprOp.AND: "and",
    ExprOp.OR: "or",
}
_CALLS = {ExprOp.MIN: "min", ExprOp.MAX: "max", ExprOp.CEILDIV: "ceil_div"}
#: How tightly an operator binds; an atom or a call binds tightest.
_BINDS = {
    ExprOp.OR: 1,
    ExprOp.AND: 2,
    ExprOp.EQ: 3,
    ExprOp.NE: 3,
    ExprOp.LT: 3,
    ExprOp.LE: 3,
    ExprOp.ADD: 4,
    ExprOp.SUB: 4,
    ExprOp.MUL: 5,
    ExprOp.FLOORDIV: 5,
    ExprOp.MOD: 5,
}
_ATOM = 9
#: Longer parts are named by their index: a table can share parts so that the text would explode.
_MAX_PART = 240


def format_expr(exprs: Sequence[Expr], index: int, symints: Sequence[SymInt]) -> str:
    """Write expression ``index`` as people would, such as ``(S + input_pos + 63) // 64``.

    Python's operators, ``min``, ``max`` and ``ceil_div``; no more parentheses than needed. A part
    of more than 240 characters appears as ``exprs[i]``.
    """
    return format_exprs(exprs, [index], symints)[index]


def format_exprs(
    exprs: Sequence[Expr], indices: Iterable[int], symints: Sequence[SymInt]
) -> dict[int, str]:
    """Index -> text of some expressions, as :func:`format_expr` writes each, in one walk."""
    wanted = set(indices)
    done: dict[int, tuple[str, int]] = {}
    texts: dict[int, str] = {}
    for i in needed_by(exprs, wanted):
        text, binds = _format_node(exprs, i, symints, done)
        if i in wanted:
            texts[i] = text
        if len(text) > _MAX_PART:
            text, binds = f"exprs[{i}]", _ATOM
        done[i] = (text, binds)
    return texts


def _format_node(
    exprs: Sequence[Expr], index: int, symints: Sequence[SymInt], done: dict[int, tuple[str, int]]
) -> tuple[str, int]:
    """Text of one node, and how tightly its outermost operator binds."""
    expr = exprs[index]
    op = expr.op
    if op is ExprOp.CONST:
        return str(expr.a), _ATOM if expr.a >= 0 else _BINDS[ExprOp.SUB]
    if op is ExprOp.SYM:
        return symints[expr.a].name or f"sym{expr.a}", _ATOM
    left, left_binds = done[expr.a]
    right, right_binds = done[expr.b]
    if op in _CALLS:
        return f"{_CALLS[op]}({left}, {right})", _ATOM
    symbol, binds = _SYMBOLS[op], _BINDS[op]
    other = exprs[expr.b]
    if op is ExprOp.ADD and other.op is ExprOp.CONST and other.a < 0:
        symbol, right, right_binds = "-", str(-other.a), _ATOM
    # Comparisons do not chain here (1 < 2 < 3 means something else in Python); a + (b - c) and
    # a * (b * c) need no parentheses, a - (b - c) and a * (b // c) do.
    if left_binds < binds or (left_binds == binds == _BINDS[ExprOp.EQ]):
        left = f"({left})"
    associative = (
        (op is ExprOp.ADD and symbol == "+" and other.op is not ExprOp.CONST)
        or (op is ExprOp.MUL and other.op is ExprOp.MUL)
        or op in (ExprOp.AND, ExprOp.OR)
    )
    if right_binds < binds or (right_binds == binds and not associative):
        right = f"({right})"
    return f"{left} {symbol} {right}", binds
