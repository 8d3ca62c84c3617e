"""Finds the live scalars of a graph: which input each symbol is read from, and its bounds.

One source is one SymInt, however many times the exporter named it. Bounds are the recorded
ranges, intersected over all names of a source and clamped by what the scalar indexes.

Two habits of the exporter are undone here, both of which would refuse the last position of a cache
in decode: sizes are recorded as [2, max] even when 1 is fine, and a range derived from that
(``pos <= 126`` from ``s + pos <= 128``) is one too small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.utils._sympy.symbol import SymT, symbol_is_type

from executorch_wgpu.backend.symbols import (
    Bindings,
    UnsupportedSymbol,
    bounds_of,
    environment_of,
    expression_of,
    recorded_range,
    substituted,
    to_scalar,
)
from executorch_wgpu.ops import symbolic
from executorch_wgpu.ops.call import ChainCheck
from executorch_wgpu.ops.symbolic import INT32_MAX, INT32_MIN, Scalar
from executorch_wgpu.serialization.dispatch_list import SymInt, SymSource


@dataclass(frozen=True)
class Source:
    """Where a scalar is read: see ``dispatch_list.SymInt``."""

    kind: SymSource
    input: int
    index: int


@dataclass
class _Reading:
    """One scalar that the graph reads: its source and the SymInt of the graph for it."""

    source: Source
    value: Any  # torch.SymInt
    name: str


@dataclass
class LiveScalars:
    """What :meth:`Readings.resolve` found. ``bindings``: every symbol as an expression of the
    SymInts; ``problems``: why a symbol has none."""

    symints: list[SymInt] = field(default_factory=list)
    bindings: Bindings = field(default_factory=dict)
    checks: list[ChainCheck] = field(default_factory=list)
    by_source: dict[Source, int] = field(default_factory=dict)
    problems: dict[sympy.Symbol, str] = field(default_factory=dict)


@dataclass
class Readings:
    """Collects what a graph reads and indexes; :meth:`resolve` makes the SymInts.

    ``constraints``: the range constraints of the exported program, by symbol."""

    constraints: Any = None
    environment: Any = None
    readings: list[_Reading] = field(default_factory=list)
    #: Expressions (start, length, size): start + length <= size, start < size without a length.
    indexing: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def add(self, source: Source, value: Any, name: str) -> None:
        """The graph reads ``value`` (a torch.SymInt) from ``source``."""
        self.environment = self.environment or environment_of(value)
        self.readings.append(_Reading(source, value, name))

    def indexes(self, start: Any, length: Any, size: Any) -> None:
        """``start`` addresses ``length`` places of a dimension of ``size``."""
        if isinstance(start, torch.SymInt):
            self.indexing.append((expression_of(start), expression_of(length), expression_of(size)))

    def asserts(self, condition: Any) -> None:
        """The graph asserts ``condition`` (a torch.SymBool). ``length + start <= size`` says
        what start addresses, wherever that happens."""
        expression = expression_of(condition)
        if not isinstance(expression, sympy.Le) or not isinstance(expression.rhs, sympy.Integer):
            return
        if isinstance(expression.lhs, sympy.Add) and len(expression.lhs.args) == 2:
            one, two = expression.lhs.args
            for start, length in ((one, two), (two, one)):
                if isinstance(start, sympy.Symbol) and isinstance(length, sympy.Symbol):
                    self.indexing.append((start, length, int(expression.rhs)))

    def resolve(self) -> LiveScalars:
        """Merge the readings by source. A symbol that cannot be used is in ``problems``."""
        result = LiveScalars()
        bound: dict[sympy.Symbol, Source] = {}
        names: dict[Source, str] = {}
        ranges: dict[Source, tuple[int, int]] = {}
        later: list[_Reading] = []
        for reading in self.readings:
            expression = expression_of(reading.value)
            plain = isinstance(expression, sympy.Symbol) and expression not in bound
            # Sizes of inputs with one symbol come first; what else a dimension says is a check.
            if not plain:
                later.append(reading)
                continue
            try:
                new = self._range(expression, reading)
            except UnsupportedSymbol as problem:
                result.problems[expression] = str(problem)
                continue
            bound[expression] = reading.source
            names.setdefault(reading.source, reading.name)
            old = ranges.get(reading.source, (INT32_MIN, INT32_MAX))
            ranges[reading.source] = max(old[0], new[0]), min(old[1], new[1])
        for reading in later:
            names.setdefault(reading.source, reading.name)
            ranges.setdefault(reading.source, self._expression_range(reading))
        for source, (lo, hi) in ranges.items():
            result.by_source[source] = len(result.symints)
            result.symints.append(
                SymInt(names[source], source.kind, source.input, source.index, lo, max(lo, hi))
            )
        for sym, source in bound.items():
            result.bindings[sym] = self._symbol(result, source)
        while later:
            # Those that say most about a symbol first.
            later.sort(key=lambda reading: len(_unknown(reading, result)))
            self._relate(result, later.pop(0))
        return result

    @staticmethod
    def _symbol(result: LiveScalars, source: Source) -> Scalar:
        index = result.by_source[source]
        entry = result.symints[index]
        if entry.lo == entry.hi:
            return entry.lo
        return symbolic.symbol(index, entry.name, entry.lo, entry.hi)

    def _relate(self, result: LiveScalars, reading: _Reading) -> None:
        """A reading whose value is an expression: solve it for an unknown symbol, or make the
        relation a check where all symbols are known."""
        expression = expression_of(reading.value)
        value = self._symbol(result, reading.source)
        unknown = _unknown(reading, result)
        if unknown & set(result.problems):
            return
        if unknown:
            assert isinstance(expression, sympy.Basic)
            expression = substituted(expression, result.bindings)
            for sym in sorted(unknown, key=str):
                slope = sympy.diff(expression, sym) if _linear(expression, sym) else None
                if not isinstance(slope, sympy.Integer):
                    continue
                rest = sympy.expand(expression - slope * sym)
                if len(unknown) == 1 and int(slope) >= 1:
                    offset = to_scalar(rest, result.bindings)
                    result.bindings[sym] = symbolic.floor_div(value - offset, int(slope))
                    break
                if int(slope) == 1:
                    # Known up to the other symbols, which may cancel where it is used.
                    stand_in = sympy.Symbol(reading.name, integer=True)
                    result.bindings[stand_in] = value
                    result.bindings[sym] = stand_in - rest
                    return
            else:
                # Nothing to solve, but the same expression is recognised where it is used.
                result.bindings[expression] = value
                return
        expected = to_scalar(expression, result.bindings)
        # A condition that is never met stays a check: it refuses every call, by name.
        message = f"{reading.name} is {{0}}, but must be {expression} = {{1}}"
        condition = symbolic.equal(value, expected)
        if isinstance(condition, symbolic.Sym) or not condition:
            result.checks.append(ChainCheck(condition, message, (value, expected)))

    # -- bounds ----------------------------------------------------------------------------

    def _expression_range(self, reading: _Reading) -> tuple[int, int]:
        """The range of a reading that is an expression of symbols."""
        least = 0 if reading.source.kind is SymSource.INPUT_DIM else INT32_MIN
        expression = expression_of(reading.value)
        ranges = {}
        for sym in _free(expression):
            lo, hi = self._recorded(sym)
            ranges[sym] = lo if lo is None or _is_unbacked(sym) else _least_size(lo), hi
        lo, hi = bounds_of(expression, ranges)
        return max(least, least if lo is None else lo), min(
            INT32_MAX, INT32_MAX if hi is None else hi
        )

    def _range(self, sym: sympy.Symbol, reading: _Reading) -> tuple[int, int]:
        lo, hi = self._recorded(sym)
        if reading.source.kind is SymSource.INPUT_DIM:
            if hi is None or hi > INT32_MAX:
                raise UnsupportedSymbol(
                    f"{reading.name} has no upper bound: export with torch.export.Dim(..., max=N)"
                )
            return _least_size(lo), hi
        index_lo, index_hi = None, None
        for start, length, size in self.indexing:
            largest = self._largest(size)
            if start != sym or largest is None:
                continue
            room = largest - (1 if length is None else self._smallest(length))
            recorded_room = largest - (1 if length is None else self._recorded_smallest(length))
            if hi is not None and hi == recorded_room:
                hi = room  # derived by the exporter from sizes of at least 2
            index_lo = 0
            index_hi = room if index_hi is None else min(index_hi, room)
        if lo is not None and not _is_unbacked(sym):
            lo = _least_size(lo)  # a size, read outside and given as an int
        lows = [v for v in (lo, index_lo) if v is not None]
        highs = [v for v in (hi, index_hi) if v is not None]
        return max([*lows, INT32_MIN]), min([*highs, INT32_MAX])

    def _recorded(self, sym: sympy.Symbol) -> tuple[int | None, int | None]:
        return recorded_range(sym, self.environment, self.constraints)

    def _largest(self, expression: Any) -> int | None:
        if isinstance(expression, sympy.Symbol):
            return self._recorded(expression)[1]
        return expression if isinstance(expression, int) else None

    def _smallest(self, expression: Any) -> int:
        if isinstance(expression, sympy.Symbol):
            return _least_size(self._recorded(expression)[0])
        return expression if isinstance(expression, int) else 0

    def _recorded_smallest(self, expression: Any) -> int:
        """As :meth:`_smallest`, but as the exporter counted when it derived ranges: a size is at
        least 2 to it."""
        if isinstance(expression, sympy.Symbol):
            lo = self._recorded(expression)[0]
            return 0 if lo is None else max(lo, 2)
        return expression if isinstance(expression, int) else 0


def _least_size(lo: int | None) -> int:
    """The exporter records 2 for sizes that may be 1: 0 and 1 are special to it, not to us."""
    if lo is None:
        return 0
    return 1 if lo == 2 else max(lo, 0)


def _is_unbacked(sym: sympy.Symbol) -> bool:
    """Whether the symbol is a number that the graph reads or computes, not a size of an input."""
    return bool(symbol_is_type(sym, SymT.UNBACKED_INT))


def _unknown(reading: _Reading, result: LiveScalars) -> set[sympy.Symbol]:
    expression = expression_of(reading.value)
    if not isinstance(expression, sympy.Basic):
        return set()
    return substituted(expression, result.bindings).free_symbols - set(result.bindings)


def _free(expression: Any) -> set[sympy.Symbol]:
    return expression.free_symbols if isinstance(expression, sympy.Basic) else set()


def _linear(expression: Any, sym: sympy.Symbol) -> bool:
    return bool(expression.is_polynomial(sym)) and sympy.degree(expression, sym) == 1
