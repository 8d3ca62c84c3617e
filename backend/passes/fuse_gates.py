"""Two matmuls and what joins them, such as SwiGLU, in one."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.linears import (
    Weights,
    fits_epilogue,
    formula_of_linear,
    is_plain,
    joined,
    linear_of,
)
from executorch_wgpu.backend.passes.pointwise_of import merged, pointwise_of
from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin


def fuse_gates(chain: OpChain) -> None:
    """
    Before, SwiGLU (Shazeer 2020) for one, silu(x w1) * (x w3), after ``fuse_pointwise``::

        x, w1 --linear--+
        x, w3 --linear--pointwise--> y

    After, with the rows of w1 and w3 in turn::

        x, [w1 | w3], formula --linear (pairs)--> y

    Each sum has no other reader, each weight neither, and biases are constants. The kernels
    compute both sums of an element side by side: half the dispatches, and x is read once.
    """
    index, weights = ChainIndex(chain), Weights(chain)
    replaced: dict[int, list[OpCall]] = {}
    for call in chain.calls:
        found = pointwise_of(index, call)
        if found is None:
            continue
        formula, operands = found
        (out,) = call.outputs
        layers = [
            layer
            for value in operands
            if (layer := linear_of(index, value)) is not None
            and id(layer) not in replaced
            and index.only_user(value) is call
            and value.shape == out.shape
            and is_plain(layer)
        ]
        if len(layers) != 2 or not all(fits_epilogue(value, out) for value in operands):
            continue
        one, two = layers
        both = [one["weight"], two["weight"]]
        if one["x"] is not two["x"] or both[0].shape != both[1].shape:
            continue
        if both[0].dtype is not both[1].dtype or not weights.are_free(both):
            continue
        sums = [layer.outputs[0] for layer in layers]
        inner = {layer.outputs[0]: formula_of_linear(layer) for layer in layers}
        formula, values = merged(formula, operands, inner, sums)
        args = {
            "x": one["x"],
            "weight": joined(both, alternate=True),
            "formula": formula,
            "operands": values[2:],
            "pairs": True,
        }
        origins = [layer.origin for layer in layers]
        path = Origin.of_several("", origins).module_path
        origin = Origin.of_several("gated_linear", [*origins, call.origin], path)
        gated = OpCall("wgpu.linear", args, (out,), origin)
        if registry.unsupported_reason(gated) is None:
            replaced |= {id(layer): [] for layer in layers}
            replaced[id(call)] = [gated]
    replace_calls(chain, replaced)
