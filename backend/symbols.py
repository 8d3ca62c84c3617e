"""From torch's symbolic sizes to live scalars.

Everything goes through ``sym.node.expr`` and recorded ranges. A SymInt is never compared, made a
bool or an int here: that would add a guard and specialise the user's graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from executorch_wgpu.ops import symbolic
from executorch_wgpu.ops.symbolic import Scalar


class UnsupportedSymbol(Exception):
    """A symbolic size that cannot become a live scalar; the message says why, for the user."""


def expression_of(value: Any) -> sympy.Basic | int | bool:
    """The sympy expression of a SymInt or SymBool, or the plain number itself."""
    if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        expression = value.node.expr
        if isinstance(expression, sympy.Integer):
            return int(expression)
        return expression
    return value


def symbols_of(values: Iterable[Any]) -> set[sympy.Symbol]:
    """Free symbols of SymInts, sizes and nested lists of them; plain values have none."""
    found: set[sympy.Symbol] = set()
    for value in values:
        if isinstance(value, (list, tuple, torch.Size)):
            found |= symbols_of(value)
        else:
            expression = expression_of(value)
            if isinstance(expression, sympy.Basic):
                found |= expression.free_symbols
    return found


_DIVISIONS = (torch_functions.FloorDiv, torch_functions.CleanDiv)
_MODULI = (torch_functions.Mod, torch_functions.PythonMod, sympy.Mod)
_RELATIONS = {
    sympy.Eq: symbolic.equal,
    sympy.Ne: symbolic.not_equal,
    sympy.Lt: symbolic.less,
    sympy.Le: symbolic.less_equal,
    sympy.Gt: lambda a, b: symbolic.less(b, a),
    sympy.Ge: lambda a, b: symbolic.less_equal(b, a),
}


#: What is known of symbols and of whole expressions: its live scalar; for a symbol that is known
#: by way of others only (``s = dim - t``, where what is asked for cancels ``t``), an expression.
Bindings: TypeAlias = "dict[sympy.Basic, Scalar | sympy.Basic]"


def to_scalar(expression: Any, bindings: Bindings) -> Scalar:
    """A sympy expression, a SymInt, a SymBool or a number over live scalars. Truth values are 0
    and 1. Raises UnsupportedSymbol for a symbol without a binding or an unknown function."""
    expression = expression_of(expression)
    if isinstance(expression, sympy.Basic):
        expression = substituted(expression, bindings)
    if isinstance(expression, (bool, int)):
        return int(expression)
    if expression in (sympy.true, sympy.false):
        return int(expression == sympy.true)
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if expression in bindings:
        return bindings[expression]  # type: ignore[return-value]
    if isinstance(expression, sympy.Symbol):
        raise UnsupportedSymbol(f"{expression} is not a size or an element of an input")
    args = expression.args

    def sub(k: int) -> Scalar:
        return to_scalar(args[k], bindings)

    if isinstance(expression, sympy.Add):
        total: Scalar = 0
        for k in range(len(args)):
            total = total + sub(k)
        return total
    if isinstance(expression, sympy.Mul):
        return symbolic.product(sub(k) for k in range(len(args)))
    if isinstance(expression, (sympy.Pow, torch_functions.PowByNatural)):
        exponent = args[1]
        if isinstance(exponent, sympy.Integer) and 0 <= int(exponent) <= 8:
            return symbolic.product(sub(0) for _ in range(int(exponent)))
    if isinstance(expression, _DIVISIONS):
        return symbolic.floor_div(sub(0), sub(1))
    if isinstance(expression, _MODULI):
        return symbolic.modulo(sub(0), sub(1))
    if isinstance(expression, (sympy.Max, torch_functions.Max)):
        result = sub(0)
        for k in range(1, len(args)):
            result = symbolic.maximum(result, sub(k))
        return result
    if isinstance(expression, (sympy.Min, torch_functions.Min)):
        result = sub(0)
        for k in range(1, len(args)):
            result = symbolic.minimum(result, sub(k))
        return result
    for relation, apply in _RELATIONS.items():
        if isinstance(expression, relation):
            return apply(sub(0), sub(1))
    if isinstance(expression, sympy.And):
        return symbolic.product(sub(k) for k in range(len(args)))
    if isinstance(expression, sympy.Or):
        result = sub(0)
        for k in range(1, len(args)):
            result = symbolic.either(result, sub(k))
        return result
    if isinstance(expression, sympy.Not):
        return 1 - sub(0)
    raise UnsupportedSymbol(f"{type(expression).__name__} in {expression} has no counterpart")


def substituted(expression: sympy.Basic, bindings: Bindings) -> sympy.Basic:
    """``expression`` without the symbols that are known by way of others."""
    known = {
        symbol: by
        for symbol in expression.free_symbols
        if isinstance(by := bindings.get(symbol), sympy.Basic)
    }
    return sympy.expand(expression.xreplace(known)) if known else expression


def finite(bound: Any) -> int | None:
    """An end of a value range as an int, None for an infinite one."""
    if bound in (sympy.oo, -sympy.oo) or "int_oo" in str(bound):
        return None
    return int(bound)


def environment_of(value: Any) -> Any:
    """The shape environment of a SymInt or SymBool, None for plain values."""
    return value.node.shape_env if isinstance(value, (torch.SymInt, torch.SymBool)) else None


def recorded_range(
    symbol: sympy.Symbol, environment: Any, constraints: Any
) -> tuple[int | None, int | None]:
    """(lo, hi) that the exporter recorded for ``symbol``, None where it is open: the program's
    range constraints intersected with those of the shape environment."""
    ranges = []
    if constraints and symbol in constraints:
        ranges.append(constraints[symbol])
    if environment is not None and symbol in environment.var_to_range:
        ranges.append(environment.var_to_range[symbol])
    lows = [low for r in ranges if (low := finite(r.lower)) is not None]
    highs = [high for r in ranges if (high := finite(r.upper)) is not None]
    return max(lows, default=None), min(highs, default=None)


def bounds_of(expression: Any, ranges: dict[sympy.Symbol, tuple[int | None, int | None]]) -> Any:
    """(lo, hi) of an expression whose symbols lie in ``ranges``, None where it is open."""
    if not isinstance(expression, sympy.Basic):
        return int(expression), int(expression)
    known = {
        symbol: ValueRanges(-int_oo if lo is None else lo, int_oo if hi is None else hi)
        for symbol, (lo, hi) in ranges.items()
    }
    found = bound_sympy(expression, known)
    return finite(found.lower), finite(found.upper)
