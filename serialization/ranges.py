"""Ranges of expressions by interval arithmetic.

An interval is a promise: every value that the expression can take lies in it, though the ends may
not be reached (``x - x`` has the range ``[lo - hi, hi - lo]``). The verifier proves with it what it
can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .dispatch_list import Expr, ExprOp, SymInt
from .errors import InvalidProgramError
from .format_limits import MAX_VALUE, MIN_VALUE

Interval = tuple[int, int]


def bounds(
    exprs: Sequence[Expr],
    symints: Sequence[SymInt],
    at_most: Sequence[tuple[int, int]] = (),
) -> list[Interval]:
    """The range (lo, hi), both inclusive, of every expression.

    ``at_most``: pairs (index of an expression, largest value) that are known to hold, such as
    those that :func:`known_maxima` finds in a program's checks.

    Raises InvalidProgramError when an expression divides by nothing but zero, or can leave 64
    bits: values are Python's integers here but not in every player, and squares of squares would
    grow without end.
    """
    maxima = dict(at_most)
    result: list[Interval] = []
    for index, expr in enumerate(exprs):
        op = expr.op
        if op is ExprOp.CONST:
            lo = hi = expr.a
        elif op is ExprOp.SYM:
            lo, hi = symints[expr.a].lo, symints[expr.a].hi
        else:
            lo, hi = _combine(op, result[expr.a], result[expr.b], index)
        if lo < MIN_VALUE or hi > MAX_VALUE:
            raise InvalidProgramError(
                f"exprs[{index}] ({op.name}) can reach [{lo}, {hi}], more than 64 bits hold"
            )
        if index in maxima:
            # Never below lo: a check that can never hold makes every call fail, so whatever is
            # said about such calls is true.
            hi = max(lo, min(hi, maxima[index]))
        result.append((lo, hi))
    return result


def known_maxima(
    exprs: Sequence[Expr], checks: Iterable[int], ranges: Sequence[Interval]
) -> list[tuple[int, int]]:
    """What checks that hold say about other expressions: ``x <= y`` and ``x < y``, alone or
    joined by ``and``, bound ``x`` by the largest value of ``y``.

    ``checks``: indices of expressions that must be non-zero. ``ranges``: their plain bounds.
    """
    maxima: dict[int, int] = {}
    pending = list(checks)
    seen = set(pending)
    while pending:
        expr = exprs[pending.pop()]
        if expr.op is ExprOp.AND:
            for part in (expr.a, expr.b):
                if part not in seen:
                    seen.add(part)
                    pending.append(part)
        elif expr.op in (ExprOp.LE, ExprOp.LT):
            limit = ranges[expr.b][1] - (expr.op is ExprOp.LT)
            maxima[expr.a] = min(limit, maxima.get(expr.a, limit))
    return sorted(maxima.items())


def _combine(op: ExprOp, a: Interval, b: Interval, index: int) -> Interval:
    """The range of ``op`` over two ranges."""
    (alo, ahi), (blo, bhi) = a, b
    if op is ExprOp.ADD:
        return alo + blo, ahi + bhi
    if op is ExprOp.SUB:
        return alo - bhi, ahi - blo
    if op is ExprOp.MUL:
        corners = (alo * blo, alo * bhi, ahi * blo, ahi * bhi)
        return min(corners), max(corners)
    if op is ExprOp.MIN:
        return min(alo, blo), min(ahi, bhi)
    if op is ExprOp.MAX:
        return max(alo, blo), max(ahi, bhi)
    if op in (ExprOp.FLOORDIV, ExprOp.CEILDIV, ExprOp.MOD):
        return _divide(op, a, b, index)
    # Comparisons and logic: certain where the ranges do not overlap, else either.
    certain = {
        ExprOp.EQ: (alo == ahi == blo == bhi, ahi < blo or bhi < alo),
        ExprOp.NE: (ahi < blo or bhi < alo, alo == ahi == blo == bhi),
        ExprOp.LT: (ahi < blo, alo >= bhi),
        ExprOp.LE: (ahi <= blo, alo > bhi),
        ExprOp.AND: (not _has_zero(a) and not _has_zero(b), a == (0, 0) or b == (0, 0)),
        ExprOp.OR: (not _has_zero(a) or not _has_zero(b), a == (0, 0) and b == (0, 0)),
    }
    true, false = certain[op]
    return (1, 1) if true else (0, 0) if false else (0, 1)


def _has_zero(interval: Interval) -> bool:
    return interval[0] <= 0 <= interval[1]


def _divide(op: ExprOp, a: Interval, b: Interval, index: int) -> Interval:
    """Division and remainder over the divisor's non-zero values (zero raises at execute)."""
    (alo, ahi), (blo, bhi) = a, b
    divisors: list[Interval] = []
    if blo < 0:
        divisors.append((blo, min(bhi, -1)))
    if bhi > 0:
        divisors.append((max(blo, 1), bhi))
    if not divisors:
        raise InvalidProgramError(f"exprs[{index}] ({op.name}) always divides by zero")
    if op is ExprOp.MOD:
        # The remainder has the divisor's sign and is nearer to zero; a dividend that lies within
        # [0, divisor) is left as it is.
        if len(divisors) == 1 and alo >= 0 and ahi < divisors[0][0]:
            return a
        lo = min(0, blo + 1)
        hi = max(0, bhi - 1)
        if blo > 0 and alo >= 0:
            hi = min(hi, ahi)
        return lo, hi
    values = []
    for dlo, dhi in divisors:
        for numerator in (alo, ahi):
            for divisor in (dlo, dhi):
                values.append(
                    numerator // divisor if op is ExprOp.FLOORDIV else -(-numerator // divisor)
                )
    return min(values), max(values)
