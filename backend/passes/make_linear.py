"""Matmuls with a weight in one form, ``wgpu.linear``."""

from __future__ import annotations

from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.elementwise.formula import Formula, Line
from executorch_wgpu.ops.symbolic import product
from executorch_wgpu.serialization.dispatch_list import DType

VIEWS = (
    "aten.view_copy.default",
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.unsqueeze_copy.default",
    "aten.squeeze_copy.dims",
    "aten.squeeze_copy.dim",
)
_TRANSPOSED = (
    "aten.permute_copy.default",
    "aten.permute.default",
    "aten.t_copy.default",
    "aten.t.default",
    "aten.transpose_copy.int",
    "aten.transpose.int",
)

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
        args["x"] = _whole(index, args["x"])
        out, view = call.outputs[0], None
        user = index.only_user(out)
        if user is not None and user.op in VIEWS and _same_rows(user.outputs[0], out):
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
    bias: Any = None
    if call.op in _PACKED:
        return call.op, dict(call.args)
    if call.op == "aten.linear.default":
        x, weight, bias = call["input"], call["weight"], call.args.get("bias")
    elif call.op == "aten.mm.default":
        x, weight = call["self"], _transposed(index, call["mat2"])
    elif call.op == "aten.addmm.default":
        if call.args.get("alpha", 1) != 1 or call.args.get("beta", 1) != 1:
            return None
        x, weight, bias = call["mat1"], _transposed(index, call["mat2"]), call["self"]
    else:
        return None
    if weight is None or weight.rank != 2 or weight.constant is None or weight in index.versions:
        return None
    if bias is not None and (bias.rank != 1 or bias.shape[0] != weight.shape[0]):
        return None
    return "wgpu.linear", {"x": x, "weight": weight, **bias_arguments(bias)}


def _transposed(index: ChainIndex, value: Value) -> Value | None:
    """w when ``value`` is w transposed."""
    call = index.made_by(value, *_TRANSPOSED)
    if call is None or value.rank != 2:
        return None
    if "permute" in call.op and [d % 2 for d in call["dims"]] != [1, 0]:
        return None
    if "transpose" in call.op and (call["dim0"] - call["dim1"]) % 2 == 0:
        return None
    return call["self"]


def _whole(index: ChainIndex, x: Value) -> Value:
    """What ``x`` is a view of, as long as rows stay rows."""
    while (call := index.made_by(x, *VIEWS)) is not None:
        source = call["self"]
        if not _same_rows(source, x) or source in index.versions:
            break
        x = source
    return x


def _same_rows(a: Value, b: Value) -> bool:
    if not a.rank or not b.rank or a.dtype is not b.dtype:
        return False
    return a.shape[-1] == b.shape[-1] and product(a.shape[:-1]) == product(b.shape[:-1])
