"""Stand-in until executorch_wgpu.serialization.expressions lands; to be deleted."""

from __future__ import annotations

from collections.abc import Sequence

from executorch_wgpu.serialization.dispatch_list import Expr, ExprOp


class Evaluator:
    def __init__(self, exprs: Sequence[Expr], needed: Sequence[int]) -> None:
        live: set[int] = set()
        stack = list(needed)
        while stack:
            i = stack.pop()
            if i in live:
                continue
            live.add(i)
            if exprs[i].op not in (ExprOp.CONST, ExprOp.SYM):
                stack += [exprs[i].a, exprs[i].b]
        self._order = [(i, exprs[i].op, exprs[i].a, exprs[i].b) for i in sorted(live)]
        self._needed = list(needed)

    def __call__(self, syms: Sequence[int]) -> list[int]:
        v: dict[int, int] = {}
        for i, op, a, b in self._order:
            if op == ExprOp.CONST:
                v[i] = a
            elif op == ExprOp.SYM:
                v[i] = syms[a]
            else:
                x, y = v[a], v[b]
                v[i] = int(
                    {
                        ExprOp.ADD: lambda: x + y,
                        ExprOp.SUB: lambda: x - y,
                        ExprOp.MUL: lambda: x * y,
                        ExprOp.FLOORDIV: lambda: x // y,
                        ExprOp.MOD: lambda: x % y,
                        ExprOp.MIN: lambda: min(x, y),
                        ExprOp.MAX: lambda: max(x, y),
                        ExprOp.CEILDIV: lambda: -(-x // y),
                        ExprOp.EQ: lambda: x == y,
                        ExprOp.NE: lambda: x != y,
                        ExprOp.LT: lambda: x < y,
                        ExprOp.LE: lambda: x <= y,
                        ExprOp.AND: lambda: bool(x) and bool(y),
                        ExprOp.OR: lambda: bool(x) or bool(y),
                    }[op]()
                )
        return [v[i] for i in self._needed]
