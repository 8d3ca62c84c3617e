"""From torch's symbolic sizes to live scalars.

Everything goes through ``sym.node.expr`` and recorded ranges. A SymInt is never compared, made a
bool or an int here: that would add a guard and specialise the user's graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as torch_functions

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


def to_scalar(expression: Any, bindings: dict[sympy.Symbol, Scalar]) -> Scalar:
    """A sympy expression, a SymInt, a SymBool or a number over live scalars. Truth values are 0
    and 1. Raises UnsupportedSymbol for a symbol without a binding or an unknown function."""
    expression = expression_of(expression)
    if isinstance(expression, (bool, int)):
        return int(expression)
    if expression in (sympy.true, sympy.false):
        return int(expression == sympy.true)
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Symbol):
        if expression not in bindings:
            raise UnsupportedSymbol(f"{expression} is not a size or an element of an input")
        return bindings[expression]
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
