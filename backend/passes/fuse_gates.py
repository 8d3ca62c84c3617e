"""Two matmuls and what joins them, such as SwiGLU, in one."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.linears import (
    Weights,
    fits_epilogue,
    formula_of_linear,
    is_plain,
    joined_rows,
    kind_of,
    linear_of,
    rows_of,
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
        if kind_of(one) != kind_of(two) or one["weight"].shape != two["weight"].shape:
            continue
        if not weights.are_free([*rows_of(one).values(), *rows_of(two).values()]):
            continue
        sums = [layer.outputs[0] for layer in layers]
        inner = {layer.outputs[0]: formula_of_linear(layer) for layer in layers}
        formula, values = merged(formula, operands, inner, sums)
        args = {
            **one.args,
            **joined_rows(layers, alternate=True),
            "formula": formula,
            "operands": values[2:],
            "pairs": True,
        }
        origins = [layer.origin for layer in layers]
        path = Origin.of_several("", origins).module_path
        origin = Origin.of_several("gated_linear", [*origins, call.origin], path)
        gated = OpCall(one.op, args, (out,), origin)
        if registry.unsupported_reason(gated) is None:
            replaced |= {id(layer): [] for layer in layers}
            replaced[id(call)] = [gated]
    replace_calls(chain, replaced)
