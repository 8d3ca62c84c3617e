"""The example program with something changed, for tests of the verifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from program_examples import example

from executorch_wgpu.serialization import (
    Expr,
    ExprOp,
    Program,
    make_shader,
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
