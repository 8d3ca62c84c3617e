"""Reductions of any dimensions: sum, mean, amax, amin; where the largest is: argmax, argmin."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Bind, Builder, linear_grid
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import FLOATS, codec, is_half
from executorch_wgpu.ops.registry import all_of, only_dtypes, register
from executorch_wgpu.ops.symbolic import lower_bound, product
from executorch_wgpu.ops.tensor import Shape, Tensor, contiguous_strides

WORKGROUP = 128


def _dims(call: OpCall, rank: int) -> list[int]:
    dims = call.args.get("dim")  # absent: everything
    if dims is None or dims == []:
        return list(range(rank))
    return sorted(d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims]))


def _reason(call: OpCall) -> str | None:
    value = call["self"]
    if value.rank == 0:
        return "a reduction of a 0-dim tensor"
    if lower_bound(product(value.shape[d] for d in _dims(call, value.rank))) < 1:
        return "a reduction over an empty dimension"
    return None


def _argmax_reason(call: OpCall) -> str | None:
    dtype = call["self"].dtype
    return None if dtype in FLOATS else f"{dtype.name.lower()} is not supported here"


def _rows(b: Builder, call: OpCall) -> Tensor:
    """The argument as [rows, elements of a row], the neighbours of a row side by side."""
    x: Tensor = call["self"]
    dims = _dims(call, x.rank)
    keep = [d for d in range(x.rank) if d not in dims]
    rows = x.permute([*keep, *dims])
    shape: Shape = (product(x.shape[d] for d in keep), product(x.shape[d] for d in dims))
    flat = rows.try_view(shape)
    if flat is None or flat.strides[1] != 1:
        flat = materialize(b, rows).try_view(shape)
        assert flat is not None  # a contiguous tensor has every view
    return flat


@register(
    "aten.mean.dim",
    "aten.mean.default",
    "aten.sum.default",
    "aten.sum.dim_IntList",
    "aten.amax.default",
    "aten.amin.default",
    supports=all_of(only_dtypes(FLOATS), _reason),
    converts=True,
)
def reduce(b: Builder, call: OpCall) -> Tensor:
    """Any set of dimensions: they are permuted to the end, and the rows copied if that leaves
    them scattered."""
    flat = _rows(b, call)
    count, row = flat.shape
    kind = call.op.split(".")[1]
    y = b.empty((count,), call.outputs[0].dtype, kind)
    b.run(
        b.dispatch(
            "elementwise/reduce.wgsl",
            kind,
            reads={"x": flat},
            writes={"y": Bind(y, "atomic<u32>") if is_half(y.dtype) else y},
            params={
                "ROWS": count,
                "DIM": row,
                "ROW_STRIDE": flat.strides[0],
                "START": flat.offset,
            },
            consts={
                "KIND": kind,
                "X": codec(flat.dtype),
                "Y": codec(y.dtype),
            },
            grid=linear_grid(count),
            workgroup=(WORKGROUP,),
            workgroup_bytes=4 * WORKGROUP,
            flops=count * row,
        )
    )
    shape = call.outputs[0].shape
    return y.with_layout(shape, contiguous_strides(shape))


@register(
    "aten.argmax.default",
    "aten.argmin.default",
    supports=all_of(_argmax_reason, _reason),
    converts=True,
)
def argmax(b: Builder, call: OpCall) -> Tensor:
    """One dimension, or all of them as one. The first of equals; NaN is no number to find."""
    flat = _rows(b, call)
    kind = call.op.split(".")[1]
    shape = call.outputs[0].shape
    y = b.empty(shape, call.outputs[0].dtype, kind)
    b.run(
        b.dispatch(
            "elementwise/argmax.wgsl",
            kind,
            reads={"x": flat},
            writes={"y": y},
            params={
                "ROWS": flat.shape[0],
                "DIM": flat.shape[1],
                "ROW_STRIDE": flat.strides[0],
                "START": flat.offset,
            },
            consts={"KIND": kind, "X": codec(flat.dtype)},
            grid=linear_grid(flat.shape[0]),
            workgroup=(WORKGROUP,),
            workgroup_bytes=8 * WORKGROUP,
            flops=product(flat.shape),
        )
    )
    return y
