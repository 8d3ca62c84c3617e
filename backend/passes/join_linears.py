"""Linear layers over one input, such as q, k and v, as one matmul."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.linears import (
    LINEARS,
    Weights,
    is_plain,
    joined,
    joined_rows,
    kind_of,
    rows_of,
)
from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.halves import is_half
from executorch_wgpu.serialization.dispatch_list import DType


def join_linears(chain: OpChain) -> None:
    """
    Before::

        x, wq (, bq) --linear--> q
        x, wk (, bk) --linear--> k
        x, wv (, bv) --linear--> v

    After, with the rows of the weights one after another::

        x, [wq wk wv] (, [bq bk bv]) --linear--split--> q, k, v

    The parts are views. Weights and biases are constants that nobody else reads; all layers have
    a bias or none has. Results are f32: one of 16 bits that only goes into a cache is rounded
    there.
    """
    index, weights = ChainIndex(chain), Weights(chain)
    groups: dict[tuple[object, ...], list[OpCall]] = {}
    for call in chain.calls:
        if call.op not in LINEARS or call["pairs"] or not is_plain(call):
            continue
        if not weights.are_free([*rows_of(call).values(), *call["operands"]]):
            continue
        (out,) = call.outputs
        if out.dtype is not DType.F32 and not _widened(index, out):
            continue
        key = (kind_of(call), len(call["operands"]), out.shape[:-1])
        groups.setdefault(key, []).append(call)
    replaced: dict[int, list[OpCall]] = {}
    for layers in groups.values():
        if len(layers) < 2:
            continue
        first, outs = layers[0], tuple(layer.outputs[0] for layer in layers)
        widths = [out.shape[-1] for out in outs]
        origin = Origin.of_several("linear", [layer.origin for layer in layers])
        total = Value(outs[0].dtype, (*outs[0].shape[:-1], sum(widths)), "joined")
        biases = [[layer["operands"][i] for layer in layers] for i in range(len(first["operands"]))]
        args = {
            **first.args,
            **joined_rows(layers),
            "operands": [joined(bias) for bias in biases],
        }
        linear = OpCall(first.op, args, (total,), origin)
        if registry.unsupported_reason(linear) is not None:
            continue
        split = {"self": total, "split_sizes": widths, "dim": -1}
        replaced |= {id(layer): [] for layer in layers}
        replaced[id(first)] = [
            linear,
            OpCall("aten.split_with_sizes_copy.default", split, outs, origin),
        ]
    replace_calls(chain, replaced)


def _widened(index: ChainIndex, value: Value) -> bool:
    """Make ``value`` and its views f32 where all that becomes of them is to be stored in a cache,
    which rounds once more what was rounded; whether they are."""
    found: list[Value] = []
    queue = [value]
    while queue:
        one = queue.pop()
        found.append(one)
        if not is_half(one.dtype) or one in index.leaving:
            return False
        for user in index.users.get(one, []):
            entry = registry.lowering_of(user.op)
            if entry is not None and entry.views and len(user.input_values()) == 1:
                queue += user.outputs
            elif user.op != "llama.update_cache.default" or user["cache"] is one:
                return False
    for one in found:
        one.dtype = DType.F32
    return True
