"""An RMS norm and the linear layer behind it."""

from __future__ import annotations

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.rewrite import replace_calls
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Origin
from executorch_wgpu.serialization.dispatch_list import DType

_LINEARS = ("wgpu.linear", "wgpu.linear_q")


def fuse_norm(chain: OpChain) -> None:
    """
    Before::

        x, g --rms_norm--> y
        y, w --linear--> z

    After::

        x, g, w --linear--> z

    The normed row has no other reader and is not rounded. For one row the kernel adds up its
    squares along with the products: each workgroup does, which costs less than a dispatch. For more
    rows the norm stays a dispatch of its own, see ``ops/matmul/emit.py``.
    """
    index = ChainIndex(chain)
    replaced: dict[int, list[OpCall]] = {}
    for call in chain.calls:
        if call.op not in _LINEARS:
            continue
        norm = index.made_by(call["x"], "wgpu.rms_norm")
        if norm is None or index.only_user(call["x"]) is not call:
            continue
        if call["x"].dtype is not DType.F32 or index.reads_state(norm):
            continue
        origin = Origin.of_several(
            call.origin.op, [norm.origin, call.origin], call.origin.module_path
        )
        args = {**call.args, "x": norm["x"], "norm_weight": norm["weight"], "norm_eps": norm["eps"]}
        fused = OpCall(call.op, args, call.outputs, origin)
        if registry.unsupported_reason(fused) is None:
            replaced |= {id(norm): [], id(call): [fused]}
    replace_calls(chain, replaced)
