"""Records and collects the profiled steps of one graph: every dispatch in a pass of its own with
a timestamp before and after, and a pass that does nothing behind each copy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executorch_wgpu.serialization.dispatch_list import NONE, Access, Program
from executorch_wgpu.serialization.expressions import EvaluationError, Evaluator
from executorch_wgpu.serialization.origins import dispatch_ids

from ..device import Capabilities
from ..plan import Command, Plan
from ..query_pool import ShaderDuration, WebGPUQueryPool
from ..recorder import LIVE_GROUP, STORAGE_GROUP
from ..submission import Submitter
from .records import HostPhase, StepProfile

logger = logging.getLogger("executorch_wgpu")

#: Passes beside the dispatches of a plan: copies of a step.
_SPARE = 16

_NOTHING = "@compute @workgroup_size(1) fn main() {}"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a plan's profiled steps have in common. ``costs`` evaluates bytes and flops of every
    dispatch, one after the other."""

    infos: tuple[ShaderDuration, ...]
    costs: Evaluator


class Profiler:
    """Order of calls in a step: :meth:`begin`, :meth:`mark` after each phase of the host,
    meanwhile on the command encoder :meth:`start`, :meth:`record`, :meth:`copied` after each copy
    and :meth:`finish`; after the outputs have been read :meth:`collect`.

    Args:
        device: a ``GPUDevice`` with the feature ``timestamp-query``.
        submitter: its submitter.
        program: what is replayed.
        label: the graph's.
        on_step: called with every profiled step.
    """

    def __init__(
        self,
        device: Any,
        submitter: Submitter,
        program: Program,
        label: str,
        on_step: Callable[[StepProfile], None] | None = None,
    ) -> None:
        self.device, self.program, self.label = device, program, label
        self.pool = WebGPUQueryPool(device, submitter, label)
        self.on_step = on_step
        self._ids = {id(dispatch): name for dispatch, name in dispatch_ids(program)}
        self._labels = {
            d.label for step in program.steps for r in step.routes for d in r.dispatches
        }
        self._prepared: dict[int, tuple[Plan, _Prepared]] = {}
        self._steps = 0
        self._passes = 0
        self._plan: Plan | None = None
        self._nothing: Any = None
        self._symbols: Sequence[int] = ()
        self._marks: list[tuple[str, int]] = []

    # -- the host's time ---------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins: its arguments are there."""
        self._marks = [("", time.perf_counter_ns())]

    def mark(self, phase: str) -> None:
        """A phase of the host, one of :data:`.records.PHASES`, has just ended."""
        self._marks.append((phase, time.perf_counter_ns()))

    # -- recording ---------------------------------------------------------------------------

    def start(
        self, encoder: Any, plan: Plan, symbols: Sequence[int], copies_first: bool = False
    ) -> None:
        """The step's command encoder is open.

        Args:
            symbols: the live scalars.
            copies_first: copies come before the dispatches; an empty pass marks where they begin.
        """
        self._plan, self._symbols = plan, symbols
        pool = self.pool
        pool.initialize(len(plan.commands) + _SPARE)
        pool.reset(pool.capacity)
        self._passes = 0
        if copies_first:
            self._mark(encoder, "begin")
            pool.record(0, ShaderDuration(0, "begin", kind="marker"))
            self._passes = 1

    def record(self, encoder: Any, live: Any, offset: int, values: Sequence[int]) -> None:
        """Like a recorder's ``record``, but on a command encoder, with a pass a dispatch."""
        plan, pool = self._plan, self.pool
        assert plan is not None, "start() sets it"
        prepared, commands = self._prepare(plan), plan.commands
        costs = self._costs(plan, prepared, self._symbols)
        order = _Order()
        for i, command in enumerate(commands):
            x, y, z = (values[at] for at in command.grid)
            if not (x and y and z):
                continue
            what = replace(
                prepared.infos[i],
                global_workgroups=(x, y, z),
                bytes=costs[2 * i],
                flops=costs[2 * i + 1],
            )
            compute = encoder.begin_compute_pass(
                label=command.dispatch.label, timestamp_writes=pool.writes_for(self._passes)
            )
            compute.set_bind_group(LIVE_GROUP, live, [offset])
            compute.set_pipeline(command.pipeline)
            compute.set_bind_group(STORAGE_GROUP, command.bind_group)
            compute.dispatch_workgroups(x, y, z)
            compute.end()
            pool.record(self._passes, what, after=order.note(self._passes, command))
            self._passes += 1

    def copied(self, encoder: Any, what: str, size: int) -> None:
        """A copy of ``size`` bytes has just been recorded on the encoder."""
        if self._passes >= self.pool.capacity:
            return  # more copies than anyone foresaw: those are not timed
        self._mark(encoder, f"after {what}")
        copy = ShaderDuration(
            self._passes, what, kind="copy", label=what, bytes=2 * size, bindings=(f"{size} B",)
        )
        self.pool.record(self._passes, copy, closes=True)
        self._passes += 1

    def _mark(self, encoder: Any, label: str) -> None:
        """A pass that does nothing. Not an empty one: Metal writes no timestamps for those."""
        if self._nothing is None:
            module = self.device.create_shader_module(label="nothing", code=_NOTHING)
            self._nothing = self.device.create_compute_pipeline(
                label="nothing", layout="auto", compute={"module": module, "entry_point": "main"}
            )
        compute = encoder.begin_compute_pass(
            label=label, timestamp_writes=self.pool.writes_for(self._passes)
        )
        compute.set_pipeline(self._nothing)
        compute.dispatch_workgroups(1, 1, 1)
        compute.end()

    def finish(self, encoder: Any) -> None:
        """Everything of the step has been recorded."""
        self.pool.resolve(encoder)

    def collect(self, token: int) -> StepProfile:
        """The step submitted as ``token``.

        Raises:
            ProfilingError: the timestamps could not be read.
        """
        passes: tuple[ShaderDuration, ...] = ()
        if self._passes:
            self.pool.extract_results(token)
            passes = tuple(p for p in self.pool.results() if p.kind != "marker")
        host = tuple(
            HostPhase(name, start, end)
            for (_, start), (name, end) in zip(self._marks, self._marks[1:], strict=False)
        )
        names = [symint.name for symint in self.program.symints]
        scalars = tuple(zip(names, self._symbols, strict=True))
        step = StepProfile(self.label, self._steps, scalars, passes, host)
        self._steps += 1
        if self.on_step is not None:
            self.on_step(step)
        return step

    # -- once a plan -------------------------------------------------------------------------

    def _prepare(self, plan: Plan) -> _Prepared:
        # Keyed by identity; the plan is kept so that its identity stays its own.
        found = self._prepared.get(id(plan))
        if found is None:
            needed = [
                0 if index == NONE else index
                for command in plan.commands
                for index in (command.dispatch.bytes, command.dispatch.flops)
            ]
            found = self._prepared[id(plan)] = (
                plan,
                _Prepared(
                    tuple(self._info(command) for command in plan.commands),
                    Evaluator(self.program.exprs, needed),
                ),
            )
        return found[1]

    def _info(self, command: Command) -> ShaderDuration:
        dispatch = command.dispatch
        names = [self.program.buffers[binding.buffer].name for binding in dispatch.bindings]
        bound = zip(names, dispatch.bindings, command.kernel.accesses, strict=True)
        return ShaderDuration(
            -1,
            _kernel_name(dispatch.label, self._labels) or command.kernel.entry_point,
            local_workgroup_size=command.kernel.workgroup_size,
            label=dispatch.label,
            op=dispatch.op,
            module_path=dispatch.module_path,
            route=command.route,
            step=command.step,
            debug_handle=dispatch.debug_handle,
            delegate_id=self._ids.get(id(dispatch), dispatch.label),
            bindings=tuple(
                f"{'reads' if access is Access.READ else 'writes'} {name} ({binding.size} B)"
                for name, binding, access in bound
            ),
        )

    def _costs(self, plan: Plan, prepared: _Prepared, symbols: Sequence[int]) -> list[int | None]:
        """Bytes and flops of every dispatch of the plan, one after the other; None for unknown."""
        indices = [
            index
            for command in plan.commands
            for index in (command.dispatch.bytes, command.dispatch.flops)
        ]
        try:
            values = prepared.costs(symbols)
        except EvaluationError:
            return [None] * len(indices)
        return [
            None if index == NONE or value < 0 else value
            for index, value in zip(indices, values, strict=True)
        ]


def _kernel_name(label: str, labels: set[str]) -> str:
    """``linear`` of ``layers.0/linear``, and of ``layers.0/linear_1`` where that one only numbers
    the second of two."""
    base, _, number = label.rpartition("_")
    if number.isdigit() and base in labels:
        label = base
    return label.rsplit("/", 1)[-1]


class _Order:
    """Which earlier pass each pass has to wait for, by the buffers that they bind."""

    def __init__(self) -> None:
        self._written: dict[int, int] = {}
        self._used: dict[int, int] = {}

    def note(self, i: int, command: Command) -> int:
        """Pass ``i`` runs ``command``; returns the latest pass whose end it needs, -1 for none."""
        after = -1
        bound = zip(command.dispatch.bindings, command.kernel.accesses, strict=True)
        pairs = [(binding.buffer, access) for binding, access in bound]
        for buffer, access in pairs:
            earlier = self._written if access is Access.READ else self._used
            after = max(after, earlier.get(buffer, -1))
        for buffer, access in pairs:
            self._used[buffer] = i
            if access is not Access.READ:
                self._written[buffer] = i
        return after


_warned: set[str] = set()


def profiler_of(
    device: Any,
    submitter: Submitter,
    program: Program,
    have: Capabilities,
    label: str,
    *,
    report: bool = False,
) -> Profiler | None:
    """A profiler, or None with one warning a process and adapter when the device was created
    without ``timestamp-query``.

    Args:
        report: the environment asked for it, so what it finds is reported when the process ends.
    """
    if "timestamp-query" not in have.features:
        adapter = getattr(getattr(device, "adapter", None), "summary", "the device")
        if adapter not in _warned:
            _warned.add(adapter)
            logger.warning(
                "%s: profiling was asked for, but %s has no timestamp-query; running without",
                label,
                adapter,
            )
        return None
    profiler = Profiler(device, submitter, program, label)
    if report:
        from .session import join

        join(profiler)
    return profiler
