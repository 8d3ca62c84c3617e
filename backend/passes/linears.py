"""What passes over linear layers share: over ``wgpu.linear`` and, with packed weights,
``wgpu.linear_q`` and ``wgpu.linear_8da``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.make_linear import ADD
from executorch_wgpu.ops.call import OpCall, OpChain, Value, common_path
from executorch_wgpu.ops.elementwise.formula import Formula
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.joined import JoinedRows
from executorch_wgpu.ops.symbolic import product
from executorch_wgpu.serialization.dispatch_list import DType

#: Arguments of a linear layer with a row (of each that is there) for a row of the weight.
_ROWS = {
    "wgpu.linear": ("weight",),
    "wgpu.linear_q": ("weight", "scales", "zeros"),
    "wgpu.linear_8da": ("weight", "scales", "zeros"),
}
LINEARS = tuple(_ROWS)

#: The sum as it is.
SUM = Formula((DType.F32,))


def linear_of(index: ChainIndex, value: Value) -> OpCall | None:
    """The linear layer that computes ``value``, where it is one sum an element and not rounded."""
    call = index.made_by(value, *LINEARS)
    return None if call is None or call["pairs"] or value.dtype is not DType.F32 else call


def is_plain(call: OpCall) -> bool:
    """Whether a linear layer has no more behind it than a constant bias."""
    if call["formula"] is None:
        return True
    return call["formula"] == ADD and all(v.constant is not None for v in call["operands"])


def formula_of_linear(call: OpCall) -> tuple[Formula, list[Value]]:
    """What becomes of the sum, with the layer's output as the sum's name among the operands."""
    (out,) = call.outputs
    return (call["formula"] or SUM), [out, *call["operands"]]


def rows_of(call: OpCall) -> dict[str, Value]:
    """The constants of a linear layer that are its rows: its weight, with what belongs to that."""
    return {name: call[name] for name in _ROWS[call.op] if isinstance(call[name], Value)}


def kind_of(call: OpCall) -> tuple[object, ...]:
    """What linear layers have in common that may be joined by their rows: the operator, its input,
    and how the weight is stored."""
    rows = rows_of(call)
    stored = tuple((name, value.dtype, value.shape[1:]) for name, value in rows.items())
    others = {"formula", "operands", "pairs", *_ROWS[call.op]}
    shared = tuple((name, arg) for name, arg in call.args.items() if name not in others)
    return (call.op, stored, shared)


def joined_rows(layers: Sequence[OpCall], *, alternate: bool = False) -> dict[str, Value]:
    """The arguments of linear layers of one kind (:func:`kind_of`) that are rows, joined."""
    rows = [rows_of(layer) for layer in layers]
    return {name: joined([one[name] for one in rows], alternate=alternate) for name in rows[0]}


class Weights:
    """Which constants one call alone reads, so that they may be stored in another order."""

    def __init__(self, chain: OpChain) -> None:
        self._versions = {*chain.states, *chain.results.values()}
        self._readers: Counter[Any] = Counter()
        leaving = [v for v in chain.outputs if isinstance(v, Value)]
        for value in [*leaving, *(v for call in chain.calls for v in call.input_values())]:
            if value.constant is not None:
                self._readers[_identity(value.constant)] += 1

    def are_free(self, values: Sequence[Value]) -> bool:
        """Whether each of these is a constant that is read once in the chain. Tied weights may be
        several values over one tensor: they count as one."""
        return all(
            value.constant is not None
            and value not in self._versions
            and self._readers[_identity(value.constant)] == 1
            for value in values
        )


def _identity(constant: Any) -> Any:
    if isinstance(constant, JoinedRows):
        return id(constant)
    return constant.data_ptr() if constant.numel() else id(constant)


def joined(values: Sequence[Value], *, alternate: bool = False) -> Value:
    """Constants [N_i, ...] joined by their rows, one after another or in turn."""
    constant = JoinedRows([value.constant for value in values], alternate)
    name = common_path([value.name for value in values])
    return Value(values[0].dtype, constant.shape, name, constant)


def fits_epilogue(value: Value, out: Value) -> bool:
    """Whether an operand of a pointwise call with this output can be one of an epilogue: of the
    output's shape, a vector of its last size, or a number."""
    if not is_float(value.dtype) or value.rank > out.rank:
        return False
    if value.shape == out.shape:
        return True
    if any(size != 1 for size in value.shape[:-1]):
        return False
    return value.rank == 0 or value.shape[-1] in (1, out.shape[-1])


def as_many_rows(value: Value, out: Value) -> bool:
    """Whether a linear layer's output ``value`` has the rows and columns of ``out``."""
    if not out.rank or not is_float(out.dtype) or value.shape[-1] != out.shape[-1]:
        return False
    return product(value.shape) == product(out.shape)
