"""Formulas: what several pointwise operators compute of one element, as one WGSL function.

A fusion joins the formulas of operators that follow each other; a pointwise kernel or the
epilogue of a matmul then evaluates the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.operators import HELPERS, POINTWISE, literal, number_in
from executorch_wgpu.ops.elementwise.pointwise import ELEMENT_TYPE, convert
from executorch_wgpu.serialization.dispatch_list import DType


@dataclass(frozen=True)
class Line:
    """One operator: WGSL of type ELEMENT_TYPE[``dtype``] over ``{0}``, ``{1}`` ..., which stand for
    ``refs``: operand i as i, the result of line j as ~j."""

    dtype: DType
    text: str
    refs: tuple[int, ...]


@dataclass(frozen=True)
class Formula:
    """``lines`` over operands of the dtypes ``operands``; the last line is the result. No lines:
    the result is operand 0. ``helpers``: functions of HELPERS that the lines call."""

    operands: tuple[DType, ...]
    lines: tuple[Line, ...] = ()
    helpers: tuple[str, ...] = ()

    @property
    def dtype(self) -> DType:
        """Of the result."""
        return self.lines[-1].dtype if self.lines else self.operands[0]

    def replace_operand(self, index: int, inner: Formula) -> Formula:
        """The formula with operand ``index`` computed by ``inner``, whose operands take its place
        in the list. Raises ValueError where the dtypes differ."""
        if inner.dtype is not self.operands[index]:
            raise ValueError(f"operand {index} is {self.operands[index]}, not {inner.dtype}")
        count, first = len(inner.operands), len(inner.lines)

        def from_inner(ref: int) -> int:
            return ref if ref < 0 else ref + index

        def from_outer(ref: int) -> int:
            if ref < 0:
                return ref - first
            if ref == index:
                return ~(first - 1) if first else index
            return ref if ref < index else ref + count - 1

        lines = [replace(x, refs=tuple(map(from_inner, x.refs))) for x in inner.lines]
        lines += [replace(x, refs=tuple(map(from_outer, x.refs))) for x in self.lines]
        return Formula(
            (*self.operands[:index], *inner.operands, *self.operands[index + 1 :]),
            tuple(lines),
            tuple(dict.fromkeys((*inner.helpers, *self.helpers))),
        )

    def reorder(self, sources: Sequence[int]) -> Formula:
        """The same over another operand list: operand i of this formula is operand ``sources[i]``
        of the new one (equal sources: one operand in several places)."""
        operands = [self.operands[sources.index(k)] for k in range(max(sources, default=-1) + 1)]
        lines = [
            replace(x, refs=tuple(r if r < 0 else sources[r] for r in x.refs)) for x in self.lines
        ]
        return replace(self, operands=tuple(operands), lines=tuple(lines))

    def function(self, name: str) -> str:
        """WGSL of ``fn name(x0, x1, ...)`` and the functions that it calls."""
        parameters = ", ".join(f"x{i}: {ELEMENT_TYPE[d]}" for i, d in enumerate(self.operands))
        text = [HELPERS[helper] for helper in self.helpers]
        text.append(f"fn {name}({parameters}) -> {ELEMENT_TYPE[self.dtype]} {{")
        for j, line in enumerate(self.lines):
            names = [f"x{ref}" if ref >= 0 else f"t{~ref}" for ref in line.refs]
            text.append(f"    let t{j} = {line.text.format(*names)};")
        result = f"t{len(self.lines) - 1}" if self.lines else "x0"
        return "\n".join([*text, f"    return {result};", "}"])


def formula_of(call: OpCall) -> tuple[Formula, list[Value]] | None:
    """The formula of a pointwise call (whose tensors are Values) and its operands; None for other
    calls. The call must be supported."""
    entry = POINTWISE.get(call.op)
    if entry is None:
        return None
    dtype = entry.compute_dtype(call)
    values: list[Value] = []
    refs: list[int] = []
    names: dict[str, str] = {}
    for name in entry.operands:
        operand = number_in(call[name])
        if isinstance(operand, Value):
            if operand not in values:
                values.append(operand)
            target = DType.BOOL if name == "condition" else dtype
            names[name] = convert(f"{{{len(refs)}}}", operand.dtype, target)
            refs.append(values.index(operand))
        else:
            names[name] = literal(operand, dtype)
    text = entry.expression if isinstance(entry.expression, str) else entry.expression(call)
    line = Line(call.outputs[0].dtype, text.format(**names), tuple(refs))
    helpers = (entry.helper,) if entry.helper else ()
    return Formula(tuple(v.dtype for v in values), (line,), helpers), values
