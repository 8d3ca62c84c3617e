"""Chains of pointwise operators in one dispatch."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.pointwise_of import merged, pointwise_of
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.elementwise.formula import Formula
from executorch_wgpu.ops.halves import is_half

#: Operands of one dispatch: a kernel binds eight buffers.
MAX_OPERANDS = 6


def fuse_pointwise(chain: OpChain) -> None:
    """
    Before::

        x --sigmoid--+
        x -----------mul--+
        y ----------------mul--> z

    After, where each result between has one reader and z's shape::

        x, y, formula --wgpu.pointwise--> z

    A smaller result (one number a row, say) stays apart: it would be computed again for each
    element of z. So does one of 16 bits, which is rounded where it is stored.
    """
    index = ChainIndex(chain)
    #: Value -> the formula that computes it, its operands, and the calls that it stands for.
    known: dict[Value, tuple[Formula, list[Value], list[OpCall]]] = {}
    inlined: set[int] = set()
    fused: dict[int, OpCall] = {}
    for call in chain.calls:
        found = pointwise_of(index, call)
        if found is None:
            continue
        formula, operands = found
        (out,) = call.outputs
        calls = [call]
        for value in list(operands):
            if value not in known or value.shape != out.shape or is_half(value.dtype):
                continue
            if index.only_user(value) is not call:
                continue
            part, sources, inner = known[value]
            wider, both = merged(formula, operands, {value: (part, sources)})
            if len(both) > MAX_OPERANDS:
                continue
            formula, operands, calls = wider, both, [*inner, *calls]
            inlined.add(id(index.producer[value]))
        known[out] = formula, operands, calls
        if len(calls) > 1:
            fused[id(call)] = _fused(call, formula, operands, calls)
    chain.calls = [fused.get(id(c), c) for c in chain.calls if id(c) not in inlined]


def _fused(call: OpCall, formula: Formula, operands: list[Value], calls: list[OpCall]) -> OpCall:
    names = "_".join(dict.fromkeys(one.op.split(".")[1] for one in calls))
    args = {"formula": formula, "operands": operands, "name": names}
    origin = Origin.of_several("pointwise", [one.origin for one in calls])
    return OpCall("wgpu.pointwise", args, call.outputs, origin)
