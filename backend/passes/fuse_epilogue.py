"""Pointwise operators behind a matmul, such as a residual, in its epilogue."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.linears import (
    as_many_rows,
    fits_epilogue,
    formula_of_linear,
    linear_of,
)
from executorch_wgpu.backend.passes.pointwise_of import merged, pointwise_of
from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.serialization.dispatch_list import DType


def fuse_epilogue(chain: OpChain) -> None:
    """
    Before, a residual connection for one::

        x, w --linear--+
        h -------------add--> y

    After::

        x, w, formula, h --linear--> y

    The sum has no other reader; the other operands have y's shape or are vectors of its last
    size. Where two matmuls meet in one operator, the later one takes it in.
    """
    index = ChainIndex(chain)
    replaced: dict[int, list[OpCall]] = {}
    #: Outputs of fused layers -> the layer, so that the next operator joins, too.
    made: dict[Value, OpCall] = {}
    for call in chain.calls:
        found = pointwise_of(index, call)
        if found is None:
            continue
        formula, operands = found
        (out,) = call.outputs
        candidates = [
            layer
            for value in operands
            if (layer := made.get(value) or linear_of(index, value)) is not None
            and index.only_user(value) is call
            and as_many_rows(value, out)
            and all(fits_epilogue(other, out) for other in operands if other is not value)
        ]
        if not candidates:
            continue
        layer = max(candidates, key=lambda one: index.position[id(index.producer[one.outputs[0]])])
        (total,) = layer.outputs
        wider, values = merged(formula, operands, {total: formula_of_linear(layer)}, [total])
        origin = Origin.of_several("linear", [layer.origin, call.origin], layer.origin.module_path)
        args = {**layer.args, "formula": wider, "operands": values[1:]}
        fused = OpCall(layer.op, args, (out,), origin)
        if registry.unsupported_reason(fused) is None:
            replaced[id(index.producer[total])] = []
            replaced[id(call)] = [fused]
            if out.dtype is DType.F32:
                made[out] = fused
    replace_calls(chain, replaced)
