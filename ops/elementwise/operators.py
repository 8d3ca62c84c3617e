"""The pointwise operators: one line each.

An entry gives the arguments that are operands and the WGSL expression of one element over them
by name; tensors and Python numbers are both taken, converted to the type the entry computes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.pointwise import convert, emit_pointwise
from executorch_wgpu.ops.halves import is_float, is_half
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import Sym
from executorch_wgpu.ops.templates import float_literal
from executorch_wgpu.ops.tensor import Tensor, torch_dtype
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType


@dataclass(frozen=True)
class Pointwise:
    """``operands``: schema names of the arguments in the expression. ``compute``: the type the
    operands are converted to; None: float32 when the result is a float, int32 when it is one.
    ``integer``: whether the expression is right for int32 results too. ``helper``: a WGSL function
    of HELPERS that it calls."""

    operands: tuple[str, ...]
    expression: str | Callable[[OpCall], str]
    compute: DType | None = None
    integer: bool = False
    helper: str = ""

    def compute_dtype(self, call: OpCall) -> DType:
        """The dtype in which the expression is evaluated."""
        if self.compute is not None:
            return self.compute
        dtype = call.outputs[0].dtype
        if is_float(dtype):
            return DType.F32
        if dtype is not DType.BOOL:
            return dtype
        # A comparison: what its operands promote to.
        dtypes = {call[n].dtype for n in self.operands if isinstance(call[n], (Value, Tensor))}
        if any(map(is_float, dtypes)) or any(isinstance(call[n], float) for n in self.operands):
            return DType.F32
        return DType.I32

    def unsupported_reason(self, call: OpCall) -> str | None:
        """See ``registry.SupportFn``."""
        out = call.outputs[0].dtype
        for name in self.operands:
            operand = call[name]
            if isinstance(operand, Sym):
                return f"a live number as operand {name!r} is not supported"
            if isinstance(operand, float):
                try:
                    float_literal(operand)
                except ValueError as error:
                    return str(error)
        if out is DType.I64:
            return "int64 arithmetic: the GPU computes in 32 bits"
        if out is DType.I32 and not self.integer:
            return "not defined on integers here"
        return None

    def _number(self, call: OpCall, number: Any) -> Any:
        """``number`` as PyTorch compares with it: in the dtype of the tensors."""
        if call.outputs[0].dtype is not DType.BOOL or not isinstance(number, float):
            return number
        dtypes = {call[n].dtype for n in self.operands if isinstance(call[n], Tensor)}
        if len(dtypes) != 1 or not is_half(*dtypes):
            return number
        return torch.tensor(number, dtype=torch_dtype(dtypes.pop())).item()

    def lower(self, b: Builder, call: OpCall) -> Tensor:
        """See ``registry.LowerFn``."""
        dtype = self.compute_dtype(call)
        tensors: list[Tensor] = []
        names: dict[str, str] = {}
        for name in self.operands:
            operand = number_in(call[name])
            if isinstance(operand, Tensor):
                target = DType.BOOL if name == "condition" else dtype
                names[name] = convert(f"a{len(tensors)}", operand.dtype, target)
                tensors.append(operand)
            else:
                names[name] = literal(self._number(call, operand), dtype)
        text = self.expression if isinstance(self.expression, str) else self.expression(call)
        out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, _short(call.op))
        helper = HELPERS.get(self.helper, "")
        emit_pointwise(b, _short(call.op), text.format(**names), tensors, out, helper=helper)
        return out


def number_in(operand: Any) -> Any:
    """The number that a 0-dim constant (Tensor or Value) holds; anything else, and what has no
    literal, as is."""
    if isinstance(operand, Value) and operand.rank == 0:
        data = operand.constant
    elif isinstance(operand, Tensor) and operand.rank == 0:
        constant = operand.storage.kind is BufferKind.CONSTANT
        data = operand.storage.data if constant else None
    else:
        return operand
    if data is None:
        return operand
    number = data.reshape(-1)[0].item()
    return number if isinstance(number, int) or math.isfinite(number) else operand


def literal(value: Any, dtype: DType) -> str:
    """A Python number as a WGSL literal of the type that ``dtype`` computes in."""
    if is_float(dtype):
        return float_literal(float(value))
    if dtype is DType.BOOL:
        return "true" if value else "false"
    return f"i32({int(value)})"


def _short(op: str) -> str:
    """``aten.add.Tensor`` -> ``add``."""
    return op.split(".")[1]


def _scaled(sign: str) -> Callable[[OpCall], str]:
    """``self +- alpha * other``."""

    def expression(call: OpCall) -> str:
        alpha = call.args.get("alpha", 1)
        if alpha == 1:
            return f"({{self}} {sign} {{other}})"
        dtype = DType.F32 if is_float(call.outputs[0].dtype) else DType.I32
        return f"({{self}} {sign} {literal(alpha, dtype)} * {{other}})"

    return expression


def _power(call: OpCall) -> str:
    """WGSL's pow is undefined for a negative base: small whole exponents are products, other
    whole ones get their sign from the base's."""
    exponent = call["exponent"]
    if exponent == 0:
        return "1.0"
    if exponent in (0.5, -0.5):
        return "sqrt({self})" if exponent > 0 else "inverseSqrt({self})"
    if exponent == int(exponent):
        whole = abs(int(exponent))
        if whole <= 4:
            text = "(" + " * ".join(["{self}"] * whole) + ")"
        else:
            text = f"pow(abs({{self}}), {float_literal(float(whole))})"
            if whole % 2:
                text = f"(sign({{self}}) * {text})"
        return text if exponent > 0 else f"(1.0 / {text})"
    return "pow({self}, {exponent})"


def _clamp(call: OpCall) -> str:
    """Either bound may be absent. min after max: where they cross, the upper bound wins."""
    text = "{self}"
    dtype = DType.F32 if is_float(call.outputs[0].dtype) else DType.I32
    if call["min"] is not None:
        text = f"max({text}, {literal(call['min'], dtype)})"
    if call["max"] is not None:
        text = f"min({text}, {literal(call['max'], dtype)})"
    return text


def _gelu(call: OpCall) -> str:
    """Exact: x Phi(x), with erf by Abramowitz and Stegun 7.1.26 (error below 1.5e-7). Tanh: the
    usual approximation (Hendrycks & Gimpel 2016)."""
    if call["approximate"] == "tanh":
        inner = "0.7978845608 * ({self} + 0.044715 * {self} * {self} * {self})"
        return f"(0.5 * {{self}} * (1.0 + tanh(clamp({inner}, -20.0, 20.0))))"
    return "gelu({self})"


def _elu(call: OpCall) -> str:
    """``scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))``."""
    alpha, scale, inner = (
        float_literal(float(call[name])) for name in ("alpha", "scale", "input_scale")
    )
    most = "0.0" if call["input_scale"] >= 0 else "88.722"
    low = f"{alpha} * (exp(min({inner} * {{self}}, {most})) - 1.0)"
    return f"({scale} * select({low}, {{self}}, {{self}} > 0.0))"


def _hardtanh(call: OpCall) -> str:
    low, high = (float_literal(float(call[name])) for name in ("min_val", "max_val"))
    return f"min(max({{self}}, {low}), {high})"


def _leaky_relu(call: OpCall) -> str:
    slope = float_literal(float(call["negative_slope"]))
    return f"select({slope} * {{self}}, {{self}}, {{self}} > 0.0)"


def _divide(call: OpCall) -> str:
    mode = call["rounding_mode"]
    return f"divide_{mode}({{self}}, {{other}})" if mode else "({self} / {other})"


_UNARY = ("self",)
_BINARY = ("self", "other")
_SIGMOID = "(1.0 / (1.0 + exp(min(-({self}), 88.0))))"

#: WGSL functions for what no expression says well.
HELPERS = {
    "gelu": """fn gelu(x: f32) -> f32 {
    let z = abs(x) * 0.70710678;
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741
        + t * (-1.453152027 + t * 1.061405429))));
    let tail = 0.5 * poly * exp(max(-z * z, -87.0));  // 1 - Phi(|x|)
    return x * select(1.0 - tail, tail, x < 0.0);
}""",
    # Near 0 the sum 1 + x loses what matters of x.
    "log1p": """fn log1p(x: f32) -> f32 {
    let near = x * (1.0 - x * (0.5 - x * (0.33333333 - x * (0.25 - 0.2 * x))));
    return select(log(1.0 + x), near, abs(x) < 0.03);
}""",
    # WGSL's division may be off in its last bits, which decides where a quotient is whole: the
    # remainder says on which side of it the truth lies. It is exact, for the halves of q and b have
    # 12 bits each.
    "divide": """fn divide_floor(a: f32, b: f32) -> f32 {
    let q = floor(a / b);
    let q_high = bitcast<f32>(bitcast<u32>(q) & 0xfffff000u);
    let b_high = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
    let q_low = q - q_high;
    let b_low = b - b_high;
    let most = ((a - q_high * b_high) - q_high * b_low) - q_low * b_high;
    let rest = (most - q_low * b_low) * sign(b);
    return q + select(0.0, 1.0, rest >= abs(b)) - select(0.0, 1.0, rest < 0.0);
}
fn divide_trunc(a: f32, b: f32) -> f32 {
    return sign(a) * sign(b) * divide_floor(abs(a), abs(b));
}""",
}

#: The table. Arguments of exp are clamped to where f32 is finite: WGSL lets a compiler assume
#: that infinities do not occur.
POINTWISE: dict[str, Pointwise] = {
    "aten.add.Tensor": Pointwise(_BINARY, _scaled("+"), integer=True),
    "aten.add.Scalar": Pointwise(_BINARY, _scaled("+"), integer=True),
    "aten.sub.Tensor": Pointwise(_BINARY, _scaled("-"), integer=True),
    "aten.sub.Scalar": Pointwise(_BINARY, _scaled("-"), integer=True),
    "aten.mul.Tensor": Pointwise(_BINARY, "({self} * {other})", integer=True),
    "aten.mul.Scalar": Pointwise(_BINARY, "({self} * {other})", integer=True),
    "aten.div.Tensor": Pointwise(_BINARY, "({self} / {other})"),
    "aten.div.Scalar": Pointwise(_BINARY, "({self} / {other})"),
    "aten.neg.default": Pointwise(_UNARY, "(-({self}))", integer=True),
    "aten.abs.default": Pointwise(_UNARY, "abs({self})", integer=True),
    "aten.ceil.default": Pointwise(_UNARY, "ceil({self})"),
    "aten.floor.default": Pointwise(_UNARY, "floor({self})"),
    "aten.trunc.default": Pointwise(_UNARY, "trunc({self})"),
    "aten.round.default": Pointwise(_UNARY, "round({self})"),
    "aten.div.Tensor_mode": Pointwise(_BINARY, _divide, helper="divide"),
    "aten.rsqrt.default": Pointwise(_UNARY, "inverseSqrt({self})"),
    "aten.sqrt.default": Pointwise(_UNARY, "sqrt({self})"),
    "aten.reciprocal.default": Pointwise(_UNARY, "(1.0 / {self})"),
    "aten.exp.default": Pointwise(_UNARY, "exp(min({self}, 88.722))"),
    "aten.log.default": Pointwise(_UNARY, "log({self})"),
    "aten.log2.default": Pointwise(_UNARY, "log2({self})"),
    "aten.log10.default": Pointwise(_UNARY, "(log2({self}) * 0.30102999566)"),
    "aten.log1p.default": Pointwise(_UNARY, "log1p({self})", helper="log1p"),
    "aten.sin.default": Pointwise(_UNARY, "sin({self})"),
    "aten.cos.default": Pointwise(_UNARY, "cos({self})"),
    "aten.tanh.default": Pointwise(_UNARY, "tanh(clamp({self}, -20.0, 20.0))"),
    "aten.sigmoid.default": Pointwise(_UNARY, _SIGMOID),
    "aten.silu.default": Pointwise(_UNARY, "({self} * " + _SIGMOID + ")"),
    "aten.gelu.default": Pointwise(_UNARY, _gelu, helper="gelu"),
    "aten.clamp.default": Pointwise(_UNARY, _clamp, integer=True),
    "aten.relu.default": Pointwise(_UNARY, "max({self}, 0.0)"),
    "aten.elu.default": Pointwise(_UNARY, _elu),
    "aten.hardtanh.default": Pointwise(_UNARY, _hardtanh),
    "aten.leaky_relu.default": Pointwise(_UNARY, _leaky_relu),
    "aten.pow.Tensor_Scalar": Pointwise(("self", "exponent"), _power),
    "aten.maximum.default": Pointwise(_BINARY, "max({self}, {other})", integer=True),
    "aten.minimum.default": Pointwise(_BINARY, "min({self}, {other})", integer=True),
    "aten.where.self": Pointwise(
        ("condition", "self", "other"), "select({other}, {self}, {condition})", integer=True
    ),
    "aten.logical_not.default": Pointwise(_UNARY, "(!{self})", compute=DType.BOOL),
    "aten.logical_and.default": Pointwise(_BINARY, "({self} && {other})", compute=DType.BOOL),
    "aten.logical_or.default": Pointwise(_BINARY, "({self} || {other})", compute=DType.BOOL),
}
for _name, _symbol in {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}.items():
    for _overload in ("Tensor", "Scalar"):
        POINTWISE[f"aten.{_name}.{_overload}"] = Pointwise(
            _BINARY, f"({{self}} {_symbol} {{other}})"
        )

for _op, _entry in POINTWISE.items():
    register(_op, supports=_entry.unsupported_reason, converts=True)(_entry.lower)
