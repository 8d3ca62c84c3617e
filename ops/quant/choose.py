"""The choose_qparams operators of torchao and quantized_decomposed: scales and zero points from
what is to be quantized.

Formulas: torchao.quantization.quant_primitives (``_choose_qparams_affine``) and
torch.ao.quantization.fx._decomposed. There scales are computed in f32 and kept in f64; here they
are f32 (``backend/wide_scales.py`` says where that makes no difference).
"""

from __future__ import annotations

import torch

from executorch_wgpu.ops.builder import Bind, Builder, DispatchSpec, RouteSpec, linear_grid
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.quant.affine import BYTES, ZERO_DTYPES, block_reason, narrowed, widened
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import (
    Scalar,
    bounds,
    ceil_div,
    less_equal,
    minimum,
    product,
)
from executorch_wgpu.ops.templates import float_literal
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType

WORKGROUP = 128

#: Elements that a workgroup reads by itself. Of more, where one scale is for all, several
#: workgroups take the extremes of a part each, and a second dispatch those of the parts.
ALONE = 64 * WORKGROUP
#: Parts, at the most.
PARTS = 256

_F32 = torch.finfo(torch.float32)
_BOTH = {"bytes": True, "converts": True}


def emit_choose(
    b: Builder,
    call: OpCall,
    width: Scalar,
    limits: tuple[int, int],
    eps: float,
    formula: str,
    middle: int = 0,
) -> tuple[Tensor, Tensor]:
    """Append a step: a scale (f32) and a zero point for each ``width`` neighbours of the call's
    ``input``, in tensors of its outputs' shapes and dtypes. ``formula``: "affine", "symmetric" (the
    zero point is ``middle``) or "nudged" (see choose.wgsl)."""
    x = widened(b, call["input"], "choose_qparams_in")
    scale, zero = call.outputs
    scales = b.empty(scale.shape, DType.F32, "scales")
    zeros = b.empty(zero.shape, zero.dtype, "zero_points")
    rows = product(scale.shape)
    packed = zero.dtype in BYTES
    consts = {
        "LOW": float_literal(float(limits[0])),
        "HIGH": float_literal(float(limits[1])),
        "RANGE": float_literal(float(limits[1] - limits[0])),
        "MIDDLE": float_literal(float(middle)),
        "EPS": float_literal(eps),
        "FORMULA": formula,
        "PACKED": packed,
        "FLOAT_ZEROS": zero.dtype is DType.F32,
    }

    def choose(source: Bind | Tensor, count: Scalar, parts: bool) -> DispatchSpec:
        return b.dispatch(
            "quant/choose.wgsl",
            "choose_qparams",
            reads={"x": source},
            writes={"scales": scales, "zeros": zeros},
            params={"WIDTH": count, "ROWS": rows},
            consts={**consts, "PARTS": parts},
            grid=linear_grid(ceil_div(rows, 4) if packed else rows),
            workgroup=(WORKGROUP,),
            workgroup_bytes=8 * WORKGROUP,
        )

    least, most = bounds(width)
    alone = less_equal(width, ALONE)
    if rows != 1 or most <= ALONE:
        b.run(choose(x, width, False))
        return narrowed(b, scales, scale.dtype, "scales"), zeros
    parts = minimum(ceil_div(width, 8 * WORKGROUP), PARTS)
    pairs = Bind(b.empty((parts, 2), DType.F32, "extremes"), "vec2<f32>")
    first = b.dispatch(
        "quant/extremes.wgsl",
        "choose_qparams_extremes",
        reads={"x": x},
        writes={"out": pairs},
        params={"COUNT": width},
        consts={},
        grid=(parts, 1, 1),
        workgroup=(WORKGROUP,),
        workgroup_bytes=8 * WORKGROUP,
    )
    routes = [RouteSpec("parts", [first, choose(pairs, parts, True)])]
    if least <= ALONE:
        routes.insert(0, RouteSpec("alone", [choose(x, width, False)], alone))
    b.step(*routes)
    return narrowed(b, scales, scale.dtype, "scales"), zeros


def _reason(call: OpCall) -> str | None:
    scale, zero = call.outputs
    if not is_float(call["input"].dtype) or not is_float(scale.dtype):
        return f"scales of {scale.dtype.name.lower()} from {call['input'].dtype.name.lower()}"
    if zero.dtype not in (*ZERO_DTYPES, DType.F32):
        return f"zero points of {zero.dtype.name.lower()}"
    return None


# -- torchao -------------------------------------------------------------------------------------


def _affine_reason(call: OpCall) -> str | None:
    if call["mapping_type"] not in ("ASYMMETRIC", "SYMMETRIC"):
        return f"mapping type {call['mapping_type']}"
    if call["quant_min"] is None and call["target_dtype"] not in (torch.int8, torch.uint8):
        return f"a target of {call['target_dtype']}"
    return _reason(call) or block_reason(call["input"].shape, call["block_size"])


@register("torchao.choose_qparams_affine.default", supports=_affine_reason, **_BOTH)
def choose_qparams_affine(b: Builder, call: OpCall) -> tuple[Tensor, Tensor]:
    """Scales and zero points by blocks, from their extremes (0 counts as one)."""
    bounds = (0, 255) if call["target_dtype"] == torch.uint8 else (-128, 127)
    given = (call["quant_min"], call["quant_max"])
    low, high = (int(d if g is None else g) for g, d in zip(given, bounds, strict=True))
    eps = _F32.smallest_normal if call["eps"] is None else call["eps"]
    if call.outputs[0].dtype is DType.F16:  # a scale that is not rounded to 0
        eps = max(eps, torch.finfo(torch.float16).smallest_normal)
    formula = "affine" if call["mapping_type"] == "ASYMMETRIC" else "symmetric"
    middle = int((high + low + 1) / 2)
    return emit_choose(b, call, product(call["block_size"]), (low, high), eps, formula, middle)


# -- quantized_decomposed ------------------------------------------------------------------------


def _tensor_reason(call: OpCall) -> str | None:
    if call["dtype"] not in (torch.int8, torch.uint8):
        return f"a target of {call['dtype']}"
    return _reason(call)


def _per_tensor(b: Builder, call: OpCall, formula: str, middle: int = 0) -> tuple[Tensor, Tensor]:
    limits = (call["quant_min"], call["quant_max"])
    return emit_choose(b, call, product(call["input"].shape), limits, call["eps"], formula, middle)


@register("quantized_decomposed.choose_qparams.tensor", supports=_tensor_reason, **_BOTH)
def choose_qparams(b: Builder, call: OpCall) -> tuple[Tensor, Tensor]:
    """One scale and zero point for all elements."""
    return _per_tensor(b, call, "affine")


@register("quantized_decomposed.choose_qparams_symmetric.tensor", supports=_tensor_reason, **_BOTH)
def choose_qparams_symmetric(b: Builder, call: OpCall) -> tuple[Tensor, Tensor]:
    """One scale for all elements; the zero point is 0, of bytes without a sign 128."""
    return _per_tensor(b, call, "symmetric", 128 if call["dtype"] == torch.uint8 else 0)


def _token_reason(call: OpCall) -> str | None:
    if not call["input"].rank:
        return "no rows"
    if call["dtype"] != torch.int8:
        return f"a target of {call['dtype']}"
    return _reason(call)


@register("quantized_decomposed.choose_qparams_per_token.default", supports=_token_reason, **_BOTH)
def choose_qparams_per_token(b: Builder, call: OpCall) -> tuple[Tensor, Tensor]:
    """A scale for each row, from its largest magnitude; the zero points are 0."""
    eps = float((torch.tensor(1e-5) / 127).item())
    return emit_choose(b, call, call["input"].shape[-1], (-127, 127), eps, "symmetric")


@register(
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    supports=_token_reason,
    **_BOTH,
)
def choose_qparams_per_token_asymmetric(b: Builder, call: OpCall) -> tuple[Tensor, Tensor]:
    """A scale and a zero point for each row."""
    return emit_choose(b, call, call["input"].shape[-1], (-128, 127), _F32.eps, "nudged")
