"""``wgpu.linear``: a linear layer and the pointwise operators behind it, made by graph passes."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.formula import Formula
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.matmul.emit import emit_matmul
from executorch_wgpu.ops.matmul.operators import as_rows, batch_of_one, floats
from executorch_wgpu.ops.matmul.problem import Epilogue, Norm
from executorch_wgpu.ops.registry import all_of, register
from executorch_wgpu.ops.symbolic import Scalar, product
from executorch_wgpu.ops.tensor import Tensor

#: Operands of the epilogue beside the sums: a, w and the result are bound too, and a kernel binds
#: eight buffers.
MAX_OPERANDS = 5


def formula_reason(call: OpCall) -> str | None:
    """Why ``formula``, ``operands`` and ``pairs`` of a linear layer are not supported, None when
    they are."""
    formula: Formula | None = call["formula"]
    sums = 2 if call["pairs"] else 1
    operands = call["operands"]
    if formula is None:
        return "pairs without a formula" if sums == 2 or operands else None
    if len(formula.operands) != sums + len(operands) or len(operands) > MAX_OPERANDS:
        return f"a formula of {len(formula.operands)} numbers over {len(operands)} operands"
    if any(not is_float(dtype) for dtype in (*formula.operands, formula.dtype)):
        return "a formula of other dtypes than floats"
    return None


def _reason(call: OpCall) -> str | None:
    if call["pairs"] and call["weight"].shape[1] == 1:
        return "pairs of rows of one element"
    return formula_reason(call)


def formula_epilogue(b: Builder, call: OpCall) -> Epilogue:
    """What ``formula``, ``operands`` and ``pairs`` of a linear layer say."""
    if call["formula"] is None:
        return Epilogue()
    shape = call.outputs[0].shape
    operands = tuple(_operand(b, tensor, shape) for tensor in call["operands"])
    sums = ["acc", "acc1"] if call["pairs"] else ["acc"]
    names = ", ".join([*sums, *(f"e{i}" for i in range(len(operands)))])
    helper = call["formula"].function("formula")
    return Epilogue(f"formula({names})", operands, helper, call["pairs"])


def norm_of(call: OpCall) -> Norm | None:
    """The norm that ``norm_weight`` [K] (or None) and ``norm_eps`` of a linear layer say."""
    eps = call.args.get("norm_eps")
    return None if eps is None else Norm(call["norm_weight"], float(eps))


@register("wgpu.linear", supports=all_of(floats, _reason), converts=True)
def linear(b: Builder, call: OpCall) -> Tensor:
    """``x`` [..., K] times ``weight`` [N, K] transposed, then ``formula`` (a Formula, or None) of
    each sum and of ``operands``, each of the output's shape or a vector of its last size (or one
    number), all of any float dtype. ``pairs``: the formula takes the sums of rows 2 i and 2 i + 1
    of ``weight``, and the output has N / 2 columns. The output may have any shape of so many
    elements with that last size. ``norm_eps`` and ``norm_weight``, where they are: an RMS norm
    that ``x`` goes through first. One dispatch, more where ``weight`` is bound in pieces and where
    a norm has to stand alone."""
    x, weight = call["x"], call["weight"]
    out = b.empty(call.outputs[0].shape, call.outputs[0].dtype, "linear")
    epilogue = formula_epilogue(b, call)
    emit_matmul(b, "linear", as_rows(b, x), batch_of_one(weight), out, epilogue, norm_of(call))
    return out


def _operand(b: Builder, x: Tensor, shape: tuple[Scalar, ...]) -> Tensor:
    """An operand of the epilogue over [1, M, N], where ``shape`` is the output's."""
    if x.rank and x.shape[-1] == shape[-1] and product(x.shape) == product(shape):
        return as_rows(b, x)
    last, stride = (x.shape[-1], x.strides[-1]) if x.rank else (1, 0)
    return x.with_layout((1, 1, last), (0, 0, stride))
