"""From the arguments of one ``execute`` to admitted values: everything the host decides before
the GPU sees a thing.

:class:`Admission` is built once a graph. Calling it validates the arguments (count, kind, dtype,
rank, sizes, ranges), reads the live scalars, and evaluates the program's checks. It touches no
GPU object, so a refused call changes no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from executorch_wgpu.serialization.dispatch_list import (
    NONE,
    Program,
    SymInt,
    SymSource,
    Tensor,
    ValueKind,
)
from executorch_wgpu.serialization.expressions import EvaluationError, Evaluator

from . import boundary
from .boundary import Array
from .errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Admitted:
    """Arguments that passed. ``symbols``: one value a SymInt. ``uploads``: (buffer index, flat
    storage array) of what the GPU reads. ``torch``: a torch tensor was among the arguments."""

    symbols: tuple[int, ...]
    uploads: list[tuple[int, Array]]
    torch: bool


class Admission:
    """Validates arguments and reads live scalars for one program.

    Args:
        program: verified.
        label: first word of every message.
        positions: for each input the number that messages give it, where the caller counts
            otherwise.
    """

    def __init__(
        self, program: Program, label: str, positions: Sequence[int] | None = None
    ) -> None:
        self._program = program
        self._label = label
        self._where = [
            f"{label}: input {i} '{spec.name}'"
            for i, spec in zip(
                range(len(program.inputs)) if positions is None else positions,
                program.inputs,
                strict=True,
            )
        ]
        # (input, its tensor, where its shape lies in the evaluated shapes)
        self._tensors: list[tuple[int, Tensor, slice]] = []
        shapes: list[int] = []
        for i, spec in enumerate(program.inputs):
            if spec.kind is ValueKind.TENSOR:
                tensor = program.tensors[spec.index]
                at = slice(len(shapes), len(shapes) + len(tensor.shape))
                self._tensors.append((i, tensor, at))
                shapes += tensor.shape
        self._shapes = Evaluator(program.exprs, shapes)
        self._ints = [i for i, spec in enumerate(program.inputs) if spec.kind is ValueKind.INT]
        needed = [index for check in program.checks for index in (check.expr, *check.args)]
        self._checks = Evaluator(program.exprs, needed) if needed else None
        # Where among those values the ones are that must not be zero.
        self._holds: list[int] = []
        count = 0
        for check in program.checks:
            self._holds.append(count)
            count += 1 + len(check.args)

    def where(self, index: int) -> str:
        """How messages name input ``index``."""
        return self._where[index]

    def __call__(
        self, inputs: Sequence[object], fed: Mapping[int, tuple[int, ...]] | None = None
    ) -> Admitted:
        """Admits one call.

        Args:
            inputs: one value per program input, see :mod:`.boundary`.
            fed: input -> shape, of those that are on the GPU already. Their values are not looked
                at; the verifier holds that no live scalar is read from an element of them.

        Raises:
            InvalidInputError: with the label, the argument, what was expected and what came.
        """
        specs = self._program.inputs
        if len(inputs) != len(specs):
            names = ", ".join(spec.name for spec in specs) or "none"
            raise InvalidInputError(
                f"{self._label}: expected {len(specs)} inputs ({names}), got {len(inputs)}"
            )
        arrays: dict[int, Array] = {}
        shapes: dict[int, tuple[int, ...]] = dict(fed or {})
        for i, tensor, _ in self._tensors:
            if i not in shapes:
                arrays[i] = boundary.as_array(inputs[i], tensor.dtype, self._where[i])
                shapes[i] = arrays[i].shape
            if len(shapes[i]) != len(tensor.shape):
                raise InvalidInputError(
                    f"{self._where[i]}: expected {len(tensor.shape)} dimensions, got "
                    f"{len(shapes[i])} (shape {shapes[i]})"
                )
        ints = {i: boundary.as_int(inputs[i], self._where[i]) for i in self._ints}
        symbols = tuple(
            [self._read(symint, arrays, shapes, ints) for symint in self._program.symints]
        )
        expected = self._evaluate(self._shapes, symbols)
        for i, _, at in self._tensors:
            if shapes[i] != tuple(expected[at]):
                raise InvalidInputError(
                    f"{self._where[i]}: expected shape {tuple(expected[at])}, got {shapes[i]}"
                )
        self._run_checks(symbols)
        uploads = [
            (tensor.buffer, boundary.to_storage(arrays[i], tensor.dtype, self._where[i]))
            for i, tensor, _ in self._tensors
            if i in arrays and tensor.buffer != NONE and arrays[i].size
        ]
        return Admitted(symbols, uploads, any(boundary.is_torch(value) for value in inputs))

    def _read(
        self,
        symint: SymInt,
        arrays: Mapping[int, Array],
        shapes: Mapping[int, tuple[int, ...]],
        ints: Mapping[int, int],
    ) -> int:
        where = self._where[symint.input]
        if symint.source is SymSource.INT_ARG:
            what, value = "value", ints[symint.input]
        elif symint.source is SymSource.INPUT_DIM:
            what = f"size of dimension {symint.index}"
            value = shapes[symint.input][symint.index]
        else:
            what, array = f"element [{symint.index}]", arrays[symint.input]
            if not -array.size <= symint.index < array.size:
                raise InvalidInputError(
                    f"{where}: its {what} is needed, but the tensor has {array.size} elements"
                )
            value = int(array.flat[symint.index])
        if not symint.lo <= value <= symint.hi:
            raise InvalidInputError(
                f"{where}: {what} is {value}, expected {symint.lo} to {symint.hi} ({symint.name})"
            )
        return value

    def _evaluate(self, evaluator: Evaluator, symbols: tuple[int, ...]) -> list[int]:
        try:
            return evaluator(symbols)
        except EvaluationError as error:
            raise InvalidInputError(f"{self._label}: {error}") from error

    def _run_checks(self, symbols: tuple[int, ...]) -> None:
        if self._checks is None:
            return
        values = self._evaluate(self._checks, symbols)
        for check, at in zip(self._program.checks, self._holds, strict=True):
            if values[at]:
                continue
            message = check.message
            for i in range(len(check.args)):
                # Not str.format: the text comes from a file.
                message = message.replace("{" + str(i) + "}", str(values[at + 1 + i]))
            raise InvalidInputError(f"{self._label}: {message}")
