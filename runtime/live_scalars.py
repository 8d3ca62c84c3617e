"""From the arguments of one ``execute`` to admitted values: everything the host decides before
the GPU sees a thing.

:class:`Admission` is built once a graph. Calling it validates the arguments (count, kind, dtype,
rank, sizes, ranges), reads the live scalars, and evaluates the program's checks. It touches no
GPU object, so a refused call changes no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executorch_wgpu.serialization.dispatch_list import (
    NONE,
    Program,
    SymInt,
    SymSource,
    ValueKind,
)

from . import boundary
from ._expressions_stub import Evaluator
from .boundary import Array
from .errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Admitted:
    """Arguments that passed. ``arrays``: for each input its array in the boundary dtype, None
    for ints. ``uploads``: (buffer index, flat storage array) of what the GPU reads.
    ``torch``: a torch tensor was among the arguments."""

    symbols: tuple[int, ...]
    uploads: list[tuple[int, Array]]
    torch: bool


class Admission:
    """Validates arguments and reads live scalars for one program.

    Args:
        program: verified.
        label: first word of every message.
    """

    def __init__(self, program: Program, label: str) -> None:
        self._program = program
        self._label = label or "program"
        self._where = [
            f"{self._label}: input {i} '{spec.name}'" for i, spec in enumerate(program.inputs)
        ]
        shapes: list[int] = []
        self._shape_at: dict[int, slice] = {}
        for i, spec in enumerate(program.inputs):
            if spec.kind is ValueKind.TENSOR:
                shape = program.tensors[spec.index].shape
                self._shape_at[i] = slice(len(shapes), len(shapes) + len(shape))
                shapes += shape
        self._shapes = Evaluator(program.exprs, shapes)
        needed = [index for check in program.checks for index in (check.expr, *check.args)]
        self._checks = Evaluator(program.exprs, needed) if needed else None

    def __call__(self, inputs: Sequence[object]) -> Admitted:
        """Admits one call.

        Args:
            inputs: one value per program input, see :mod:`.boundary`.

        Raises:
            InvalidInputError: with the label, the argument, what was expected and what came.
        """
        program = self._program
        if len(inputs) != len(program.inputs):
            names = ", ".join(spec.name for spec in program.inputs) or "none"
            raise InvalidInputError(
                f"{self._label}: expected {len(program.inputs)} inputs ({names}), got {len(inputs)}"
            )
        arrays: list[Array | None] = []
        ints: list[int] = []
        for where, spec, value in zip(self._where, program.inputs, inputs, strict=True):
            if spec.kind is ValueKind.TENSOR:
                tensor = program.tensors[spec.index]
                array = boundary.as_array(value, tensor.dtype, where)
                if array.ndim != len(tensor.shape):
                    raise InvalidInputError(
                        f"{where}: expected {len(tensor.shape)} dimensions, "
                        f"got {array.ndim} (shape {array.shape})"
                    )
                arrays.append(array)
                ints.append(0)
            else:
                arrays.append(None)
                ints.append(boundary.as_int(value, where))
        symbols = tuple(self._read(symint, arrays, ints) for symint in program.symints)
        expected = self._shapes(symbols)
        uploads: list[tuple[int, Array]] = []
        for i, at in self._shape_at.items():
            array = arrays[i]
            assert array is not None
            if array.shape != tuple(expected[at]):
                raise InvalidInputError(
                    f"{self._where[i]}: expected shape {tuple(expected[at])}, got {array.shape}"
                )
        self._run_checks(symbols)
        for i in self._shape_at:
            array = arrays[i]
            assert array is not None
            tensor = program.tensors[program.inputs[i].index]
            if tensor.buffer != NONE and array.size:
                data = boundary.to_storage(array, tensor.dtype, self._where[i])
                uploads.append((tensor.buffer, data))
        return Admitted(symbols, uploads, any(boundary.is_torch(value) for value in inputs))

    def _read(self, symint: SymInt, arrays: list[Array | None], ints: list[int]) -> int:
        where = self._where[symint.input]
        array = arrays[symint.input]
        what = "value"
        if symint.source is SymSource.INT_ARG:
            value = ints[symint.input]
        elif symint.source is SymSource.INPUT_DIM:
            assert array is not None
            value = array.shape[symint.index]
            what = f"size of dimension {symint.index}"
        else:
            assert array is not None
            what = f"element [{symint.index}]"
            if not -array.size <= symint.index < array.size:
                raise InvalidInputError(
                    f"{where}: {what} is needed, but the tensor has {array.size} elements"
                )
            value = int(array.flat[symint.index])
        if not symint.lo <= value <= symint.hi:
            raise InvalidInputError(
                f"{where}: {what} is {value}, outside {symint.lo}..{symint.hi} ({symint.name})"
            )
        return value

    def _run_checks(self, symbols: tuple[int, ...]) -> None:
        if self._checks is None:
            return
        values = iter(self._checks(symbols))
        for check in self._program.checks:
            holds = next(values)
            args = [next(values) for _ in check.args]
            if holds:
                continue
            message = check.message
            for i, arg in enumerate(args):
                # Not str.format: the text comes from a file.
                message = message.replace("{" + str(i) + "}", str(arg))
            raise InvalidInputError(f"{self._label}: {message}")
