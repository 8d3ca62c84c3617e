"""Linear layers over packed weights."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.matmul.problem import Epilogue
from executorch_wgpu.ops.quant.products import Activations, emit_integer_product, emit_product
from executorch_wgpu.ops.quant.weights import QuantWeight, weight_reason
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import product
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType


def as_rows(b: Builder, x: Tensor) -> Tensor:
    """``x`` [..., K] as [1, M, K], copied where strides cannot say it."""
    rows = (1, product(x.shape[:-1]), x.shape[-1])
    flat = x.try_view(rows)
    if flat is None:
        flat = materialize(b, x, "linear_rows").try_view(rows)
    if flat is None:
        raise AssertionError(f"{x.shape} contiguous has no view {rows}")
    return flat


def _float_reason(call: OpCall) -> str | None:
    if call["x"].dtype is not DType.F32 or call.outputs[0].dtype is not DType.F32:
        return f"{call['x'].dtype.name.lower()} beside a packed weight"
    return _shape_reason(call)


def _shape_reason(call: OpCall) -> str | None:
    x, bias = call["x"], call["bias"]
    if x.rank == 0 or x.shape[-1] != call["k"]:
        return f"x {list(x.shape)} for {call['k']} columns"
    if isinstance(bias, Value) and bias.dtype is not DType.F32:
        return f"a bias of {bias.dtype.name.lower()}"
    return weight_reason(call)


def _epilogue(call: OpCall) -> Epilogue:
    bias = call["bias"]
    return Epilogue() if bias is None else Epilogue("acc + e0", (bias,))


@register("wgpu.linear_q", supports=_float_reason)
def linear_q(b: Builder, call: OpCall) -> Tensor:
    """``x`` [..., K] times a packed weight (its arguments are those of ``weights.weight_reason``)
    transposed, plus ``bias`` [N] or None."""
    out = b.empty(call.outputs[0].shape, DType.F32, "linear")
    emit_product(b, "linear", as_rows(b, call["x"]), QuantWeight.of(call), out, _epilogue(call))
    return out


def _integer_reason(call: OpCall) -> str | None:
    if call["x"].dtype is not DType.I8:
        return f"activations of {call['x'].dtype.name.lower()}"
    if call.outputs[0].dtype is not DType.F32:
        return f"results of {call.outputs[0].dtype.name.lower()}"
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


@register("wgpu.linear_8da", supports=_integer_reason, bytes=True)
def linear_8da(b: Builder, call: OpCall) -> Tensor:
    """As ``wgpu.linear_q`` with int8 activations ``x_scales * (x - x_zeros)``, scales and zeros
    numbers, or tensors of one element or one a row."""
    out = b.empty(call.outputs[0].shape, DType.F32, "linear")
    x = as_rows(b, materialize(b, call["x"], "linear_rows"))
    scales, zeros = (
        materialize(b, value, name) if isinstance(value, Tensor) else value
        for name, value in (("x_scales", call["x_scales"]), ("x_zeros", call["x_zeros"]))
    )
    emit_integer_product(
        b, "linear", Activations(x, scales, zeros), QuantWeight.of(call), out, _epilogue(call)
    )
    return out
