"""Drop calls that change nothing."""

from __future__ import annotations

from executorch_wgpu.backend.passes.rewrite import replace_values
from executorch_wgpu.ops.call import OpCall, OpChain, Value

_SAME = (
    "aten.alias_copy.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.lift_fresh_copy.default",
    "aten.clone.default",
    "dim_order_ops._clone_dim_order.default",
    "aten._to_copy.default",
    "dim_order_ops._to_dim_order_copy.default",
    "aten.view_copy.default",
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.expand_copy.default",
    "aten.expand.default",
)
_PERMUTES = ("aten.permute_copy.default", "aten.permute.default")
_SLICES = ("aten.slice_copy.Tensor", "aten.slice.Tensor")


def drop_views(chain: OpChain) -> None:
    """
    Before, each with the elements, dtype and shape of x::

        x --alias_copy, clone, _to_copy, view_copy--> y
        x --cat([x])--> y
        x --slice(whole dimension)--> y
        x --permute--permute(and back)--> y

    After: readers of y read x. Permutations of permutations become one.
    """
    mapping: dict[Value, Value] = {}
    permuted: dict[Value, OpCall] = {}
    for call in chain.calls:
        if call.mutates or len(call.outputs) != 1:
            continue
        if call.op in _PERMUTES:
            _merge(call, permuted, mapping)
        source = _unchanged(call)
        if source is not None and _alike(source, call.outputs[0]):
            mapping[call.outputs[0]] = source
        elif call.op in _PERMUTES:
            permuted[call.outputs[0]] = call
    dropped = {id(value) for value in mapping}
    chain.calls = [c for c in chain.calls if not any(id(v) in dropped for v in c.outputs)]
    replace_values(chain, mapping)


def _merge(call: OpCall, permuted: dict[Value, OpCall], mapping: dict[Value, Value]) -> None:
    """A permutation of a permutation as one of what that one permutes."""
    source = call["self"]
    while source in mapping:
        source = mapping[source]
    inner = permuted.get(source)
    if inner is not None:
        rank = len(call["dims"])
        dims = [inner["dims"][d % rank] % rank for d in call["dims"]]
        call.args = {**call.args, "self": inner["self"], "dims": dims}


def _unchanged(call: OpCall) -> Value | None:
    """The operand that the call may pass on as it is."""
    if call.op in _SAME:
        found = call["self"]
    elif call.op == "aten.cat.default" and len(call["tensors"]) == 1:
        found = call["tensors"][0]
    elif call.op in _SLICES and call["step"] == 1 and call["start"] in (None, 0):
        found = call["self"]
    elif call.op in _PERMUTES:
        dims, rank = call["dims"], call.outputs[0].rank
        found = call["self"] if [d % rank for d in dims] == list(range(rank)) else None
    else:
        found = None
    return found if isinstance(found, Value) else None


def _alike(source: Value, result: Value) -> bool:
    return source.dtype is result.dtype and source.shape == result.shape
