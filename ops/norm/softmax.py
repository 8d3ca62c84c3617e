"""Softmax and log-softmax over any one dimension."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Bind, Builder, linear_grid
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.halves import FLOATS, codec, is_half
from executorch_wgpu.ops.norm.rms_norm import rows_of
from executorch_wgpu.ops.registry import all_of, only_dtypes, register
from executorch_wgpu.ops.tensor import Tensor

WORKGROUP = 128


def _reason(call: OpCall) -> str | None:
    return "softmax of a 0-dim tensor" if call["self"].rank == 0 else None


@register(
    "aten._softmax.default",
    "aten._log_softmax.default",
    supports=all_of(only_dtypes(FLOATS), _reason),
    converts=True,
)
def softmax(b: Builder, call: OpCall) -> Tensor:
    """``self`` [...], ``dim``; the dimension is brought to the end by a view, and back."""
    x: Tensor = call["self"]
    dim = call["dim"] % x.rank
    order = [*(d for d in range(x.rank) if d != dim), dim]
    rows = rows_of(b, x.permute(order))
    count, length = rows.shape
    out = b.empty([x.shape[d] for d in order], call.outputs[0].dtype, "softmax")
    # Rows of an odd length share words of 16-bit results.
    alone = is_half(out.dtype) and length % 2 != 0
    name = call.op.split(".")[1].lstrip("_")
    b.run(
        b.dispatch(
            "norm/softmax.wgsl",
            name,
            reads={"x": rows},
            writes={"y": Bind(out, "atomic<u32>") if alone else out},
            params={
                "ROWS": count,
                "DIM": length,
                "ROW_STRIDE": rows.strides[0],
                "START": rows.offset,
            },
            consts={
                "LOG": name == "log_softmax",
                "X": codec(x.dtype),
                "Y": codec(out.dtype),
                "ALONE": alone,
            },
            grid=linear_grid(count),
            workgroup=(WORKGROUP,),
            workgroup_bytes=4 * WORKGROUP,
        )
    )
    return out.permute([order.index(d) for d in range(x.rank)])
