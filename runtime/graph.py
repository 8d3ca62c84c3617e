"""Replays one program on one device.

Load: compare requirements, choose routes, compile, allocate, upload, bind. Execute: admit the
arguments and evaluate everything on the host (:mod:`.live_scalars`, :mod:`.plan`); only then
record one compute pass, submit it, and read the outputs through a kept staging buffer. Nothing is
created on the device between steps but the command encoder.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from executorch_wgpu.serialization.dispatch_list import Program, Route, ValueKind
from executorch_wgpu.serialization.verify import verify

from . import boundary
from .bindings import BindGroups, LiveBlock
from .boundary import FED_BACK
from .device import advice_for, capabilities
from .encoders import encoders_of
from .errors import InvalidInputError, UnsupportedDeviceError, WgpuDelegateError, gpu_errors
from .interrupt import Interrupts, stopped_by
from .laps import Laps
from .live_scalars import Admission, Admitted
from .memory import memory_limit
from .pending_step import Flight, PendingStep
from .plan import Plan, Planner
from .readback import Readback, lay_out
from .recorder import recorder_of
from .shaders import pipelines_of
from .states import State, StateSpace
from .storage import Buffers, NamedData, Progress
from .submission import submitter_of

if TYPE_CHECKING:
    from .profiling.profiler import Profiler
    from .profiling.records import StepProfile
    from .query_pool import WebGPUQueryPool

T = TypeVar("T")

#: Where the GPU has nothing to do, a third of a step of at least so many dispatches is submitted
#: before the rest is recorded, and computes meanwhile.
LONG_STEP = 48


def env_switch(name: str) -> bool:
    """An environment variable as a switch: unset, empty and 0 are off."""
    return os.environ.get(name, "") not in ("", "0")


class WebGPUGraph:
    """A program made ready on a device.

    Args:
        device: a ``GPUDevice`` of wgpu or wgpudawn (see :func:`.device.resolve_device`).
        program: the dispatch list.
        named_data: key -> bytes-like of the constants and initial states.
        label: opens every error message and names the GPU objects; such as ``forward``.
        data_identity: equal for graphs whose ``named_data`` is the same file, which then share
            constants on the device; None shares nothing.
        profile: timestamps for every dispatch, see :meth:`last_profile`; None asks
            ``WEBGPU_TIMESTAMP_QUERY``.
        poison: before each step, fill what it may not rely on with NaN; None asks
            ``EXECUTORCH_WGPU_POISON``. Slow, for tests.
        debug_labels: a debug group a dispatch, for GPU debuggers; None asks
            ``EXECUTORCH_WGPU_DEBUG_LABELS``. Slower recording, the same results.
        positions: for each input the number that error messages give it, where the caller counts
            otherwise.
        plain_api: never call wgpu-native's C functions.
        verified: ``program`` comes from ``deserialize``, which has verified it.
        space: where states are shared with other graphs, by group; None: with none.
        progress: called with (bytes done, bytes in all) while constants are uploaded.
        max_bytes: refuse to load where this process would then hold more than that on the device,
            see :func:`.memory.memory_limit` for None.

    Attributes:
        state: what persists between calls.
        space: where its states are shared, by group.
        load_seconds: what loading took, by part: "choosing" routes (and verifying, where that was
            left to do), "pipelines", "buffers" (allocated and filled), "binding" them.

    Raises:
        InvalidProgramError: the program breaks an invariant, a shader does not compile, or data
            is missing.
        UnsupportedDeviceError: the device lacks a feature or a limit; nothing was allocated.
        OutOfDeviceMemoryError, DeviceLostError.
    """

    def __init__(
        self,
        device: Any,
        program: Program,
        named_data: NamedData | None = None,
        label: str = "",
        *,
        data_identity: Hashable | None = None,
        profile: bool | None = None,
        poison: bool | None = None,
        debug_labels: bool | None = None,
        positions: Sequence[int] | None = None,
        plain_api: bool = False,
        verified: bool = False,
        space: StateSpace | None = None,
        progress: Progress | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "max_bytes": max_bytes,
            "profile": profile,
            "poison": poison,
            "debug_labels": debug_labels,
            "positions": positions,
            "plain_api": plain_api,
        }
        self._named_data = named_data
        laps = Laps()
        self.load_seconds = laps.seconds
        if not verified:
            verify(program)
        self.device = device
        self.program = program
        self.label = label or "program"
        if debug_labels is None:
            debug_labels = env_switch("EXECUTORCH_WGPU_DEBUG_LABELS")
        self._poison = env_switch("EXECUTORCH_WGPU_POISON") if poison is None else poison
        self._lock = threading.Lock()
        #: Why the states are undefined: a step stopped after its first part was submitted.
        self._torn = ""
        self._admission = Admission(program, self.label, positions)
        have = capabilities(device)
        try:
            self._planner = Planner(program, have, self.label)
        except UnsupportedDeviceError as error:
            raise UnsupportedDeviceError(
                f"{error}. {advice_for(program.features, program.limits)}"
            ) from None
        self._submitter = submitter_of(device, plain=plain_api)
        self._recorder = recorder_of(device, debug_labels=debug_labels, plain=plain_api)
        self._encoders = encoders_of(device, self.label, plain=plain_api)
        self._compiler = pipelines_of(device)
        laps.mark("choosing")
        self._pipelines = self._compile()
        laps.mark("pipelines")
        tensors = [program.tensors[o.index] for o in program.outputs if o.kind is ValueKind.TENSOR]
        self.space = space or StateSpace()
        self._buffers = Buffers(
            device,
            self._submitter,
            program,
            self._planner.buffers() | {tensor.buffer for tensor in tensors},
            named_data,
            data_identity,
            self.space,
            self.label,
            progress,
            memory_limit(device, max_bytes),
        )
        self.state = State(device, self._submitter, program, self.label, self._buffers, self._lock)
        laps.mark("buffers")
        self._live = LiveBlock(device, self._compiler.live_layout, self.label)
        self._bind_groups = BindGroups(device, self._compiler, program, self._buffers, self.label)
        for dispatch in self._planner.dispatches():
            self._bind_groups.of(dispatch)
        self._sources = {pair.input: pair.output for pair in program.feedback}
        #: Shapes of the last step's outputs; None when they are not on the GPU.
        self._previous: Mapping[int, tuple[int, ...]] | None = None
        self._profiler: Profiler | None = None
        if env_switch("WEBGPU_TIMESTAMP_QUERY") if profile is None else profile:
            # Imported here so that a process which never profiles does not load it.
            from .profiling.profiler import profiler_of

            self._profiler = profiler_of(
                device, self._submitter, program, have, self.label, report=profile is None
            )
        self._flight = Flight(self._submitter, self.label, self._profiler)
        laps.mark("binding")

    # -- load ---------------------------------------------------------------------------------

    def _compile(self) -> dict[int, Any]:
        labels: dict[int, str] = {}
        for dispatch in self._planner.dispatches():
            labels.setdefault(dispatch.kernel, f"{self.label}: {dispatch.label}")
        return self._compiler.compile(self.program, labels) if labels else {}

    def _build_plan(self, chosen: list[Route]) -> Plan:
        return self._planner.build(
            chosen, self._pipelines, self._bind_groups.of, self._recorder.prepare
        )

    # -- execute ------------------------------------------------------------------------------

    def execute(self, inputs: Sequence[object], outputs: Sequence[int] | None = None) -> list[Any]:
        """Runs the program once. Thread-safe: calls on one graph take turns.

        Args:
            inputs: one value per input: a numpy array or torch tensor of the input's dtype and
                shape, or an int, see :mod:`.boundary`; or ``FED_BACK`` where the program has a
                feedback pair: the output of the last step, which has not left the GPU.
            outputs: indices of the outputs to read back, in that order; None for all.

        Returns:
            One value per output: numpy arrays of their own (torch tensors when one came in), ints.

        Raises:
            InvalidInputError: the arguments were refused before anything touched the GPU; no state
                has changed.
            OutOfDeviceMemoryError, DeviceLostError, WgpuDelegateError: the device failed.
        """
        with self._lock:
            return self._submit(inputs, outputs).result()

    def submit(self, inputs: Sequence[object], outputs: Sequence[int] | None = None) -> PendingStep:
        """Like :meth:`execute`, but returns as soon as the work is on its way, so that the next
        step can be prepared while this one computes. At most ``MAX_IN_FLIGHT`` steps (3) may be
        uncollected.

        Raises:
            As :meth:`execute`; WgpuDelegateError when too many steps are in flight.
        """
        with self._lock:
            return self._submit(inputs, outputs)

    def last_profile(self) -> StepProfile | None:
        """The last collected step: a sequence of its dispatches in order with their times, and more
        (see :class:`.profiling.records.StepProfile`). None when profiling is off, the device has no
        timestamps, or nothing has run."""
        return self._flight.last_profile

    @property
    def query_pool(self) -> WebGPUQueryPool | None:
        """The timestamps of this graph's last profiled step; None when it does not profile."""
        return None if self._profiler is None else self._profiler.pool

    def again_in(self, inputs: Sequence[object], run: Callable[[Callable[[Any], None]], T]) -> T:
        """For measurements: the last step once more, in a compute pass of the caller's.

        Args:
            inputs: those of the last step, none of them fed back; its uploads and live scalars
                are used.
            run: called with what records the step's dispatches into a pass. It submits them
                itself, while no other call of this graph can run.

        Returns:
            What ``run`` gives.

        Raises:
            InvalidInputError; what ``run`` raises.
        """
        with self._lock:
            admitted = self._admission(inputs, {})
            plan = self._planner.select(admitted.symbols, self._build_plan)
            values = self._planner.values(plan, admitted.symbols)
            record = partial(self._recorder.record, live=self._live.group)
            offset = self._live.last_offset
            return run(partial(record, offset=offset, prepared=plan.prepared, values=values))

    def _submit(self, inputs: Sequence[object], wanted: Sequence[int] | None) -> PendingStep:
        if self._torn:
            raise WgpuDelegateError(
                f"{self.label}: a step stopped half way ({self._torn}), so what it keeps between "
                "calls is undefined. Load it again: program.reload()"
            )
        self._flight.check_room()
        profiler = self._profiler
        if profiler is not None:
            profiler.begin()
        fed = self._fed_back(inputs)
        admitted = self._admission(inputs, fed)
        plan = self._planner.select(admitted.symbols, self._build_plan)
        values = self._planner.values(plan, admitted.symbols)
        if profiler is not None:
            profiler.mark("live scalars")
        layout = lay_out(self.program, values, wanted, self.label)
        pending = self._flight.open(layout, admitted.torch)
        self._previous = None
        try:
            with gpu_errors(self.label, "running a step"):
                pending.token = self._run(admitted, fed, plan, values, pending)
        except BaseException:
            # Now, not when the garbage collector finds the error's frames.
            self._flight.drop(pending)
            raise
        self._previous = layout.shapes
        self._flight.add(pending)
        if profiler is not None:
            # One set of queries: the step is collected before the next may use them.
            pending.result()
        return pending

    def _fed_back(self, inputs: Sequence[object]) -> dict[int, tuple[int, ...]]:
        """The shapes of the inputs that are outputs of the last step.

        Raises InvalidInputError where the program has no such pair, or there was no last step.
        """
        fed: dict[int, tuple[int, ...]] = {}
        for index, value in enumerate(inputs[: len(self.program.inputs)]):
            if value is not FED_BACK:
                continue
            where = self._admission.where(index)
            if index not in self._sources:
                raise InvalidInputError(f"{where}: the program feeds no output back to it")
            if self._previous is None:
                raise InvalidInputError(
                    f"{where}: there is nothing to feed back: no step has run, or the last failed"
                )
            fed[index] = self._previous[self._sources[index]]
        return fed

    def _run(
        self,
        admitted: Admitted,
        fed: Mapping[int, tuple[int, ...]],
        plan: Plan,
        values: list[int],
        pending: PendingStep,
    ) -> int:
        """Records and submits; returns the submission's token.

        Recording comes first and may raise; data is written and the work submitted only when the
        command buffer is whole, so a failure leaves no half of a step behind. The exception is a
        long step on an idle GPU, whose first dispatches are submitted ahead: see LONG_STEP.
        """
        encoders, profiler, prepared = self._encoders, self._profiler, plan.prepared
        live = self._live
        ahead = profiler is None and not self._flight and len(prepared) >= LONG_STEP
        encoder = encoders.open()
        if profiler is not None:
            profiler.start(encoder, plan, admitted.symbols, copies_first=bool(fed))
        kept = self._record_feedback(encoder, fed)
        if ahead:
            head = len(prepared) // 3
            offset = live.offset
            self._record_pass(encoder, prepared[:head], values, offset)
            commands = encoders.finish(encoder)
            with Interrupts():  # Ctrl-C comes when the step is whole
                self._write(admitted, kept, values)
                self._submitter.submit(commands)
                try:
                    encoder = encoders.open()
                    self._record_pass(encoder, prepared[head:], values, offset)
                    self._record_readback(encoder, pending)
                    return self._submitter.submit(encoders.finish(encoder))
                except BaseException as error:
                    self._torn = stopped_by(error, self.device)
                    raise
        if profiler is None:
            self._record_pass(encoder, prepared, values, live.offset)
        else:
            profiler.record(encoder, live.group, live.offset, values)
        self._record_readback(encoder, pending)
        if profiler is not None:
            profiler.finish(encoder)
        commands = encoders.finish(encoder)
        if profiler is not None:
            profiler.mark("encode")
        self._write(admitted, kept, values)
        if profiler is None:
            return self._submitter.submit(commands)
        profiler.mark("upload")
        token = self._submitter.submit(commands)
        profiler.mark("submit")
        return token

    def _record_pass(self, encoder: Any, prepared: Any, values: list[int], offset: int) -> None:
        compute = self._encoders.begin(encoder)
        self._recorder.record(compute, self._live.group, offset, prepared, values)
        compute.end()

    def _record_readback(self, encoder: Any, pending: PendingStep) -> None:
        """Copies the outputs that were asked for to the step's staging buffer."""
        staging = pending.staging
        for output in pending.layout.outputs:
            if isinstance(output, Readback) and output.size:
                assert staging is not None
                encoder.copy_buffer_to_buffer(
                    self._buffers[output.buffer], 0, staging.buffer, output.start, output.size
                )
                if self._profiler is not None:
                    name = self.program.buffers[output.buffer].name
                    self._profiler.copied(encoder, f"read back {name}", output.size)

    def _write(self, admitted: Admitted, kept: set[int], values: list[int]) -> None:
        """Gives the queue what the step reads: inputs and live scalars."""
        write, buffers = self._submitter.write, self._buffers
        if self._poison:
            buffers.poison(kept)
        for index, data in admitted.uploads:
            buffer = buffers[index]
            if buffer is not None:
                write(buffer, 0, data)
        self._live.write(self._submitter, values[: len(self.program.live)])

    def _record_feedback(self, encoder: Any, fed: Mapping[int, tuple[int, ...]]) -> set[int]:
        """Copies outputs of the last step to inputs of this one; returns the buffers they are in.

        A copy, not a bind group that changes hands: it takes a microsecond or two on the GPU, and
        no kernel has to cope with an input in a buffer of another size.
        """
        program, buffers = self.program, self._buffers
        kept: set[int] = set()
        for index, shape in fed.items():
            taken = program.tensors[program.inputs[index].index]
            given = program.tensors[program.outputs[self._sources[index]].index]
            kept.add(given.buffer)
            size = boundary.storage_bytes(math.prod(shape), taken.dtype)
            if size and buffers[taken.buffer] is not None:
                encoder.copy_buffer_to_buffer(
                    buffers[given.buffer], 0, buffers[taken.buffer], 0, size
                )
                if self._profiler is not None:
                    name = program.inputs[index].name
                    self._profiler.copied(encoder, f"feed back {name}", size)
        return kept

    def fork(self, space: StateSpace | None = None) -> WebGPUGraph:
        """Another graph of the same program with states of its own, which start as copies of what
        these are after all submitted steps. Constants and pipelines are shared.

        Args:
            space: where the fork's states are shared, by group; a state that is there already is
                taken as it is.

        Raises:
            OutOfDeviceMemoryError, DeviceLostError.
        """
        fork = self.again(self.device, space)
        fork.state.copy_from(self.state, fork._buffers.created)
        return fork

    def again(self, device: Any, space: StateSpace | None = None) -> WebGPUGraph:
        """Another graph of the same program, on ``device``, with states that start anew.

        Args:
            space: as in :meth:`fork`.

        Raises:
            As the constructor.
        """
        return WebGPUGraph(
            device,
            self.program,
            self._named_data,
            self.label,
            data_identity=self._buffers.identity,
            verified=True,
            space=space,
            **self._arguments,
        )

    def allocated(self) -> dict[int, int]:
        """What it takes on the GPU: a key a buffer -> bytes. Graphs that share a buffer name the
        same key, so that the union of several counts it once."""
        return {
            **self._buffers.allocated(),
            id(self._live): LiveBlock.SIZE,
            id(self._flight): self._flight.stagings.allocated,
        }
