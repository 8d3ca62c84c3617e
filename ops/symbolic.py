"""Integer arithmetic over live scalars, ahead of time.

A size is either a plain ``int`` or a :class:`Sym`: a polynomial with integer coefficients over
*atoms*, an atom being a live scalar or an operation that polynomials cannot express (floor
division, remainder, minimum, a comparison ...). The polynomial form is canonical, so ``576 * S``,
``S * 576`` and ``S + 575 * S`` are one value and ``==`` means "provably equal". Whatever turns
out to be constant is returned as ``int``, so lowerings write ordinary arithmetic and never ask
which of the two they hold.

Nothing here looks at a torch SymInt: comparing those specialises the graph behind the user's
back, comparing these cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from executorch_wgpu.serialization.dispatch_list import Expr, ExprOp

#: Bounds are clipped here: every live value must fit the 32-bit words of the live block.
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Atom:
    """A live scalar (``op`` SYM, ``args`` its index) or an opaque operation on two scalars."""

    op: ExprOp
    args: tuple[Scalar, ...]
    lo: int
    hi: int
    key: str  # canonical text: the identity of the atom
    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Monomial: TypeAlias = tuple[Atom, ...]  # sorted by key; () is the constant term


class Sym:
    """A non-constant integer polynomial over atoms. Immutable; see the module's docstring."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sym) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of a live value {self} is not known ahead of time")

    def __repr__(self) -> str:
        return to_text(self)

    def __add__(self, other: Scalar) -> Scalar:
        return _from_terms(_terms(self) + _terms(other))

    __radd__ = __add__

    def __neg__(self) -> Scalar:
        return self * -1

    def __sub__(self, other: Scalar) -> Scalar:
        return self + other * -1

    def __rsub__(self, other: Scalar) -> Scalar:
        return other + self * -1

    def __mul__(self, other: Scalar) -> Scalar:
        return _from_terms(
            [
                (tuple(sorted(m + n, key=lambda atom: atom.key)), c * d)
                for m, c in _terms(self)
                for n, d in _terms(other)
            ]
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: Scalar) -> Scalar:
        return floor_div(self, other)

    def __rfloordiv__(self, other: int) -> Scalar:
        return floor_div(other, self)

    def __mod__(self, other: Scalar) -> Scalar:
        return modulo(self, other)

    def __rmod__(self, other: int) -> Scalar:
        return modulo(other, self)


Scalar: TypeAlias = int | Sym


def _terms(x: Scalar) -> list[tuple[Monomial, int]]:
    if isinstance(x, Sym):
        return list(x.terms)
    return [((), int(x))] if x else []


def _from_terms(terms: Iterable[tuple[Monomial, int]]) -> Scalar:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    kept.sort(key=lambda term: (-len(term[0]), [atom.key for atom in term[0]]))
    return Sym(tuple(kept))


def symbol(index: int, name: str, lo: int, hi: int) -> Sym:
    """The live scalar with ``index`` in the program's table, bounded by lo..hi inclusive."""
    result = _from_terms([((Atom(ExprOp.SYM, (index,), lo, hi, f"${index:04d}", name),), 1)])
    assert isinstance(result, Sym)
    return result


def _interval_mul(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def bounds(x: Scalar) -> tuple[int, int]:
    """Smallest and largest value of ``x`` by interval arithmetic, both inclusive. May be wider
    than the truth where one atom occurs in several terms, never narrower."""
    if not isinstance(x, Sym):
        return int(x), int(x)
    lo = hi = 0
    for monomial, coefficient in x.terms:
        term = (coefficient, coefficient)
        for atom in monomial:
            term = _interval_mul(term, (atom.lo, atom.hi))
        lo, hi = lo + term[0], hi + term[1]
    return lo, hi


def lower_bound(x: Scalar) -> int:
    """See :func:`bounds`."""
    return bounds(x)[0]


def upper_bound(x: Scalar) -> int:
    """See :func:`bounds`."""
    return bounds(x)[1]


def _opaque(op: ExprOp, a: Scalar, b: Scalar, lo: int, hi: int) -> Scalar:
    if lo == hi:
        return lo
    key = f"{op.name}({to_text(a)},{to_text(b)})"
    return _from_terms([((Atom(op, (a, b), lo, hi, key),), 1)])


def _exact_quotient(a: Scalar, b: Scalar) -> Scalar | None:
    """a / b when it divides without remainder term by term, else None."""
    divisor = _terms(b)
    if len(divisor) != 1:
        return 1 if a == b else None
    monomial, coefficient = divisor[0]
    result = []
    for m, c in _terms(a):
        if c % coefficient:
            return None
        rest = list(m)
        for atom in monomial:
            if atom not in rest:
                return None
            rest.remove(atom)
        result.append((tuple(rest), c // coefficient))
    return _from_terms(result)


def floor_div(a: Scalar, b: Scalar) -> Scalar:
    """``a // b``, rounding as Python's. A divisor whose lower bound is < 1 is not simplified."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if lower_bound(b) >= 1:
        exact = _exact_quotient(a, b)
        if exact is not None:
            return exact
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    if blo >= 1:
        quotients = [x // y for x in (alo, ahi) for y in (blo, bhi)]
        lo, hi = min(quotients), max(quotients)
    else:
        magnitude = max(abs(alo), abs(ahi))
        lo, hi = -magnitude - 1, magnitude
    return _opaque(ExprOp.FLOORDIV, a, b, lo, hi)


def ceil_div(a: Scalar, b: Scalar) -> Scalar:
    """The smallest integer >= a / b; b must be positive."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    exact = _exact_quotient(a, b)
    if exact is not None:
        return exact
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    quotients = [-(-x // y) for x in (alo, ahi) for y in (max(blo, 1), max(bhi, 1))]
    return _opaque(ExprOp.CEILDIV, a, b, min(quotients), max(quotients))


def modulo(a: Scalar, b: Scalar) -> Scalar:
    """``a % b``, sign as Python's."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if lower_bound(b) >= 1 and _exact_quotient(a, b) is not None:
        return 0
    if isinstance(b, int) and b > 0 and lower_bound(a) >= 0 and upper_bound(a) < b:
        return a
    magnitude = max(abs(v) for v in bounds(b))
    lo = 0 if lower_bound(b) >= 1 else -magnitude + 1
    return _opaque(ExprOp.MOD, a, b, lo, max(magnitude - 1, 0))


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of two; one of them when the bounds decide."""
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    difference = a - b
    if a == b or upper_bound(difference) <= 0:
        return a
    if lower_bound(difference) >= 0:
        return b
    return _opaque(ExprOp.MIN, a, b, min(alo, blo), min(ahi, bhi))


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two; one of them when the bounds decide."""
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    difference = a - b
    if a == b or lower_bound(difference) >= 0:
        return a
    if upper_bound(difference) <= 0:
        return b
    return _opaque(ExprOp.MAX, a, b, max(alo, blo), max(ahi, bhi))


def equal(a: Scalar, b: Scalar) -> Scalar:
    """1 where a == b at run time, else 0 (``==`` on Syms is *provable* equality instead)."""
    lo, hi = bounds(a - b)
    if lo == hi == 0:
        return 1
    if lo > 0 or hi < 0:
        return 0
    return _opaque(ExprOp.EQ, a, b, 0, 1)


def not_equal(a: Scalar, b: Scalar) -> Scalar:
    """1 where a != b at run time, else 0."""
    return 1 - equal(a, b)


def less(a: Scalar, b: Scalar) -> Scalar:
    """1 where a < b at run time, else 0."""
    lo, hi = bounds(a - b)
    if hi < 0:
        return 1
    if lo >= 0:
        return 0
    return _opaque(ExprOp.LT, a, b, 0, 1)


def less_equal(a: Scalar, b: Scalar) -> Scalar:
    """1 where a <= b at run time, else 0."""
    lo, hi = bounds(a - b)
    if hi <= 0:
        return 1
    if lo > 0:
        return 0
    return _opaque(ExprOp.LE, a, b, 0, 1)


def both(a: Scalar, b: Scalar) -> Scalar:
    """Logical and of two truth values (0 or 1)."""
    return a * b


def either(a: Scalar, b: Scalar) -> Scalar:
    """Logical or of two truth values (0 or 1)."""
    return maximum(a, b)


def product(values: Iterable[Scalar]) -> Scalar:
    """The product of sizes; 1 for none."""
    result: Scalar = 1
    for value in values:
        result = result * value
    return result


def atoms(x: Scalar) -> set[Atom]:
    """Every live scalar that ``x`` depends on, also through opaque operations."""
    found: set[Atom] = set()
    if isinstance(x, Sym):
        for monomial, _ in x.terms:
            for atom in monomial:
                if atom.op is ExprOp.SYM:
                    found.add(atom)
                else:
                    for arg in atom.args:
                        found |= atoms(arg)
    return found


def to_text(x: Scalar) -> str:
    """Canonical text: equal values have equal text."""
    if not isinstance(x, Sym):
        return str(x)
    parts = []
    for monomial, coefficient in x.terms:
        names = [f"{a.name}{a.key}" if a.op is ExprOp.SYM else a.key for a in monomial]
        parts.append(
            "*".join(([str(coefficient)] if coefficient != 1 or not names else []) + names)
        )
    return "+".join(parts)


class ExprTable:
    """Collects the program-wide, deduplicated expression table of a dispatch list."""

    def __init__(self) -> None:
        self.exprs: list[Expr] = []
        self._index: dict[Expr, int] = {}

    def _intern(self, expr: Expr) -> int:
        if expr not in self._index:
            self._index[expr] = len(self.exprs)
            self.exprs.append(expr)
        return self._index[expr]

    def add(self, x: Scalar) -> int:
        """Index of ``x`` in the table, appended with its operands if it is new."""
        if not isinstance(x, Sym):
            return self._intern(Expr(ExprOp.CONST, int(x)))
        total: int | None = None
        for monomial, coefficient in x.terms:
            factors = [self._atom(atom) for atom in monomial]
            subtract = coefficient < 0 and total is not None
            magnitude = -coefficient if subtract else coefficient
            if magnitude != 1 or not factors:
                factors.append(self._intern(Expr(ExprOp.CONST, magnitude)))
            term = factors[0]
            for factor in factors[1:]:
                term = self._intern(Expr(ExprOp.MUL, term, factor))
            if total is None:
                total = term
            else:
                total = self._intern(Expr(ExprOp.SUB if subtract else ExprOp.ADD, total, term))
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> int:
        if atom.op is ExprOp.SYM:
            index = atom.args[0]
            assert isinstance(index, int)
            return self._intern(Expr(ExprOp.SYM, index))
        a, b = (self.add(arg) for arg in atom.args)
        return self._intern(Expr(atom.op, a, b))


def evaluate(x: Scalar, values: Callable[[int], int]) -> int:
    """The value of ``x`` when live scalar i has the value ``values(i)``."""
    if not isinstance(x, Sym):
        return x
    total = 0
    for monomial, coefficient in x.terms:
        term = coefficient
        for atom in monomial:
            if atom.op is ExprOp.SYM:
                assert isinstance(atom.args[0], int)
                term *= values(atom.args[0])
            else:
                a, b = (evaluate(arg, values) for arg in atom.args)
                term *= _APPLY[atom.op](a, b)
        total += term
    return total


_APPLY: dict[ExprOp, Callable[[int, int], int]] = {
    ExprOp.FLOORDIV: lambda a, b: a // b,
    ExprOp.CEILDIV: lambda a, b: -(-a // b),
    ExprOp.MOD: lambda a, b: a % b,
    ExprOp.MIN: min,
    ExprOp.MAX: max,
    ExprOp.EQ: lambda a, b: int(a == b),
    ExprOp.LT: lambda a, b: int(a < b),
    ExprOp.LE: lambda a, b: int(a <= b),
}
