"""Formulas, and wgpu.pointwise, which evaluates one."""

from __future__ import annotations

import pytest
import torch

from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.formula import Formula, formula_of
from executorch_wgpu.ops.registry import unsupported_reason
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close

F32, BOOL = DType.F32, DType.BOOL


def call(op: str, dtype: DType = F32, **args) -> OpCall:
    return OpCall(op, args, (Value(dtype, (2, 3)),))


def run(device, formula: Formula, tensors: list[torch.Tensor], out: tuple[int, ...], dtype=F32):
    c = Chain()
    values = [c.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(tensors)]
    args = {"formula": formula, "operands": values, "name": "fused"}
    c.output(*c.call("wgpu.pointwise", args, [(dtype, out)]))
    graph = c.graph(device)
    assert [len(s.routes[0].dispatches) for s in graph.program.steps] == [1]
    return graph.execute([t.numpy() for t in tensors])[0]


def test_one_formula_of_several(device):
    """gelu(x) * where(x > y, 2, x + y), over operands that broadcast."""
    x, y = Value(F32, (2, 3)), Value(F32, (2, 3))
    larger, _ = formula_of(call("aten.gt.Tensor", BOOL, self=x, other=y))
    total, _ = formula_of(call("aten.add.Tensor", self=x, other=y, alpha=3))
    condition = Value(BOOL, (2, 3))
    chosen, _ = formula_of(call("aten.where.self", condition=condition, self=y, other=x))
    gelu, _ = formula_of(call("aten.gelu.default", self=x, approximate="none"))
    product, _ = formula_of(call("aten.mul.Tensor", self=x, other=y))
    # operands: gelu's x; condition's x, y; self: z; other: x, y
    whole = product.replace_operand(1, chosen.replace_operand(2, total).replace_operand(0, larger))
    whole = whole.replace_operand(0, gelu).reorder([0, 0, 1, 2, 0, 1])
    assert whole.operands == (F32, F32, F32) and whole.helpers == ("gelu",)
    a, b, z = torch.randn(5, 7), torch.randn(7), torch.randn(5, 1)
    got = run(device, whole, [a, b, z], (5, 7))
    want = torch.nn.functional.gelu(a.double()) * torch.where(a > b, z, a + 3 * b).double()
    assert_close(got, want)


def test_results_that_are_not_floats(device):
    x, y = Value(F32, (2, 3)), Value(F32, (2, 3))
    less, _ = formula_of(call("aten.lt.Tensor", BOOL, self=x, other=y))
    flag = Value(BOOL, (2, 3))
    neither, _ = formula_of(call("aten.logical_not.default", BOOL, self=flag))
    a, b = torch.randn(3, 9), torch.randn(3, 9)
    got = run(device, neither.replace_operand(0, less), [a, b], (3, 9), BOOL)
    assert (torch.as_tensor(got) == ~(a < b)).all()


def test_a_value_twice_is_one_operand():
    x = Value(F32, (4,))
    formula, operands = formula_of(call("aten.mul.Tensor", self=x, other=x))
    assert operands == [x] and formula.operands == (F32,)


def test_numbers_are_literals_and_states_are_not():
    x = Value(F32, (4,))
    number = Value(F32, (), "eps", torch.tensor(0.5))
    formula, operands = formula_of(call("aten.add.Tensor", self=x, other=number, alpha=1))
    assert operands == [x] and "0.5" in formula.lines[0].text
    endless = Value(F32, (), "inf", torch.tensor(float("inf")))
    _, operands = formula_of(call("aten.add.Tensor", self=x, other=endless, alpha=1))
    assert operands == [x, endless]


def test_formulas_that_do_not_fit():
    x, flag = Value(F32, (4,)), Value(BOOL, (4,))
    neg, _ = formula_of(call("aten.neg.default", self=x))
    neither, _ = formula_of(call("aten.logical_not.default", BOOL, self=flag))
    with pytest.raises(ValueError):
        neg.replace_operand(0, neither)
    wrong = {"formula": neg, "operands": [flag], "name": "x"}
    assert unsupported_reason(OpCall("wgpu.pointwise", wrong, (Value(F32, (4,)),)))
    assert formula_of(call("aten.mm.default", self=x, mat2=x)) is None
