"""Runs one operator (or a short chain of them) through lowering, the dispatch list and replay.

No torch.export: an OpCall is made by hand, so a kernel is tested at any shape in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from executorch_wgpu.backend.lowering import LoweredProgram, lower_chain
from executorch_wgpu.ops.call import ChainCheck, ChainInput, OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.symbolic import Scalar, symbol
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import DType, SymInt, SymSource

DTYPES = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.bool: DType.BOOL,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
}


def assert_close(actual: Any, expected: torch.Tensor, abs_tol: float = 1e-4, rel_tol: float = 1e-3):
    """Per element: abs error <= abs_tol or rel error <= rel_tol. NaN never passes."""
    got = torch.as_tensor(actual).double()
    want = expected.double()
    assert tuple(got.shape) == tuple(want.shape), (tuple(got.shape), tuple(want.shape))
    error = (got - want).abs()
    bad = ~((error <= abs_tol) | (error <= rel_tol * want.abs()))
    assert not bad.any(), (
        f"{int(bad.sum())} of {bad.numel()} elements differ, largest error "
        f"{error.nan_to_num(float('inf')).max():.3g} at {bad.nonzero()[0].tolist()}: "
        f"{got[tuple(bad.nonzero()[0])]} for {want[tuple(bad.nonzero()[0])]}"
    )


class Chain:
    """Builds an OpChain step by step.

    >>> c = Chain()
    >>> S = c.int_input("S", 1, 64)                  # a live int argument
    >>> x = c.input("x", (1, S, 8))                  # a tensor with a live size
    >>> (y,) = c.call("aten.neg.default", {"self": x}, [(x.dtype, x.shape)])
    >>> c.output(y); graph = c.graph(device); graph.execute([3, x_array])
    """

    def __init__(self) -> None:
        self.chain = OpChain([], [], [])

    def int_input(self, name: str, lo: int, hi: int) -> Scalar:
        index = len(self.chain.symints)
        position = len(self.chain.inputs)
        self.chain.symints.append(SymInt(name, SymSource.INT_ARG, position, 0, lo, hi))
        self.chain.inputs.append(ChainInput(name, symint=index))
        return symbol(index, name, lo, hi)

    def input(
        self, name: str, shape: Sequence[Scalar], dtype: torch.dtype = torch.float32
    ) -> Value:
        value = Value(DTYPES[dtype], tuple(shape), name)
        self.chain.inputs.append(ChainInput(name, value))
        return value

    def dim_of(self, name: str, dim: int, lo: int, hi: int) -> Scalar:
        """A live scalar read from dimension ``dim`` of the *next* input."""
        index = len(self.chain.symints)
        position = len(self.chain.inputs)
        self.chain.symints.append(SymInt(name, SymSource.INPUT_DIM, position, dim, lo, hi))
        return symbol(index, name, lo, hi)

    def constant(self, tensor: torch.Tensor, name: str = "weight") -> Value:
        return Value(DTYPES[tensor.dtype], tuple(tensor.shape), name, tensor)

    def state(self, tensor: torch.Tensor, name: str) -> Value:
        value = self.constant(tensor, name)
        self.chain.states[value] = name
        self.chain.results[value] = value
        return value

    def call(
        self,
        op: str,
        args: Mapping[str, Any],
        outputs: Sequence[tuple[DType, Sequence[Scalar]]],
        mutates: Mapping[int, str] | None = None,
        module: str = "layer",
    ) -> tuple[Value, ...]:
        values = tuple(Value(d, tuple(s), f"{op}:{i}") for i, (d, s) in enumerate(outputs))
        call = OpCall(op, dict(args), values, Origin(op, module), dict(mutates or {}))
        self.chain.calls.append(call)
        for index, name in call.mutates.items():
            for first, last in self.chain.results.items():
                if last is call.args[name]:
                    self.chain.results[first] = values[index]
        return values

    def check(self, condition: Scalar, message: str, *args: Scalar) -> None:
        self.chain.checks.append(ChainCheck(condition, message, args))

    def output(self, *values: Value | Scalar) -> None:
        self.chain.outputs.extend(values)

    def lower(self) -> LoweredProgram:
        return lower_chain(self.chain)

    def graph(self, device: Any) -> WebGPUGraph:
        lowered = self.lower()
        return WebGPUGraph(device, lowered.program, lowered.data, "test")


#: Functional operators whose result is the next version of an argument, as the adapter says.
_MUTATES = {"aten.slice_scatter.default": {0: "self"}}


def run_op(
    device: Any,
    op: str,
    args: Mapping[str, Any],
    expected: torch.Tensor | Sequence[torch.Tensor],
    constants: Sequence[str] = (),
) -> list[Any]:
    """Run one functional operator with static shapes. ``args`` by schema name: tensors become
    inputs (constants when named in ``constants``), the rest is passed through. The outputs'
    dtypes and shapes are ``expected``'s. Returns the outputs as numpy arrays, as torch tensors
    where bfloat16 comes in or out."""
    wanted = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    chain = Chain()
    arrays: list[Any] = []

    def convert(name: str, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            if name in constants:
                return chain.constant(arg, name)
            arrays.append(arg.contiguous())
            return chain.input(name, tuple(arg.shape), arg.dtype)
        if isinstance(arg, (list, tuple)):
            return [convert(name, item) for item in arg]
        return arg

    values = {name: convert(name, arg) for name, arg in args.items()}
    outputs = [(DTYPES[t.dtype], tuple(t.shape)) for t in wanted]
    chain.output(*chain.call(op, values, outputs, _MUTATES.get(op)))
    graph = chain.graph(device)
    if any(t.dtype == torch.bfloat16 for t in (*arrays, *wanted)):
        if arrays:
            return graph.execute(arrays)
        bits = [np.asarray(y) for y in graph.execute([])]
        return [torch.from_numpy(y.view(np.int16)).view(torch.bfloat16) for y in bits]
    return graph.execute([array.numpy() for array in arrays])
