"""Views: new strides over the same storage, a copy only where strides cannot say it."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.bytes import BYTES, TARGETS
from executorch_wgpu.ops.elementwise.pointwise import emit_copy, materialize
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.registry import all_of, register
from executorch_wgpu.ops.symbolic import (
    Scalar,
    Sym,
    less,
    less_equal,
    lower_bound,
    minimum,
    product,
)
from executorch_wgpu.ops.tensor import Tensor, contiguous_strides, view_strides
from executorch_wgpu.serialization.dispatch_list import DType


def _same_numel(call: OpCall) -> str | None:
    """Sizes that are only equal at run time (a live product on one side) have no strides."""
    value, out = call["self"], call.outputs[0]
    if product(value.shape) != product(out.shape):
        return f"{list(value.shape)} and {list(out.shape)} are not provably of one size"
    if view_strides(value.shape, contiguous_strides(value.shape), out.shape) is None:
        return f"no strides for {list(out.shape)} over {list(value.shape)} can be proven"
    return None


@register(
    "aten.view_copy.default",
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.unsqueeze_copy.default",
    "aten.unsqueeze.default",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    "aten.squeeze.dims",
    supports=_same_numel,
    views=True,
)
def view(b: Builder, call: OpCall) -> Tensor:
    """Same elements in row-major order under another shape (the output's, all sizes known)."""
    x: Tensor = call["self"]
    shape = call.outputs[0].shape
    found = x.try_view(shape)
    if found is None:
        found = materialize(b, x, "view").try_view(shape)
        if found is None:
            raise AssertionError(f"{x.shape} has no view {shape}")
    return found


@register("aten.permute_copy.default", "aten.permute.default", views=True)
def permute(b: Builder, call: OpCall) -> Tensor:
    """Dimensions reordered."""
    x: Tensor = call["self"]
    return x.permute([d % x.rank for d in call["dims"]])


@register("aten.transpose_copy.int", "aten.transpose.int", views=True)
def transpose(b: Builder, call: OpCall) -> Tensor:
    """Two dimensions exchanged."""
    x: Tensor = call["self"]
    dims = list(range(x.rank))
    if x.rank:
        first, second = call["dim0"] % x.rank, call["dim1"] % x.rank
        dims[first], dims[second] = dims[second], dims[first]
    return x.permute(dims)


@register("aten.t_copy.default", "aten.t.default", views=True)
def transpose_2d(b: Builder, call: OpCall) -> Tensor:
    """A matrix transposed; 0 and 1 dimensions as they are."""
    x: Tensor = call["self"]
    return x.permute(list(reversed(range(x.rank))))


@register("aten.expand_copy.default", "aten.expand.default", views=True)
def expand(b: Builder, call: OpCall) -> Tensor:
    """Broadcast with strides of 0."""
    return call["self"].expand(call.outputs[0].shape)


@register(
    "aten.alias_copy.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.lift_fresh_copy.default",
    views=True,
)
def alias(b: Builder, call: OpCall) -> Tensor:
    """The same tensor: values are in single-assignment form, so a view is as good as a copy."""
    return call["self"]


def _row_major(call: OpCall) -> str | None:
    """ExecuTorch's dim order must be the usual one: the last dimension varies fastest."""
    order = call.args.get("dim_order")
    if order is not None and list(order) != list(range(call["self"].rank)):
        return f"dim_order {list(order)}"
    layout = call.args.get("memory_format")
    if layout is not None and "contiguous" not in str(layout) and "preserve" not in str(layout):
        return f"memory format {layout}"
    if layout is not None and "channels" in str(layout):
        return f"memory format {layout}"
    return None


@register(
    "aten.clone.default",
    "dim_order_ops._clone_dim_order.default",
    supports=_row_major,
    views=True,
)
def clone(b: Builder, call: OpCall) -> Tensor:
    """See :func:`alias`; the copy is made where the value leaves or an older version is kept."""
    return call["self"]


def _castable(call: OpCall) -> str | None:
    source, target = call["self"].dtype, call.outputs[0].dtype
    if is_float(source) and target is DType.I64:
        return "float to int64: the GPU holds 32 bits"
    if target in BYTES and source not in BYTES:
        return f"{source.name.lower()} to {target.name.lower()}"
    if source in BYTES and target not in TARGETS:
        return f"{source.name.lower()} to {target.name.lower()}"
    return None


@register(
    "aten._to_copy.default",
    "dim_order_ops._to_dim_order_copy.default",
    supports=all_of(_row_major, _castable),
    bytes=True,
)
def to_copy(b: Builder, call: OpCall) -> Tensor:
    """Another dtype; int64 and int32 are stored alike."""
    x: Tensor = call["self"]
    value = call.outputs[0]
    if x.dtype is value.dtype:
        return x
    out = b.empty(value.shape, value.dtype, "to_copy")
    emit_copy(b, x, out, "to_copy")
    return out


@register("aten.copy.default")
def copy(b: Builder, call: OpCall) -> Tensor:
    """``src`` broadcast to the shape of ``self`` in its dtype; self's content is not read."""
    source: Tensor = call["src"]
    value = call.outputs[0]
    if source.dtype is value.dtype:
        return source.expand(value.shape)
    out = b.empty(value.shape, value.dtype, "copy")
    emit_copy(b, source, out)
    return out


# -- slices ------------------------------------------------------------------------------------


def _start(start: Scalar | None, size: Scalar) -> Scalar:
    """The first index of a slice: None is 0, a negative number counts from the end."""
    if start is None:
        return 0
    if not isinstance(start, Sym) and start < 0:
        start = start + size
    return minimum(start, size)


def _sliceable(call: OpCall) -> str | None:
    start = call["start"]
    size = call["self"].shape[call["dim"] % call["self"].rank]
    if isinstance(call["step"], Sym) or call["step"] < 1:
        return f"slice step {call['step']}"
    counted_back = start is not None and not isinstance(start, Sym) and start < 0
    if counted_back and isinstance(size, Sym) and lower_bound(start + size) < 0:
        # -3 of a size that may be 2 would start before the tensor.
        return f"slice start {start} of a live size {size}"
    return None


def sliced(b: Builder, x: Tensor, call: OpCall, length: Scalar) -> Tensor:
    """The part of ``x`` that ``call`` (dim, start, step) addresses, checked to lie inside."""
    dim = call["dim"] % x.rank
    size = x.shape[dim]
    start, step = _start(call["start"], size), call["step"]
    if isinstance(start, int) and start < 0:
        start = 0  # PyTorch clamps
    b.check(less_equal(0, start), "a slice starts at {0}, before the tensor", start)
    # Of an empty slice nothing is read, wherever it starts.
    past = start + (length - 1) * step + (1 if lower_bound(length) > 0 else 0)
    b.check(
        less_equal(past, size),
        "a slice from {0} of {1} elements reaches past dimension " + str(dim) + " of size {2}",
        start,
        length,
        size,
    )
    return x.slice(dim, start, length, step)


@register(
    "aten.slice_copy.Tensor",
    "aten.slice.Tensor",
    supports=_sliceable,
    views=True,
)
def slice_(b: Builder, call: OpCall) -> Tensor:
    """A range of one dimension; its length is the output's."""
    x: Tensor = call["self"]
    return sliced(b, x, call, call.outputs[0].shape[call["dim"] % x.rank])


@register(
    "aten.slice_scatter.default",
    supports=_sliceable,
    converts=True,
)
def slice_scatter(b: Builder, call: OpCall) -> Tensor:
    """``self`` with a range of one dimension replaced: the adapter declares the output to be the
    next version of ``self``, so this writes in place wherever no older version is read later."""
    x: Tensor = call["self"]
    source: Tensor = call["src"]
    part = sliced(b, x, call, source.shape[call["dim"] % x.rank])
    if source.storage is x.storage:
        source = _apart(b, source)
    emit_copy(b, source, part, "slice_scatter")
    return x


def _apart(b: Builder, x: Tensor) -> Tensor:
    """A copy in a storage of its own."""
    out = b.empty(x.shape, x.dtype, "apart")
    emit_copy(b, x, out, "copy_apart")
    return out


def _selectable(call: OpCall) -> str | None:
    if call["self"].rank == 0:
        return "select of a 0-dim tensor"
    return None


@register("aten.select_copy.int", "aten.select.int", supports=_selectable, views=True)
def select(b: Builder, call: OpCall) -> Tensor:
    """One index of a dimension."""
    x: Tensor = call["self"]
    dim = call["dim"] % x.rank
    index, size = call["index"], x.shape[dim]
    if not isinstance(index, Sym) and index < 0:
        index = index + size
    b.check(less_equal(0, index), "index {0} of a dimension of size {1}", index, size)
    b.check(less(index, size), "index {0} of a dimension of size {1}", index, size)
    return x.select(dim, index)


@register(
    "aten.split_with_sizes_copy.default",
    "aten.split_with_sizes.default",
    views=True,
)
def split_with_sizes(b: Builder, call: OpCall) -> tuple[Tensor, ...]:
    """Consecutive ranges of one dimension."""
    return _consecutive(call["self"], call["dim"], call.outputs)


@register(
    "aten.split_copy.Tensor",
    "aten.split.Tensor",
    "aten.chunk.default",
    views=True,
)
def split(b: Builder, call: OpCall) -> tuple[Tensor, ...]:
    """Ranges of equal size, the last one shorter."""
    return _consecutive(call["self"], call["dim"], call.outputs)


def _consecutive(x: Tensor, dim: int, outputs: tuple[Value, ...]) -> tuple[Tensor, ...]:
    dim = dim % x.rank
    parts: list[Tensor] = []
    start: Scalar = 0
    for value in outputs:
        parts.append(x.slice(dim, start, value.shape[dim]))
        start = start + value.shape[dim]
    return tuple(parts)


@register("aten.unbind_copy.int", "aten.unbind.int", views=True)
def unbind(b: Builder, call: OpCall) -> tuple[Tensor, ...]:
    """Every index of one dimension."""
    x: Tensor = call["self"]
    dim = call["dim"] % x.rank
    return tuple(x.select(dim, k) for k in range(len(call.outputs)))
