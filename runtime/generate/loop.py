"""Drives a method step after step, so that the GPU is not left waiting for Python.

A step is submitted before the one ahead of it has been waited for: what it takes of that one stays
on the GPU (``FED_BACK``), and what else it takes the host can foretell (a position that advances).
Each step's arguments are checked before it is submitted, and each result is waited for by its own
submission, with one small readback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidInputError
from ..pending_step import MAX_IN_FLIGHT
from ..program import Method, PendingCall


@dataclass(frozen=True, slots=True)
class Step:
    """One call: ``inputs`` as ``execute`` takes them, ``outputs``: indices of those to read back
    (None for all), ``note``: anything, for whoever takes the results."""

    inputs: Sequence[object]
    outputs: Sequence[int] | None = None
    note: Any = None


class StepLoop:
    """Runs steps of ``method`` with up to ``depth`` of them in flight, at most three.

    Raises:
        InvalidInputError: another depth.
    """

    def __init__(self, method: Method, depth: int = 2) -> None:
        if not 1 <= depth <= MAX_IN_FLIGHT:
            raise InvalidInputError(
                f"{method.name}: depth {depth}: 1 to {MAX_IN_FLIGHT} steps can be in flight"
            )
        self.method, self.depth = method, depth
        self._flight: deque[tuple[Step, PendingCall]] = deque()

    def run(self, steps: Iterable[Step]) -> Generator[tuple[Step, list[Any]], None, None]:
        """Yields each step with its results, in order. A step is taken from ``steps`` when it can
        be submitted: with a depth of 1 after the results before it have been yielded.

        Closing the iterator (:func:`contextlib.closing`) drops the steps in flight, when they are
        done; an exception, such as the one of Ctrl-C, drops them as they are.

        Raises:
            As ``Method.submit`` and ``PendingCall.result``.
        """
        flight = self._flight
        self.drop()
        try:
            for step in steps:
                flight.append((step, self.method.submit(step.inputs, step.outputs)))
                if len(flight) >= self.depth:
                    yield self._next()
            while flight:
                yield self._next()
        except GeneratorExit:
            self.drain()
            raise
        finally:
            self.drop()

    def drain(self) -> list[Step]:
        """Waits for the steps in flight and returns them. Their results are still yielded by
        :meth:`run`.

        Raises:
            DeviceLostError, WgpuDelegateError: a result could not be read.
        """
        for _, pending in self._flight:
            pending.result()
        return [step for step, _ in self._flight]

    def drop(self) -> None:
        """Forgets the steps in flight. They run to their end all the same, before whatever is
        submitted later."""
        self._flight.clear()

    def _next(self) -> tuple[Step, list[Any]]:
        step, pending = self._flight.popleft()
        return step, pending.result()
