"""Pointwise calls as formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.formula import Formula, formula_of
from executorch_wgpu.ops.halves import is_half
from executorch_wgpu.serialization.dispatch_list import DType


def pointwise_of(index: ChainIndex, call: OpCall) -> tuple[Formula, list[Value]] | None:
    """The formula of a call (``wgpu.pointwise`` or an operator of the table) and its operands;
    None for other calls, and for those that no fusion should take: int64, comparisons of 16 bits
    (with numbers rounded to them), and operands that are states (see ``ChainIndex.reads_state``).
    """
    if call.op == "wgpu.pointwise":
        return call["formula"], list(call["operands"])
    values = [*(v for v in call.input_values() if v.rank), *call.outputs]
    if any(value.dtype is DType.I64 for value in values):
        return None
    if call.outputs[0].dtype is DType.BOOL and any(is_half(v.dtype) for v in values):
        return None
    if index.reads_state(call) or registry.unsupported_reason(call) is not None:
        return None
    return formula_of(call)


def merged(
    formula: Formula,
    operands: Sequence[Value],
    inner: Mapping[Value, tuple[Formula, Sequence[Value]]],
    first: Sequence[Value] = (),
) -> tuple[Formula, list[Value]]:
    """``formula`` with the operands in ``inner`` computed by formulas of their own. Each operand is
    there once, those in ``first`` before the others."""
    values = list(operands)
    for position in reversed(range(len(operands))):
        if operands[position] in inner:
            part, sources = inner[operands[position]]
            formula = formula.replace_operand(position, part)
            values[position : position + 1] = sources
    order = list(dict.fromkeys([*first, *values]))
    return formula.reorder([order.index(value) for value in values]), order
