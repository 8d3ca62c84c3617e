"""What comes back from a step: where each output lies in its staging buffer, and those buffers.

A step reads back what its caller asks for, so that a loop which wants one token of a step does not
carry the logits beside it. Staging buffers are kept between steps, by size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from executorch_wgpu.serialization.dispatch_list import DType, Program, ValueKind

from . import boundary
from .errors import InvalidInputError, gpu_errors
from .submission import Staging, Submitter

_SMALLEST = 256


@dataclass(frozen=True, slots=True)
class Readback:
    """A tensor output of one step in its staging buffer: ``size`` bytes at ``start``."""

    shape: tuple[int, ...]
    dtype: DType
    buffer: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What one step reads back. ``outputs``: ints as they are, tensors with their place, in the
    order asked for; ``size``: bytes of staging; ``shapes``: of all tensor outputs by index."""

    outputs: list[Readback | int]
    size: int
    shapes: dict[int, tuple[int, ...]]

    def unpack(self, data: memoryview, torch: bool) -> list[Any]:
        """The outputs in the caller's terms; ``data``: the staging buffer's bytes."""
        results: list[Any] = []
        for output in self.outputs:
            if isinstance(output, int):
                results.append(output)
                continue
            part = data[output.start : output.start + output.size]
            array = boundary.from_storage(part, output.shape, output.dtype)
            results.append(boundary.to_caller(array, output.dtype is DType.BF16, torch))
        return results


def lay_out(
    program: Program, values: Sequence[int], wanted: Sequence[int] | None, label: str
) -> Layout:
    """The layout of a step.

    Args:
        values: the step's, see :class:`.plan.Plan`.
        wanted: indices of the outputs to read back, None for all.
        label: opens error messages.

    Raises:
        InvalidInputError: there is no such output.
    """
    at = len(program.live)
    found: list[tuple[int, ...] | int] = []
    shapes: dict[int, tuple[int, ...]] = {}
    for index, output in enumerate(program.outputs):
        if output.kind is ValueKind.INT:
            found.append(values[at])
            at += 1
            continue
        rank = len(program.tensors[output.index].shape)
        shapes[index] = tuple(values[at : at + rank])
        found.append(shapes[index])
        at += rank
    end = 0
    outputs: list[Readback | int] = []
    for index in range(len(found)) if wanted is None else wanted:
        if not 0 <= index < len(found):
            raise InvalidInputError(f"{label}: output {index} was asked for, of {len(found)}")
        value = found[index]
        if isinstance(value, int):
            outputs.append(value)
            continue
        tensor = program.tensors[program.outputs[index].index]
        count = 1
        for extent in value:
            count *= extent
        size = boundary.storage_bytes(count, tensor.dtype)
        outputs.append(Readback(value, tensor.dtype, tensor.buffer, end, size))
        end += -(-size // 8) * 8
    return Layout(outputs, end, shapes)


class StagingPool:
    """Idle staging buffers of one graph, in sizes that double.

    Args:
        submitter: makes them.
        label: the graph's.
    """

    def __init__(self, submitter: Submitter, label: str) -> None:
        self._submitter, self._label = submitter, label
        # Lists, whose pop and append are atomic: a step that nobody collects gives its buffer back
        # from whatever thread drops it.
        self._idle: dict[int, list[Staging]] = {}
        self._parked: list[Staging] = []
        self.allocated = 0  #: bytes of all that were created

    def take(self, size: int) -> Staging:
        """An idle buffer of at least ``size`` bytes.

        Raises:
            OutOfDeviceMemoryError: a new one was needed and could not be allocated.
        """
        for fitting in sorted(self._idle):
            if fitting >= size:
                with contextlib.suppress(IndexError):
                    while True:
                        staging = self._idle[fitting].pop()
                        if staging.alive:
                            return staging
                        self.allocated -= fitting
        rounded = max(_SMALLEST, 1 << (size - 1).bit_length())
        self._idle.setdefault(rounded, [])
        with gpu_errors(self._label, f"allocating {rounded} bytes to read outputs back"):
            staging = self._submitter.staging(rounded, f"{self._label}: staging")
        self.allocated += rounded
        return staging

    def give(self, staging: Staging) -> None:
        """Takes a buffer back. One that an interrupt has left mapped is put aside for good: wgpu
        aborts the process when it is submitted, and its callback must outlive it."""
        (self._idle[staging.size] if staging.idle else self._parked).append(staging)
