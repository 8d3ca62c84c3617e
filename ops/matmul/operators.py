"""The matmul operators: shapes on the way in and out, one call of ``emit_matmul`` each."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import FLOATS
from executorch_wgpu.ops.matmul.emit import emit_matmul
from executorch_wgpu.ops.matmul.problem import Epilogue
from executorch_wgpu.ops.registry import all_of, only_dtypes, register
from executorch_wgpu.ops.symbolic import Scalar, Sym, product
from executorch_wgpu.ops.templates import float_literal
from executorch_wgpu.ops.tensor import Tensor

floats = only_dtypes(FLOATS)


def batch_of_one(x: Tensor) -> Tensor:
    """[M, N] as [1, M, N]."""
    return x.with_layout((1, *x.shape), (0, *x.strides))


def as_rows(b: Builder, x: Tensor) -> Tensor:
    """``x`` [..., K] as [1, M, K], copied where strides cannot say it."""
    rows: tuple[Scalar, ...] = (1, product(x.shape[:-1]), x.shape[-1])
    flat = x.try_view(rows)
    if flat is None:
        flat = materialize(b, x, "linear_rows").try_view(rows)
    if flat is None:
        raise AssertionError(f"{x.shape} contiguous has no view {rows}")
    return flat


def _swap(x: Tensor) -> Tensor:
    """The last two dimensions exchanged."""
    dims = list(range(x.rank))
    return x.permute([*dims[:-2], dims[-1], dims[-2]])


@register("aten.mm.default", supports=floats, converts=True)
def mm(b: Builder, call: OpCall) -> Tensor:
    """``self`` [M, K] times ``mat2`` [K, N]."""
    a, other = call["self"], call["mat2"]
    out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, "mm")
    emit_matmul(b, "mm", batch_of_one(a), batch_of_one(_swap(other)), out)
    return out


@register("aten.bmm.default", supports=floats, converts=True)
def bmm(b: Builder, call: OpCall) -> Tensor:
    """``self`` [B, M, K] times ``mat2`` [B, K, N]."""
    out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, "bmm")
    emit_matmul(b, "bmm", call["self"], _swap(call["mat2"]), out)
    return out


def _scalars(call: OpCall) -> str | None:
    for name in ("alpha", "beta"):
        value = call.args.get(name, 1)
        if isinstance(value, Sym):
            return f"a live number as {name} is not supported"
        try:
            float_literal(float(value))
        except ValueError as error:
            return str(error)
    return None


@register("aten.addmm.default", supports=all_of(floats, _scalars), converts=True)
def addmm(b: Builder, call: OpCall) -> Tensor:
    """``beta * self + alpha * (mat1 @ mat2)``; ``self`` broadcasts to [M, N]. With a beta of 0
    ``self`` is not read, as in PyTorch (its NaNs do not count)."""
    beta, alpha = float(call.args.get("beta", 1)), float(call.args.get("alpha", 1))
    a, other = call["mat1"], call["mat2"]
    out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, "addmm")
    text = "acc" if alpha == 1 else f"{float_literal(alpha)} * acc"
    operands: tuple[Tensor, ...] = ()
    if beta != 0:
        text += " + e0" if beta == 1 else f" + {float_literal(beta)} * e0"
        operands = (call["self"],)
    epilogue = Epilogue(text, operands)
    emit_matmul(b, "addmm", batch_of_one(a), batch_of_one(_swap(other)), out, epilogue)
    return out


@register("aten.linear.default", supports=floats, converts=True)
def linear(b: Builder, call: OpCall) -> Tensor:
    """``input`` [..., K] times ``weight`` [N, K] (or [K], without an N in the result) transposed,
    plus ``bias`` [N] or None."""
    x, weight, bias = call["input"], call["weight"], call.args.get("bias")
    out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, "linear")
    if weight.rank == 1:
        weight = weight.with_layout((1, *weight.shape), (0, *weight.strides))
    flat = as_rows(b, x)
    epilogue = Epilogue() if bias is None else Epilogue("acc + e0", (bias,))
    emit_matmul(b, "linear", flat, batch_of_one(weight), out, epilogue)
    return out
