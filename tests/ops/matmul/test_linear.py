"""wgpu.linear: what graph passes put behind a matmul, in every kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.formula import Formula, Line, formula_of
from executorch_wgpu.ops.joined import JoinedRows
from executorch_wgpu.ops.matmul import pieces
from executorch_wgpu.ops.registry import unsupported_reason
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close

F32 = DType.F32
#: Rows for the kernels of one, four and eight rows, and both tilings.
ROWS = (1, 3, 12, 40, 70)
#: silu(sum) * other sum, as the passes compose it.
SWIGLU = Formula(
    (F32, F32),
    (
        Line(F32, "(1.0 / (1.0 + exp(min(-({0}), 88.0))))", (0,)),
        Line(F32, "({0} * {1})", (0, ~0)),
        Line(F32, "({0} * {1})", (~1, 1)),
    ),
)


def formula(op: str, *values: Value, **args: Any) -> Formula:
    names = ("self", "other")[: len(values)]
    out = Value(F32, values[0].shape)
    found = formula_of(OpCall(op, {**dict(zip(names, values, strict=True)), **args}, (out,)))
    assert found is not None
    return found[0]


def linear(c: Chain, x: Value, w: Any, out: tuple[Any, ...], **args: Any) -> Value:
    """One call; ``w`` is a tensor or JoinedRows."""
    weight = Value(F32, tuple(w.shape), "w", w)
    args = {"x": x, "weight": weight, "formula": None, "operands": [], "pairs": False, **args}
    (y,) = c.call("wgpu.linear", args, [(F32, out)])
    return y


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 63), (64, 64), (130, 36), (300, 260)])
def test_a_residual_a_vector_and_a_number(device: Any, n: int, k: int) -> None:
    """(sum + residual) * scale + offset: an operand of each kind, in one dispatch."""
    c = Chain()
    m = c.int_input("M", 1, max(ROWS))
    x, residual = c.input("x", (1, m, k)), c.input("residual", (m, n))
    scale, offset = torch.randn(n), torch.randn(1, 1)
    acc = Value(F32, (n,))
    add, mul = (formula(f"aten.{op}.Tensor", acc, Value(F32, (n,))) for op in ("add", "mul"))
    whole = add.replace_operand(0, mul).replace_operand(0, add)
    operands = [residual, c.constant(scale), c.constant(offset)]
    w = torch.randn(n, k) / k**0.5
    c.output(linear(c, x, w, (1, m, n), formula=whole, operands=operands))
    graph = c.graph(device)
    assert all(len(route.dispatches) == 1 for route in graph.program.steps[0].routes)
    for rows in ROWS:
        a, r = torch.randn(1, rows, k), torch.randn(rows, n)
        (y,) = graph.execute([rows, a.numpy(), r.numpy()])
        assert_close(y, ((a.double() @ w.double().T + r) * scale + offset))


@pytest.mark.parametrize(("n", "k"), [(1, 2), (5, 63), (44, 36), (66, 260), (2048, 64)])
@pytest.mark.parametrize("bias", [False, True])
def test_pairs(device: Any, n: int, k: int, bias: bool) -> None:
    """Rows of two weights in turn; each pair of sums is one element."""
    c = Chain()
    m = c.int_input("M", 1, max(ROWS))
    x = c.input("x", (m, k))
    gate, up = torch.randn(n, k) / k**0.5, torch.randn(n, k) / k**0.5
    biases = [torch.randn(n), torch.randn(n)] if bias else [torch.zeros(n)] * 2
    whole, operands = SWIGLU, []
    if bias:
        add = formula("aten.add.Tensor", Value(F32, (n,)), Value(F32, (n,)))
        whole = SWIGLU.replace_operand(1, add).replace_operand(0, add).reorder([0, 2, 1, 3])
        operands = [c.constant(one) for one in biases]
    joined = JoinedRows([gate, up], alternate=True)
    c.output(linear(c, x, joined, (m, n), formula=whole, operands=operands, pairs=True))
    graph = c.graph(device)
    for rows in ROWS:
        a = torch.randn(rows, k)
        (y,) = graph.execute([rows, a.numpy()])
        one = torch.nn.functional.silu(a.double() @ gate.double().T + biases[0])
        assert_close(y, one * (a.double() @ up.double().T + biases[1]))


def test_pairs_in_pieces(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces hold whole pairs and write whole aligned parts of the result."""
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 100 << 10)
    n, k = 200, 96
    c = Chain()
    m = c.int_input("M", 1, 70)
    x = c.input("x", (m, k))
    gate, up, bias = torch.randn(n, k) / 10, torch.randn(n, k) / 10, torch.randn(n)
    add = formula("aten.add.Tensor", Value(F32, (n,)), Value(F32, (n,)))
    whole = SWIGLU.replace_operand(0, add).reorder([0, 2, 1])
    joined = JoinedRows([gate, up], alternate=True)
    operands = [c.constant(bias)]
    c.output(linear(c, x, joined, (m, n), formula=whole, operands=operands, pairs=True))
    graph = c.graph(device)
    parts = graph.program.steps[0].routes[-1].dispatches
    assert len(parts) == 2 and all(d.bindings[-1].offset % 256 == 0 for d in parts)
    for rows in (1, 3, 70):
        a = torch.randn(rows, k)
        (y,) = graph.execute([rows, a.numpy()])
        one = torch.nn.functional.silu(a.double() @ gate.double().T + bias)
        assert_close(y, one * (a.double() @ up.double().T))


def test_joined_weights_are_read_as_parts(device: Any) -> None:
    """The output of joined layers, split by views."""
    c = Chain()
    m = c.int_input("M", 1, 20)
    x = c.input("x", (m, 20))
    parts = [torch.randn(rows, 20) for rows in (12, 4, 7)]
    y = linear(c, x, JoinedRows(parts), (m, 23))
    args = {"self": y, "split_sizes": [12, 4, 7], "dim": -1}
    shapes = [(F32, (m, n)) for n in (12, 4, 7)]
    c.output(*c.call("aten.split_with_sizes_copy.default", args, shapes))
    graph = c.graph(device)
    for rows in (1, 20):
        a = torch.randn(rows, 20)
        for got, w in zip(graph.execute([rows, a.numpy()]), parts, strict=True):
            assert_close(got, a.double() @ w.double().T)


def test_joined_rows() -> None:
    a, b = torch.arange(6.0).view(3, 2), torch.arange(6.0, 12.0).view(3, 2)
    assert torch.equal(JoinedRows([a, b]).tensor(), torch.cat([a, b]))
    turn = JoinedRows([a, b], alternate=True)
    assert torch.equal(turn.tensor()[::2], a) and torch.equal(turn.tensor()[1::2], b)
    assert turn.shape == (6, 2) and turn.numel() == 12
    for wrong, alternate in ([a, b[:, :1]], False), ([a, b[:2]], True), ([a, b.half()], False):
        with pytest.raises(ValueError):
            JoinedRows(wrong, alternate)


def test_what_is_refused() -> None:
    x, w = Value(F32, (3, 8)), Value(F32, (4, 8), "w", torch.zeros(4, 8))
    bias = Value(F32, (4,))

    def reason(**args: Any) -> str | None:
        whole = {"x": x, "weight": w, "formula": None, "operands": [], "pairs": False, **args}
        return unsupported_reason(OpCall("wgpu.linear", whole, (Value(F32, (3, 4)),)))

    add = formula("aten.add.Tensor", bias, Value(F32, (4,)))
    assert reason() is None and reason(formula=add, operands=[bias]) is None
    assert reason(formula=add) and reason(operands=[bias]) and reason(pairs=True)
    many = Formula((F32,) * 7, (Line(F32, "({0} + {1})", (0, 6)),))
    assert "operands" in str(reason(formula=many, operands=[bias] * 6))
    other = Formula((F32, DType.I32), (Line(F32, "({0} + f32({1}))", (0, 1)),))
    assert "dtypes" in str(reason(formula=other, operands=[bias]))
