"""One delegate of a method that ExecuTorch's own runtime has loaded: its arguments, its calls.

The shim writes the arguments of a call into one table of 64-bit integers (see ``shim.cpp``). This
is the hot path: the table is read once, and the views on the callers' tensors are kept as long as
address and shape stay the same, which in a loop is from the second call on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from executorch_wgpu.serialization.dispatch_list import DType, Program, ValueKind

from .. import boundary
from ..boundary import Array
from ..errors import InvalidInputError, WgpuDelegateError
from ..graph import WebGPUGraph

#: Tags of a row, and its first column after the tag, dtype, rank and value: as in ``shim.cpp``.
_INT, _BOOL, _DOUBLE, _TENSOR = 1, 2, 3, 4
_HEADER = 4
_TAGS = ("nothing", "an int", "a bool", "a float", "a tensor", "a value of another kind")

#: ExecuTorch's numbers for dtypes.
_CODES: dict[DType, int] = {
    DType.U8: 0,
    DType.I8: 1,
    DType.I32: 3,
    DType.I64: 4,
    DType.F16: 5,
    DType.F32: 6,
    DType.BOOL: 11,
    DType.BF16: 15,
}
_CODE_NAMES = {2: "int16", 7: "float64"} | {
    code: boundary.dtype_name(dtype) for dtype, code in _CODES.items()
}


class Instance(ctypes.Structure):
    """The shim's side of a delegate; Python fills in everything but the id."""

    _fields_ = (
        ("id", ctypes.c_uint64),
        ("inputs", ctypes.c_uint64),
        ("outputs", ctypes.c_uint64),
        ("ranks", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
    )


#: (address of the list of arguments) -> 0, or 1 + the position of the output that cannot be resized
ResizeFn = Callable[[int], int]


class Delegate:
    """A graph and its table.

    Args:
        graph: made ready.
        instance: the shim's structure, which is filled in.
        resize: brings ExecuTorch's outputs to the sizes in the table.
    """

    def __init__(self, graph: WebGPUGraph, instance: Instance, resize: ResizeFn) -> None:
        self.graph = graph
        self._resize = resize
        program = graph.program
        self._inputs = [
            _Argument(program, spec.kind, spec.index, f"{graph.label}: input {k} '{spec.name}'")
            for k, spec in enumerate(program.inputs)
        ]
        self._outputs = [
            _Argument(program, spec.kind, spec.index, f"{graph.label}: output {k}")
            for k, spec in enumerate(program.outputs)
        ]
        at = 0
        for argument in (*self._inputs, *self._outputs):
            argument.at = at
            at += _HEADER + 2 * max(argument.rank, 0)
            argument.end = at
        self._ranks = np.array([a.rank for a in (*self._inputs, *self._outputs)], np.int64)
        self._table = np.zeros(max(at, 1), np.int64)
        instance.inputs, instance.outputs = len(self._inputs), len(self._outputs)
        instance.ranks, instance.table = self._ranks.ctypes.data, self._table.ctypes.data
        self._running = self._collided = False

    def run(self, arguments: int) -> None:
        """One call. ``arguments``: the address that the shim gave.

        Raises:
            InvalidInputError: the arguments do not fit.
            WgpuDelegateError: two threads are in it at once, an output does not fit, the device
                failed.
        """
        if self._running:
            self._collided = True
            raise self._collision()
        self._running, self._collided = True, False
        try:
            values: list[int] = self._table.tolist()
            inputs = [argument.read(values) for argument in self._inputs]
            self._give(self.graph.execute(inputs), values, arguments)
            if self._collided:
                raise self._collision()
        finally:
            self._running = False

    def _collision(self) -> WgpuDelegateError:
        return WgpuDelegateError(
            f"{self.graph.label}: two threads ran this method at once, and ExecuTorch has one set "
            "of buffers for both: call it through executorch.runtime.Method, which takes turns "
            "once the bridge is registered, or hold a lock of your own"
        )

    def _give(self, results: list[Any], values: list[int], arguments: int) -> None:
        """Copies the results to where ExecuTorch wants them."""
        stale = False
        for argument, result in zip(self._outputs, results, strict=True):
            at = argument.at
            if argument.rank < 0:
                self._table[at + 3] = result
                continue
            sizes = list(result.shape)
            first = at + _HEADER
            last = first + argument.rank
            if values[first:last] != sizes or values[at] != _TENSOR:
                self._table[first:last] = sizes
                stale = True
        if stale:
            failed = self._resize(arguments)
            if failed:
                shape = results[failed - 1].shape
                raise WgpuDelegateError(
                    f"{self.graph.label}: output {failed - 1} has shape {shape}, for which "
                    "ExecuTorch has planned no room"
                )
            values = self._table.tolist()
        for argument, result in zip(self._outputs, results, strict=True):
            if argument.rank >= 0 and result.size:
                if argument.dtype is DType.BF16:
                    result = result.view(np.uint16)
                argument.view(values)[...] = result


class _Argument:
    """One argument of a delegate. ``where``: opens error messages; ``rank``: dimensions, -1 for an
    int; ``at``: its row."""

    __slots__ = ("_key", "_view", "_where", "at", "dtype", "end", "rank")

    def __init__(self, program: Program, kind: ValueKind, index: int, where: str) -> None:
        self._where = where
        self.at = self.end = 0
        self.dtype, self.rank = DType.I64, -1
        if kind is ValueKind.TENSOR:
            tensor = program.tensors[index]
            self.dtype, self.rank = tensor.dtype, len(tensor.shape)
        self._key: list[int] | None = None
        self._view: Array = np.empty(0)

    def read(self, values: list[int]) -> Array | int:
        if self.rank >= 0:
            return self.view(values)
        tag = values[self.at]
        if tag not in (_INT, _BOOL):
            raise InvalidInputError(f"{self._where}: expected an int, got {_TAGS[tag]}")
        return values[self.at + 3]

    def view(self, values: list[int]) -> Array:
        """The caller's memory as an array of the boundary dtype, any strides; nothing is copied.
        Valid during the call only."""
        key = values[self.at : self.end]
        if key != self._key:
            self._view = self._make(key)
            self._key = key
        return self._view

    def _make(self, row: list[int]) -> Array:
        tag, code, rank, address = row[:_HEADER]
        if tag != _TENSOR or code != _CODES[self.dtype] or rank != self.rank:
            want = f"a {boundary.dtype_name(self.dtype)} tensor of {self.rank} dimensions"
            got = _TAGS[tag]
            if tag == _TENSOR:
                got = f"a {_CODE_NAMES.get(code, f'(dtype {code})')} tensor of {rank}"
            raise InvalidInputError(f"{self._where}: expected {want}, got {got}")
        sizes = row[_HEADER : _HEADER + rank]
        steps = row[_HEADER + rank :]
        dtype = np.dtype(np.uint16) if self.dtype is DType.BF16 else _NUMPY[self.dtype]
        if 0 in sizes:
            return np.empty(sizes, dtype)
        if not address:
            raise InvalidInputError(f"{self._where}: the tensor has no memory")
        last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        memory = (ctypes.c_char * ((last + 1) * dtype.itemsize)).from_address(address)
        strides = [step * dtype.itemsize for step in steps]
        return np.ndarray(sizes, dtype, memoryview(memory), 0, strides)


_NUMPY = {dtype: np.dtype(boundary.dtype_name(dtype)) for dtype in _CODES if dtype != DType.BF16}
