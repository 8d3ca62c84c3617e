"""Matmuls with a weight in one form, ``wgpu.linear``."""

from __future__ import annotations

from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.linear_forms import (
    VIEWS,
    linear_parts,
    same_rows,
    without_views,
)
from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.elementwise.formula import Formula, Line
from executorch_wgpu.serialization.dispatch_list import DType

#: Linear layers that fuse_quantized made.
_PACKED = ("wgpu.linear_q", "wgpu.linear_8da")

#: sum + bias
ADD = Formula((DType.F32, DType.F32), (Line(DType.F32, "({0} + {1})", (0, 1)),))


def make_linear(chain: OpChain) -> None:
    """
    Before, as the exporter decomposes a linear layer (``w`` [N, K] a constant)::

        x --view--------+
        w --permute-----mm, or addmm(bias)--view--> y
        x, w, bias -----linear--------------------> y

    After::

        x, w, formula (of the sum and the bias) --wgpu.linear--> y

    The views are taken in where they keep the last dimension, around linear layers over packed
    weights (``fuse_quantized``), too. That is no fusion yet: passes that follow find one form to
    work on. Matmuls without a constant weight, with other scalars than 1, or with another bias than
    a vector stay.
    """
    index = ChainIndex(chain)
    replaced: dict[int, list[OpCall]] = {}
    for call in chain.calls:
        parts = _parts(index, call)
        if parts is None:
            continue
        op, args = parts
        args["x"] = without_views(index, args["x"])
        out, view = call.outputs[0], None
        user = index.only_user(out)
        if user is not None and user.op in VIEWS and same_rows(user.outputs[0], out):
            out, view = user.outputs[0], user
        origin = Origin.of_several("linear", [call.origin])
        linear = OpCall(op, args, (out,), origin)
        if registry.unsupported_reason(linear) is not None:
            continue
        replaced[id(call)] = [linear]
        if view is not None:
            replaced[id(view)] = []
    replace_calls(chain, replaced)


def bias_arguments(bias: Value | None) -> dict[str, Any]:
    """The arguments of a linear layer that say what becomes of its sums: a bias is added."""
    operands = [] if bias is None else [bias]
    return {"formula": ADD if operands else None, "operands": operands, "pairs": False}


def _parts(index: ChainIndex, call: OpCall) -> tuple[str, dict[str, Any]] | None:
    """A linear layer as (operator, arguments)."""
    if call.op in _PACKED:
        return call.op, dict(call.args)
    parts = linear_parts(index, call)
    if parts is None:
        return None
    x, weight, bias = parts
    if weight.constant is None or weight in index.versions:
        return None
    return "wgpu.linear", {"x": x, "weight": weight, **bias_arguments(bias)}
