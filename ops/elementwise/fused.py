"""``wgpu.pointwise``: several pointwise operators in one dispatch, made by a graph pass."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.formula import Formula
from executorch_wgpu.ops.elementwise.pointwise import ELEMENT_TYPE, emit_pointwise
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType


def _reason(call: OpCall) -> str | None:
    formula: Formula = call["formula"]
    dtypes = [value.dtype for value in call["operands"]]
    if len(dtypes) != len(formula.operands) or any(
        ELEMENT_TYPE[a] != ELEMENT_TYPE[b] for a, b in zip(dtypes, formula.operands, strict=True)
    ):
        return "a formula of other operands"
    found, wanted = formula.dtype, call.outputs[0].dtype
    if found is not wanted and not (is_float(found) and is_float(wanted)):
        return f"a formula of type {found.name.lower()}"
    if wanted is DType.I64:
        return "int64 arithmetic: the GPU computes in 32 bits"
    return None


@register("wgpu.pointwise", supports=_reason, converts=True)
def pointwise(b: Builder, call: OpCall) -> Tensor:
    """``formula`` (a Formula) of ``operands``, which broadcast to the output; ``name`` goes into
    the label. One dispatch."""
    value = call.outputs[0]
    operands: list[Tensor] = call["operands"]
    out = b.empty(value.shape, value.dtype, call["name"])
    arguments = ", ".join(f"a{i}" for i in range(len(operands)))
    helper = call["formula"].function("formula")
    emit_pointwise(b, call["name"], f"formula({arguments})", operands, out, helper=helper)
    return out
