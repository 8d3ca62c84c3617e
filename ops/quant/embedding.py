"""Rows of packed tables: embeddings that stay quantized in memory."""

from __future__ import annotations

from typing import Any

from executorch_wgpu.ops.builder import Bind, Builder, DispatchSpec, Number, RouteSpec, linear_grid
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.matmul.pieces import whole_limits
from executorch_wgpu.ops.quant.affine import narrowed
from executorch_wgpu.ops.quant.layout import pack_affine
from executorch_wgpu.ops.quant.weights import QuantWeight, weight_reason
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import ceil_div, product
from executorch_wgpu.ops.tensor import Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType

WORKGROUP = 64


def emit_gather_packed(
    b: Builder, name: str, table: QuantWeight, indices: Tensor, dtype: DType = DType.F32
) -> Tensor:
    """Append a step; returns [*indices.shape, K] of a float ``dtype``. ``indices``: i32 or i64."""
    out = b.empty((*indices.shape, table.k), DType.F32, name)
    index = indices if indices.is_contiguous else materialize(b, indices, f"{name}_indices")
    pieces = table.pieces(b)
    whole = _dispatch(b, name, table, index, out)
    if pieces is None:
        b.run(whole)
    else:
        parts = [_dispatch(b, name, table.of_piece(piece), index, out) for piece in pieces]
        b.step(
            RouteSpec("whole", [whole], limits=whole_limits(table.packed)),
            RouteSpec("pieces", parts),
        )
    return narrowed(b, out, dtype, name)


def _dispatch(
    b: Builder, name: str, table: QuantWeight, index: Tensor, out: Tensor
) -> DispatchSpec:
    quads = -(-table.k // 4)
    total = product(index.shape) * quads
    edge = table.k % 4 != 0
    piece = table.whole_rows is not None
    params: dict[str, Number] = {
        "TOTAL": total,
        "QUADS": quads,
        "SIZE": table.n if table.whole_rows is None else table.whole_rows,
        "INDEX_AT": index.offset,
    }
    if edge:
        params["K"] = table.k
    quant = table.describe(params)
    if piece:
        params["COUNT"] = table.n
    return b.dispatch(
        "quant/gather.wgsl",
        name,
        reads={**table.reads(), "indices": index},
        writes={"out": Bind(out, "u32" if edge else "vec4<u32>")},
        params=params,
        consts={
            "Q": quant,
            "EDGE": edge,
            "PIECE": piece,
            "FIRST_PIECE": piece and table.first == 0,
            "INDEX_START": index.offset != 0,
        },
        grid=linear_grid(ceil_div(total, WORKGROUP)),
        workgroup=(WORKGROUP,),
        # Of the table only what is picked.
        bytes=touched_bytes([out, index]) + touched_bytes([out]) * table.bits // 32,
    )


def _reason(call: OpCall) -> str | None:
    indices: Any = call["indices"]
    if indices.dtype not in (DType.I32, DType.I64):
        return f"an index of dtype {indices.dtype.name.lower()} is not supported"
    if not is_float(call.outputs[0].dtype):
        return f"results of {call.outputs[0].dtype.name.lower()}"
    return weight_reason(call)


@register("wgpu.embedding_q", "wgpu.packed_embedding.default", supports=_reason, converts=True)
def embedding_q(b: Builder, call: OpCall) -> Tensor:
    """``indices`` of any shape -> [..., K]; the table's arguments are those of
    ``weights.weight_reason``. An index out of range gives NaN, as in ``embedding/gather.py``."""
    table = QuantWeight.of(call)
    dtype = call.outputs[0].dtype
    return emit_gather_packed(b, f"embedding_{table.kind}", table, call["indices"], dtype)


# -- quantized_decomposed ------------------------------------------------------------------------

_WIDTHS = {"embedding_2bit": 2, "embedding_4bit": 4, "embedding_byte": 8}


def _constant_reason(call: OpCall) -> str | None:
    weight, scales, zeros = call["weight"], call["weight_scales"], call["weight_zero_points"]
    if weight.constant is None or weight.rank != 2:
        return "a table that is no constant"
    if scales.constant is None or (zeros is not None and zeros.constant is None):
        return "scales that are no constants"
    if scales.dtype not in (DType.F32, DType.F16, DType.BF16):
        return f"scales of {scales.dtype.name.lower()}"
    if call["indices"].dtype not in (DType.I32, DType.I64):
        return f"an index of dtype {call['indices'].dtype.name.lower()} is not supported"
    if not is_float(call.outputs[0].dtype):
        return f"results of {call.outputs[0].dtype.name.lower()}"
    k = call.outputs[0].shape[-1]
    groups = 1 if scales.rank == 1 else scales.shape[1]
    if scales.rank > 2 or k % groups or (groups > 1 and k // groups % 4):
        return f"scales {list(scales.shape)} for rows of {k}"
    if zeros is not None and zeros.shape != scales.shape:
        return f"zero points {list(zeros.shape)} for scales {list(scales.shape)}"
    return None


@register(
    "quantized_decomposed.embedding_2bit.default",
    "quantized_decomposed.embedding_2bit.dtype",
    "quantized_decomposed.embedding_4bit.default",
    "quantized_decomposed.embedding_4bit.dtype",
    "quantized_decomposed.embedding_byte.default",
    "quantized_decomposed.embedding_byte.dtype",
    supports=_constant_reason,
    bytes=True,
    converts=True,
)
def embedding_decomposed(b: Builder, call: OpCall) -> Tensor:
    """ExecuTorch's quantized embeddings, packed anew: its bytes of two codes have the even element
    in the upper half, those of four codes the first in the lowest bits
    (executorch/exir/passes/_quant_patterns_and_replacements.py). 2 bits become 4."""
    import torch

    bits = _WIDTHS[call.op.split(".")[1]]
    weight, scales, zeros = (
        None if value is None else value.storage.data
        for value in (call["weight"], call["weight_scales"], call["weight_zero_points"])
    )
    scales = scales.reshape(scales.shape[0], -1)
    if scales.dtype != torch.float16:
        scales = scales.float()
    if bits == 4:
        halves = torch.stack([weight >> 4, weight & 15], -1)
        weight = halves.reshape(weight.shape[0], -1).to(torch.int8) - 8
    elif bits == 2:
        fourths = torch.stack([weight >> (2 * i) & 3 for i in range(4)], -1)
        weight = fourths.reshape(weight.shape[0], -1).to(torch.int8) - 2
    limits = (call["weight_quant_min"], call["weight_quant_max"])
    k = weight.shape[1]
    if zeros is not None:
        zeros = zeros.reshape(scales.shape)
    packed = pack_affine(weight, scales, zeros, *limits, k // scales.shape[1])
    name = call["weight"].storage.name
    table = QuantWeight.of_packed(b, packed, name)
    dtype = call.outputs[0].dtype
    return emit_gather_packed(b, f"embedding_{table.kind}", table, call["indices"], dtype)
