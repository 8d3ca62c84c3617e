"""Linear layers over packed weights."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.matmul.fused import formula_epilogue, formula_reason, norm_of
from executorch_wgpu.ops.matmul.operators import as_rows
from executorch_wgpu.ops.matmul.problem import Epilogue
from executorch_wgpu.ops.quant.affine import widened
from executorch_wgpu.ops.quant.products import Activations, emit_integer_product, emit_product
from executorch_wgpu.ops.quant.weights import QuantWeight, weight_reason
from executorch_wgpu.ops.registry import all_of, register
from executorch_wgpu.ops.symbolic import product
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType


def _float_reason(call: OpCall) -> str | None:
    if not is_float(call["x"].dtype):
        return f"{call['x'].dtype.name.lower()} beside a packed weight"
    return _shape_reason(call)


def _shape_reason(call: OpCall) -> str | None:
    x, out = call["x"], call.outputs[0]
    if not is_float(out.dtype):
        return f"results of {out.dtype.name.lower()}"
    if x.rank == 0 or x.shape[-1] != call["k"]:
        return f"x {list(x.shape)} for {call['k']} columns"
    return weight_reason(call)


def _bias_reason(call: OpCall) -> str | None:
    bias = call["bias"]
    if isinstance(bias, Value) and not (is_float(bias.dtype) and bias.rank == 1):
        return f"a bias {bias.dtype.name.lower()} {list(bias.shape)}"
    return None


def _bias(call: OpCall) -> Epilogue:
    bias = call["bias"]
    return Epilogue() if bias is None else Epilogue("acc + e0", (bias,))


def _product(b: Builder, call: OpCall, epilogue: Epilogue) -> Tensor:
    out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, "linear")
    x, weight = as_rows(b, call["x"]), QuantWeight.of(call)
    emit_product(b, "linear", x, weight, out, epilogue, norm_of(call))
    return out


@register("wgpu.linear_q", supports=all_of(_float_reason, formula_reason), converts=True)
def linear_q(b: Builder, call: OpCall) -> Tensor:
    """``x`` [..., K] times a packed weight (its arguments are those of ``weights.weight_reason``)
    transposed, then ``formula`` of the sums and of ``operands``, with ``pairs`` and a norm of
    ``x``, as of ``wgpu.linear``."""
    return _product(b, call, formula_epilogue(b, call))


@register("wgpu.packed_linear.default", supports=all_of(_float_reason, _bias_reason))
def packed_linear(b: Builder, call: OpCall) -> Tensor:
    """The operator of ``torch_ops.py``: a product, plus ``bias`` [N] or None."""
    return _product(b, call, _bias(call))


def _integer_reason(call: OpCall) -> str | None:
    if call["x"].dtype is not DType.I8:
        return f"activations of {call['x'].dtype.name.lower()}"
    if isinstance(call["x_scales"], Value) and not is_float(call["x_scales"].dtype):
        return f"x_scales of {call['x_scales'].dtype.name.lower()}"
    for name in ("x_scales", "x_zeros"):
        value = call[name]
        rows = product(call["x"].shape[:-1])
        if isinstance(value, Value) and product(value.shape) not in (1, rows):
            return f"{name} {list(value.shape)} for activations {list(call['x'].shape)}"
    zeros = call["zeros"]
    if isinstance(zeros, Value) and (zeros.dtype is not DType.I32 or call["bits"] != 4):
        return "integer products with such zeros"
    if call["bits"] == 8 and call["zero"] != 128:
        return "integer products with 8-bit weights that are not symmetric"
    return _shape_reason(call)


def _integers(b: Builder, call: OpCall, epilogue: Epilogue) -> Tensor:
    out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, "linear")
    x = as_rows(b, materialize(b, call["x"], "linear_rows"))
    scales, zeros = (
        widened(b, value, name) if isinstance(value, Tensor) else value
        for name, value in (("x_scales", call["x_scales"]), ("x_zeros", call["x_zeros"]))
    )
    activations = Activations(x, scales, zeros)
    emit_integer_product(b, "linear", activations, QuantWeight.of(call), out, epilogue)
    return out


@register(
    "wgpu.linear_8da",
    supports=all_of(_integer_reason, formula_reason),
    bytes=True,
    converts=True,
)
def linear_8da(b: Builder, call: OpCall) -> Tensor:
    """As ``wgpu.linear_q`` with int8 activations ``x_scales * (x - x_zeros)``, scales and zeros
    numbers, or tensors of one element or one a row."""
    return _integers(b, call, formula_epilogue(b, call))


@register(
    "wgpu.packed_linear_8da.default",
    supports=all_of(_integer_reason, _bias_reason),
    bytes=True,
    converts=True,
)
def packed_linear_8da(b: Builder, call: OpCall) -> Tensor:
    """The operator of ``torch_ops.py``: a product, plus ``bias`` [N] or None."""
    return _integers(b, call, _bias(call))
