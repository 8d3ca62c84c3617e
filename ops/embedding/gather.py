"""Picking rows by index: embedding, index_select, and index with one index tensor.

PyTorch raises for an index out of range. The host learns of indices only where they are small
inputs, and a GPU cannot raise, so such an index is never used as an address, and its row is
filled with what cannot be mistaken for a result: NaN in a float result, the smallest int32 in
an integer one (which is out of range for whatever it indexes next). A boolean has no such
value: there the row is False.
"""

from __future__ import annotations

from dataclasses import replace

from executorch_wgpu.ops.builder import Bind, Builder, DispatchSpec, Number, RouteSpec, linear_grid
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import is_half
from executorch_wgpu.ops.matmul.pieces import Piece, row_pieces, whole_limits
from executorch_wgpu.ops.matmul.problem import effective_strides, is_vector, size
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import ceil_div, product
from executorch_wgpu.ops.tensor import Shape, Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType

WORKGROUP = 64

_POISON = {
    DType.F32: "0x7fc00000u",
    DType.F16: "0x7e007e00u",
    DType.BF16: "0x7fc07fc0u",
    DType.I32: "0x80000000u",
    DType.I64: "0x80000000u",
    DType.BOOL: "0u",
}

_INDEX_DTYPES = (DType.I32, DType.I64)


def emit_gather(
    b: Builder, name: str, table: Tensor, indices: Tensor, dim: int, wrap: bool = False
) -> Tensor:
    """Append a step; returns a contiguous tensor of shape
    ``table.shape[:dim] + indices.shape + table.shape[dim + 1:]``.

    ``table``: any strides and dtype. ``indices``: i32 or i64, any shape. ``wrap``: negative
    indices count from the end. See the module's docstring for indices out of range.
    """
    poison = _POISON[table.dtype]
    before, after = table.shape[:dim], table.shape[dim + 1 :]
    shape = (*before, *indices.shape, *after)
    out = b.empty(shape, table.dtype, name)
    flat_shape: Shape = (product(before), table.shape[dim], product(after))
    flat = table.try_view(flat_shape)
    if flat is None:
        flat = materialize(b, table, f"{name}_table").try_view(flat_shape)
    index = indices if indices.is_contiguous else materialize(b, indices, f"{name}_indices")
    if flat is None:
        raise AssertionError(f"{table.shape} contiguous has no view {flat_shape}")
    target = out
    if is_half(table.dtype) and (words := flat.as_words()) is not None:
        # Rows of whole words are moved as such.
        flat, target = words, replace(out, dtype=words.dtype)
    pieces = row_pieces(b, flat, 1) if flat.shape[0] == 1 else None
    whole = RouteSpec("whole", [_dispatch(b, name, flat, index, target, wrap, poison)])
    if pieces is None:
        b.step(whole)
    else:
        parts = [_dispatch(b, name, flat, index, target, wrap, poison, piece) for piece in pieces]
        b.step(
            RouteSpec("whole", whole.dispatches, limits=whole_limits(flat)),
            RouteSpec("pieces", parts),
        )
    return out


def _dispatch(
    b: Builder,
    name: str,
    table: Tensor,
    index: Tensor,
    out: Tensor,
    wrap: bool,
    poison: str,
    piece: Piece | None = None,
) -> DispatchSpec:
    """``table`` [outer, rows, inner]; ``index`` contiguous; ``piece``: the rows of the table that
    are bound and whose results are written, all by default."""
    rows = size(table, 1)
    if piece is not None:
        table = piece.tensor
    alone = is_half(table.dtype)
    vector = is_vector(table, 2) and not alone
    unit = 4 if vector else 1
    element = "vec4<u32>" if vector else "u32"
    inner = size(table, 2) // unit
    outer_stride, row_stride, inner_stride = effective_strides(table)
    length = product(index.shape)
    total = product((size(table, 0), length, inner))
    start = table.offset // unit
    params: dict[str, Number] = {
        "TOTAL": total,
        "INNER": inner,
        "SIZE": rows,
        "ROW_STRIDE": row_stride // unit,
        "TABLE_AT": start,
        "INDEX_AT": index.offset,
    }
    outer = table.shape[0] != 1
    if outer:
        params |= {"LENGTH": length, "OUTER_STRIDE": outer_stride // unit}
    strided = inner_stride != 1
    if strided:
        params["INNER_STRIDE"] = inner_stride
    if piece is not None:
        params |= {"FIRST": piece.first, "COUNT": size(table, 1)}
    return b.dispatch(
        "embedding/gather.wgsl",
        name,
        reads={"table": Bind(table, element), "indices": index},
        writes={"out": Bind(out, "atomic<u32>" if alone else element)},
        params=params,
        consts={
            "OUTER": outer,
            "STRIDED": strided,
            "TABLE_START": start != 0,
            "INDEX_START": index.offset != 0,
            "WRAP": wrap,
            "PIECE": piece is not None,
            "FIRST_PIECE": piece is not None and piece.first == 0,
            "POISON": poison,
            "TYPE": element,
            "CODEC": "bits" if alone else "",
        },
        grid=linear_grid(ceil_div(total, WORKGROUP)),
        workgroup=(WORKGROUP,),
        # Of the table only the rows that are picked: as much as is written.
        bytes=2 * touched_bytes([out]) + touched_bytes([index]),
    )


def _reason(table: Value, index: Value) -> str | None:
    if index.dtype not in _INDEX_DTYPES:
        return f"an index of dtype {index.dtype.name.lower()} is not supported"
    if table.rank == 0:
        return "indexing a 0-dim tensor"
    return None


@register(
    "aten.embedding.default",
    supports=lambda call: _reason(call["weight"], call["indices"]),
    moves=True,
)
def embedding(b: Builder, call: OpCall) -> Tensor:
    """``weight`` [V, D], ``indices`` of any shape -> [..., D]. The other arguments of the schema
    shape gradients only."""
    return emit_gather(b, "embedding", call["weight"], call["indices"], 0)


@register(
    "aten.index_select.default",
    supports=lambda call: _reason(call["self"], call["index"]),
    moves=True,
)
def index_select(b: Builder, call: OpCall) -> Tensor:
    """``self`` with dimension ``dim`` replaced by the entries that ``index`` (1-dim) picks."""
    table = call["self"]
    return emit_gather(b, "index_select", table, call["index"], call["dim"] % table.rank)


def _index_reason(call: OpCall) -> str | None:
    present = [index for index in call["indices"] if index is not None]
    if len(present) != 1:
        return f"{len(present)} index tensors (only one is supported)"
    return _reason(call["self"], present[0])


@register("aten.index.Tensor", supports=_index_reason, moves=True)
def index_tensor(b: Builder, call: OpCall) -> Tensor:
    """``self[..., index]`` with one integer index tensor in any dimension; negative indices count
    from the end."""
    for dim, index in enumerate(call["indices"]):
        if index is not None:
            return emit_gather(b, "index", call["self"], index, dim, wrap=True)
    raise AssertionError("refused by the support check")
