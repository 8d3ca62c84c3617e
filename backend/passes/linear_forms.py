"""How the exporter writes a linear layer: what passes look for, whatever its weight is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.symbolic import product

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


def transposed(index: ChainIndex, value: Any) -> Any:
    """w when ``value`` is the matrix w transposed, else None."""
    call = index.made_by(value, *_TRANSPOSED)
    if call is None or value.rank != 2:
        return None
    if "permute" in call.op and [d % 2 for d in call["dims"]] != [1, 0]:
        return None
    if "transpose" in call.op and (call["dim0"] - call["dim1"]) % 2 == 0:
        return None
    return call["self"]


def linear_parts(
    index: ChainIndex,
    call: OpCall,
    matrix: Callable[[ChainIndex, Any], Any] = transposed,
) -> tuple[Value, Value, Value | None] | None:
    """(x [..., K], weight [N, K], bias [N] or None) of a linear layer, None for another call.
    ``matrix`` finds the weight of the second factor of an mm or addmm."""
    bias: Any = None
    if call.op == "aten.linear.default":
        x, weight, bias = call["input"], call["weight"], call.args.get("bias")
    elif call.op == "aten.mm.default":
        x, weight = call["self"], matrix(index, call["mat2"])
    elif call.op == "aten.addmm.default":
        if call.args.get("alpha", 1) != 1 or call.args.get("beta", 1) != 1:
            return None
        x, weight, bias = call["mat1"], matrix(index, call["mat2"]), call["self"]
    else:
        return None
    if weight is None or weight.rank != 2:
        return None
    if bias is not None and bias.shape != (weight.shape[0],):
        return None
    return x, weight, bias


def same_rows(a: Value, b: Value) -> bool:
    """Whether two values of one dtype have as many rows of one length."""
    if not a.rank or not b.rank or a.dtype is not b.dtype:
        return False
    return a.shape[-1] == b.shape[-1] and product(a.shape[:-1]) == product(b.shape[:-1])


def without_views(index: ChainIndex, x: Value) -> Value:
    """What ``x`` is a view of, as long as rows stay rows."""
    while (call := index.made_by(x, *VIEWS)) is not None:
        source = call["self"]
        if not same_rows(source, x) or source in index.versions:
            break
        x = source
    return x
