"""Which dispatches a step runs: device requirements once at load, guards at each execute.

A :class:`Planner` keeps, for each step of the program, the routes whose requirements the device
meets. The results of their guards pick one route a step; for each combination of results that has
come up there is one flat :class:`Plan`, so that a step in a loop evaluates a handful of guards and
then walks one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from executorch_wgpu.serialization.dispatch_list import (
    NONE,
    BufferKind,
    Dispatch,
    Kernel,
    Program,
    Route,
    ValueKind,
)
from executorch_wgpu.serialization.expressions import EvaluationError, Evaluator

from .device import Capabilities
from .errors import InvalidInputError, UnsupportedDeviceError
from .memory import human_bytes


@dataclass(frozen=True, slots=True)
class Command:
    """One dispatch made ready. ``grid``: positions of the workgroup counts (x, y, z) in the step's
    values, see :class:`Plan`. ``step``: index into the program's steps."""

    pipeline: Any
    bind_group: Any
    grid: tuple[int, int, int]
    dispatch: Dispatch
    kernel: Kernel
    route: str
    step: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one combination of guard results runs.

    ``evaluate(symbols)`` gives the step's values: first the live block, then for each output its
    shape (a tensor) or its value (an int), then from ``grids`` on the distinct workgroup counts.
    ``prepared`` belongs to the recorder.
    """

    commands: tuple[Command, ...]
    evaluate: Evaluator
    grids: int
    prepared: Any


class Planner:
    """Routes and plans of one program on one device.

    Args:
        program: verified.
        have: what the device offers.
        label: opens error messages.

    Raises:
        UnsupportedDeviceError: the device lacks what the program requires, or is too small for one
            of its buffers or bindings. Nothing has been allocated.
    """

    def __init__(self, program: Program, have: Capabilities, label: str) -> None:
        self._program = program
        self._label = label
        self._plans: dict[tuple[bool, ...], Plan] = {}
        lacking = have.lacks(program.features, program.limits)
        if lacking:
            raise UnsupportedDeviceError(
                f"{label}: the device lacks what the program requires: {'; '.join(lacking)}"
                f"{self._largest_needs(have)}"
            )
        #: For each step its routes that can come up on this device, in order of preference.
        self.routes: list[tuple[Route, ...]] = [
            self._choose(step.routes, have) for step in program.steps
        ]
        self._check_sizes(have)
        # Steps share guards: a few of them decide for all.
        guards = [r.guard for routes in self.routes for r in routes if r.guard != NONE]
        self._guarded = list(dict.fromkeys(guards))
        self._guards = Evaluator(program.exprs, self._guarded)
        self._max_grid = have.limits.get("max-compute-workgroups-per-dimension", 65535)

    def _choose(self, routes: Sequence[Route], have: Capabilities) -> tuple[Route, ...]:
        chosen = []
        for route in routes:
            if not have.lacks(route.features, route.limits):
                chosen.append(route)
                if route.guard == NONE:
                    break
        return tuple(chosen)

    def dispatches(self) -> list[Dispatch]:
        """Every dispatch that can come up on this device."""
        return [d for routes in self.routes for route in routes for d in route.dispatches]

    def buffers(self) -> set[int]:
        """Indices of the buffers that those dispatches bind."""
        return {binding.buffer for d in self.dispatches() for binding in d.bindings}

    def _check_sizes(self, have: Capabilities) -> None:
        program = self._program
        largest_buffer = have.limits.get("max-buffer-size")
        largest_binding = have.limits.get("max-storage-buffer-binding-size")
        for index in self.buffers():
            size = program.buffers[index].size
            if largest_buffer is not None and size > largest_buffer:
                raise UnsupportedDeviceError(
                    f"{self._label}: needs {human_bytes(size)} in one buffer, this device allows "
                    f"{human_bytes(largest_buffer)}: '{program.buffers[index].name}' has {size} "
                    f"bytes, its max-buffer-size is {largest_buffer}"
                )
        for dispatch in self.dispatches():
            for binding in dispatch.bindings:
                if largest_binding is not None and binding.size > largest_binding:
                    raise UnsupportedDeviceError(
                        f"{self._label}: needs {human_bytes(binding.size)} in one binding, this "
                        f"device allows {human_bytes(largest_binding)}: '{dispatch.label}' binds "
                        f"{binding.size} bytes of '{program.buffers[binding.buffer].name}', its "
                        f"max-storage-buffer-binding-size is {largest_binding}"
                    )

    def _largest_needs(self, have: Capabilities) -> str:
        """Which buffers are too large for the device, for the message about a limit."""
        program, found = self._program, []
        lasts = [step.routes[-1] for step in program.steps]
        bindings = [(b, d) for route in lasts for d in route.dispatches for b in d.bindings]
        limit = have.limits.get("max-storage-buffer-binding-size")
        if bindings and limit is not None:
            binding, dispatch = max(bindings, key=lambda pair: pair[0].size)
            if binding.size > limit:
                name = program.buffers[binding.buffer].name
                found.append(
                    f"'{dispatch.label}' needs {human_bytes(binding.size)} of '{name}' in one "
                    f"binding, this device allows {human_bytes(limit)}"
                )
        limit = have.limits.get("max-buffer-size")
        always = (BufferKind.STATE, BufferKind.OUTPUT)
        sizes = [b for b in program.buffers if b.kind in always]
        sizes += [program.buffers[binding.buffer] for binding, _ in bindings]
        largest = max(sizes, key=lambda b: b.size, default=None)
        if largest is not None and limit is not None and largest.size > limit:
            found.append(
                f"'{largest.name}' needs {human_bytes(largest.size)} in one buffer, this device "
                f"allows {human_bytes(limit)}"
            )
        return "".join(f". {text}" for text in found)

    def select(self, symbols: Sequence[int], build: Callable[[list[Route]], Plan]) -> Plan:
        """The plan for these live scalars; ``build`` makes one that has not come up before.

        Raises:
            InvalidInputError: a guard divides by zero.
        """
        key: tuple[bool, ...] = ()
        if self._guarded:
            try:
                key = tuple([value != 0 for value in self._guards(symbols)])
            except EvaluationError as error:
                raise InvalidInputError(f"{self._label}: {error}") from error
        plan = self._plans.get(key)
        if plan is None:
            holds = {NONE: True, **dict(zip(self._guarded, key, strict=True))}
            chosen = [next(r for r in routes if holds[r.guard]) for routes in self.routes]
            plan = self._plans[key] = build(chosen)
        return plan

    def build(
        self,
        chosen: Sequence[Route],
        pipelines: dict[int, Any],
        bind_group: Callable[[Dispatch], Any],
        prepare: Callable[[Sequence[Command]], Any],
    ) -> Plan:
        """The plan that runs ``chosen``, one route a step.

        Args:
            pipelines: kernel index -> pipeline.
            bind_group: a dispatch's bind group of storage buffers.
            prepare: the recorder's.
        """
        program = self._program
        needed = [*program.live, *output_exprs(program)]
        grids = len(needed)
        position: dict[int, int] = {}
        commands = []
        for step, route in enumerate(chosen):
            for dispatch in route.dispatches:
                for index in dispatch.grid:
                    if index not in position:
                        position[index] = len(needed)
                        needed.append(index)
                x, y, z = dispatch.grid
                commands.append(
                    Command(
                        pipelines[dispatch.kernel],
                        bind_group(dispatch),
                        (position[x], position[y], position[z]),
                        dispatch,
                        program.kernels[dispatch.kernel],
                        route.name,
                        step,
                    )
                )
        return Plan(tuple(commands), Evaluator(program.exprs, needed), grids, prepare(commands))

    def values(self, plan: Plan, symbols: Sequence[int]) -> list[int]:
        """The step's values, checked: the live ones fit 32 bits, sizes are not negative, grids
        are within the device's limit.

        Raises:
            InvalidInputError: otherwise; the message names the dispatch and the numbers.
        """
        try:
            values = plan.evaluate(symbols)
        except EvaluationError as error:
            raise InvalidInputError(f"{self._label}: {error}") from error
        n_live = len(self._program.live)
        if n_live:
            live = values[:n_live]
            if min(live) < -(2**31) or max(live) >= 2**32:
                bad = next(v for v in live if not -(2**31) <= v < 2**32)
                raise InvalidInputError(
                    f"{self._label}: live value {bad} (slot {live.index(bad)}) is outside 32 bits"
                )
        grids = values[plan.grids :]
        if grids and (min(grids) < 0 or max(grids) > self._max_grid):
            for command in plan.commands:
                grid = [values[at] for at in command.grid]
                if min(grid) < 0 or max(grid) > self._max_grid:
                    raise InvalidInputError(
                        f"{self._label}: '{command.dispatch.label}' needs a grid of "
                        f"{grid[0]} x {grid[1]} x {grid[2]} workgroups, the device takes 0 to "
                        f"{self._max_grid} a dimension; pass smaller inputs"
                    )
        return values


def output_exprs(program: Program) -> list[int]:
    """The expressions of all outputs in order: a tensor's shape, an int's value."""
    needed: list[int] = []
    for output in program.outputs:
        if output.kind is ValueKind.TENSOR:
            needed += program.tensors[output.index].shape
        else:
            needed.append(output.index)
    return needed
