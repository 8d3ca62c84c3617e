"""Live arithmetic: canonical, bounded, and equal to Python's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executorch_wgpu.ops import symbolic as sy
from executorch_wgpu.serialization.expressions import evaluate

SYMBOLS = [sy.symbol(0, "S", 1, 64), sy.symbol(1, "pos", 0, 2047), sy.symbol(2, "n", -5, 5)]
RANGES = [(1, 64), (0, 2047), (-5, 5)]

leaves = st.one_of(st.integers(-20, 20), st.sampled_from(SYMBOLS))


def combine(children):
    pair = st.tuples(children, children)
    divisor = st.integers(1, 17)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        st.tuples(children, st.integers(-6, 6)).map(lambda p: p[0] * p[1]),
        pair.map(lambda p: sy.minimum(*p)),
        pair.map(lambda p: sy.maximum(*p)),
        pair.map(lambda p: sy.equal(*p)),
        pair.map(lambda p: sy.less(*p)),
        pair.map(lambda p: sy.less_equal(*p)),
        st.tuples(children, divisor).map(lambda p: sy.floor_div(*p)),
        st.tuples(children, divisor).map(lambda p: sy.ceil_div(*p)),
        st.tuples(children, divisor).map(lambda p: sy.modulo(*p)),
    )


expressions = st.recursive(leaves, combine, max_leaves=12)
values = st.tuples(*(st.integers(lo, hi) for lo, hi in RANGES))


@given(expressions, values)
def test_bounds_hold_and_the_table_computes_the_same(x, at):
    expected = sy.evaluate(x, at.__getitem__)
    lo, hi = sy.bounds(x)
    assert lo <= expected <= hi
    table = sy.ExprTable()
    index = table.add(x)
    assert evaluate(table.exprs, list(at))[index] == expected


@given(expressions, expressions, values)
def test_provable_equality_is_true(a, b, at):
    if a == b:
        assert sy.evaluate(a, at.__getitem__) == sy.evaluate(b, at.__getitem__)


def test_one_value_has_one_form():
    S, pos, _ = SYMBOLS
    assert 576 * S == S * 576 == S + 575 * S
    assert (S + pos) * 2 - pos - pos == 2 * S
    assert (S * 576) // 576 == S and (S * 576) % 64 == 0
    assert S - S == 0 and isinstance(S - S, int)
    table = sy.ExprTable()
    assert table.add(S * pos + 3) == table.add(3 + pos * S)


def test_division_rounds_as_python_does():
    *_, n = SYMBOLS
    for at in range(-5, 6):
        assert sy.evaluate(sy.floor_div(n, 3), lambda _, at=at: at) == at // 3
        assert sy.evaluate(sy.ceil_div(n, 3), lambda _, at=at: at) == -(-at // 3)
        assert sy.evaluate(sy.modulo(n, 3), lambda _, at=at: at) == at % 3


def test_bounds_decide_where_they_can():
    S, pos, _ = SYMBOLS
    assert sy.minimum(S, 64) == S and sy.maximum(S, 1) == S
    assert sy.less_equal(S, 64) == 1 and sy.less(S, 1) == 0
    assert sy.equal(S, 65) == 0
    assert isinstance(sy.less(pos, 5), sy.Sym)


def test_a_live_value_has_no_truth():
    with pytest.raises(TypeError, match="not known ahead of time"):
        bool(SYMBOLS[0])
    with pytest.raises(TypeError):
        _ = 1 if SYMBOLS[0] == 1 or SYMBOLS[0] else 0
