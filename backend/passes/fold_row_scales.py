"""Scales that a model multiplies with after a product over integers, as scales of the weight."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.linear_forms import VIEWS
from executorch_wgpu.backend.passes.quantized import CASTS
from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.halves import is_float


def fold_row_scales(chain: OpChain) -> None:
    """
    Before, as torchao's int8 weights and ExecuTorch's ``-qmode int8`` arrive::

        x, packed w (all scales 1) --wgpu.linear_q--+
        s: a constant [N] --------------------------mul--> y

    After, where nobody else reads the product::

        x, packed w (scales s) --wgpu.linear_q--> y

    The layer is then plain again: it may be joined with others, and what follows fused with it.
    """
    index = ChainIndex(chain)
    replaced: dict[int, list[OpCall]] = {}
    for call in chain.calls:
        if call.op != "wgpu.linear_q" or call["formula"] is not None or not _has_unit_scales(call):
            continue
        (total,) = call.outputs
        user = index.only_user(total)
        if user is None or user.op != "aten.mul.Tensor" or user.outputs[0].shape != total.shape:
            continue
        factor = user["other"] if user["self"] is total else user["self"]
        factor = _row_vector(index, factor, call["scales"].shape[0])
        if factor is None:
            continue
        content = factor.constant.detach().float().reshape(-1, 1)
        scales = Value(call["scales"].dtype, tuple(content.shape), factor.name, content)
        origin = Origin.of_several("linear", [call.origin, user.origin], call.origin.module_path)
        folded = OpCall("wgpu.linear_q", {**call.args, "scales": scales}, user.outputs, origin)
        if registry.unsupported_reason(folded) is None:
            replaced |= {id(call): [], id(user): [folded]}
    replace_calls(chain, replaced)


def _has_unit_scales(call: OpCall) -> bool:
    """Whether the weight is its integers: one f32 scale of 1 for each row."""
    scales = call["scales"].constant
    rows = call["group"] >= call["k"] and call["zeros"] is None
    whole = hasattr(scales, "element_size") and scales.element_size() == 4
    return rows and whole and bool((scales == 1).all())


def _row_vector(index: ChainIndex, value: object, n: int) -> Value | None:
    """The constant of ``n`` elements that ``value`` [..., n] is, or is a view of, or is rounded
    from to 16 bits."""
    if not isinstance(value, Value) or value.shape[-1:] != (n,):
        return None
    while value.constant is None and (view := index.made_by(value, *VIEWS, *CASTS)) is not None:
        if not is_float(value.dtype):
            return None
        value = view["self"]
    if value.constant is None or value in index.versions or value.constant.numel() != n:
        return None
    return value if is_float(value.dtype) else None
