"""Replays one program on one device.

Load: compare requirements, choose routes, compile, allocate, upload, bind. Execute: admit the
arguments and evaluate everything on the host (:mod:`.live_scalars`, :mod:`.plan`); only then
record one compute pass, submit it, and read the outputs through a kept staging buffer. Nothing is
created on the device between steps but the command encoder.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from executorch_wgpu.serialization.dispatch_list import (
    Dispatch,
    DType,
    Program,
    Route,
    ValueKind,
)
from executorch_wgpu.serialization.verify import verify

from . import boundary
from .boundary import Array
from .device import capabilities
from .errors import WgpuDelegateError, gpu_errors
from .live_scalars import Admission, Admitted
from .plan import Plan, Planner
from .recorder import recorder_of
from .shaders import LIVE_BYTES, pipelines_of
from .storage import COPY_DST, UNIFORM, Buffers, NamedData
from .submission import Staging, submitter_of

if TYPE_CHECKING:
    from .profiling.profiler import Profiler
    from .profiling.records import StepProfile

logger = logging.getLogger("executorch_wgpu")

#: Slots of the live block's ring; more than the steps that may be in flight.
RING_SLOTS = 4

#: Steps that may be submitted and not collected.
MAX_IN_FLIGHT = 3


def env_switch(name: str) -> bool:
    """An environment variable as a switch: unset, empty and 0 are off."""
    return os.environ.get(name, "") not in ("", "0")


@dataclass(frozen=True, slots=True)
class _Readback:
    """Where a tensor output of one step lies in the staging buffer: ``size`` bytes at ``start``."""

    shape: tuple[int, ...]
    dtype: DType
    buffer: int
    start: int
    size: int


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
    ) -> None:
        if not verified:
            verify(program)
        self.device = device
        self.program = program
        self.label = label or "program"
        if debug_labels is None:
            debug_labels = env_switch("EXECUTORCH_WGPU_DEBUG_LABELS")
        self._poison = env_switch("EXECUTORCH_WGPU_POISON") if poison is None else poison
        self._lock = threading.Lock()
        self._admission = Admission(program, self.label, positions)
        have = capabilities(device)
        self._planner = Planner(program, have, self.label)
        self._submitter = submitter_of(device, plain=plain_api)
        self._recorder = recorder_of(device, debug_labels=debug_labels, plain=plain_api)
        self._compiler = pipelines_of(device)
        self._pipelines = self._compile()
        tensors = [program.tensors[o.index] for o in program.outputs if o.kind is ValueKind.TENSOR]
        self._buffers = Buffers(
            device,
            self._submitter,
            program,
            self._planner.buffers() | {tensor.buffer for tensor in tensors},
            named_data,
            data_identity,
            self.label,
        )
        self._create_live_block()
        self._bind_groups: dict[Any, Any] = {}
        for dispatch in self._planner.dispatches():
            self._bind_group(dispatch)
        self._staging_bytes = sum(-(-program.buffers[t.buffer].size // 8) * 8 for t in tensors)
        self._stagings: list[Staging] = [self._create_staging()] if tensors else []
        # One place a step in flight. A list, for its pop and append are atomic: a step that nobody
        # collects gives its place back from whatever thread drops it.
        self._places = [None] * MAX_IN_FLIGHT
        self._profiler: Profiler | None = None
        self._last_profile: StepProfile | None = None
        if env_switch("WEBGPU_TIMESTAMP_QUERY") if profile is None else profile:
            # Imported here so that a process which never profiles does not load it.
            from .profiling.profiler import profiler_of

            self._profiler = profiler_of(
                device, self._submitter, program, have, self.label, report=profile is None
            )

    # -- load ---------------------------------------------------------------------------------

    def _compile(self) -> dict[int, Any]:
        labels: dict[int, str] = {}
        for dispatch in self._planner.dispatches():
            labels.setdefault(dispatch.kernel, f"{self.label}: {dispatch.label}")
        return self._compiler.compile(self.program, labels) if labels else {}

    def _create_live_block(self) -> None:
        with gpu_errors(self.label, "creating the live block", loading=True):
            self._live = self.device.create_buffer(
                label=f"{self.label}: live block",
                size=LIVE_BYTES * RING_SLOTS,
                usage=UNIFORM | COPY_DST,
            )
            resource = {"buffer": self._live, "offset": 0, "size": LIVE_BYTES}
            self._live_group = self.device.create_bind_group(
                label=f"{self.label}: live block",
                layout=self._compiler.live_layout,
                entries=[{"binding": 0, "resource": resource}],
            )
        self._slot = 0

    def _create_staging(self) -> Staging:
        doing = f"allocating {self._staging_bytes} bytes to read outputs back"
        with gpu_errors(self.label, doing):
            return self._submitter.staging(self._staging_bytes, f"{self.label}: staging")

    def _bind_group(self, dispatch: Dispatch) -> Any:
        accesses = self.program.kernels[dispatch.kernel].accesses
        key = (accesses, dispatch.bindings)
        group = self._bind_groups.get(key)
        if group is None:
            entries = [
                {
                    "binding": i,
                    "resource": {
                        "buffer": self._buffers[binding.buffer],
                        "offset": binding.offset,
                        "size": binding.size,
                    },
                }
                for i, binding in enumerate(dispatch.bindings)
            ]
            doing = f"binding the buffers of '{dispatch.label}'"
            with gpu_errors(self.label, doing, loading=True):
                group = self.device.create_bind_group(
                    label=f"{self.label}: {dispatch.label}",
                    layout=self._compiler.layouts(accesses)[0],
                    entries=entries,
                )
            self._bind_groups[key] = group
        return group

    def _build_plan(self, chosen: list[Route]) -> Plan:
        return self._planner.build(
            chosen, self._pipelines, self._bind_group, self._recorder.prepare
        )

    # -- execute ------------------------------------------------------------------------------

    def execute(self, inputs: Sequence[object]) -> list[Any]:
        """Runs the program once. Thread-safe: calls on one graph take turns.

        Args:
            inputs: one value per input: a numpy array or torch tensor of the input's dtype and
                shape, or an int. See :mod:`.boundary` for what is accepted.

        Returns:
            One value per output: numpy arrays of their own (torch tensors when one came in), ints.

        Raises:
            InvalidInputError: the arguments were refused before anything touched the GPU; no state
                has changed.
            OutOfDeviceMemoryError, DeviceLostError, WgpuDelegateError: the device failed.
        """
        with self._lock:
            return self._submit(inputs).result()

    def submit(self, inputs: Sequence[object]) -> PendingStep:
        """Like :meth:`execute`, but returns as soon as the work is on its way, so that the next
        step can be prepared while this one computes. At most ``MAX_IN_FLIGHT`` steps (3) may be
        uncollected.

        Raises:
            As :meth:`execute`; WgpuDelegateError when too many steps are in flight.
        """
        with self._lock:
            return self._submit(inputs)

    def last_profile(self) -> StepProfile | None:
        """The last collected step: a sequence of its dispatches in order with their times, and more
        (see :class:`.profiling.records.StepProfile`). None when profiling is off, the device has no
        timestamps, or nothing has run."""
        return self._last_profile

    def _submit(self, inputs: Sequence[object]) -> PendingStep:
        if not self._places:
            raise WgpuDelegateError(
                f"{self.label}: {MAX_IN_FLIGHT} steps are in flight; collect the oldest with "
                "result() first"
            )
        profiler = self._profiler
        if profiler is not None:
            profiler.begin()
        admitted = self._admission(inputs)
        plan = self._planner.select(admitted.symbols, self._build_plan)
        values = self._planner.values(plan, admitted.symbols)
        if profiler is not None:
            profiler.mark("live scalars")
        outputs, end = self._layout(values)
        staging = None
        if end:
            staging = self._stagings.pop() if self._stagings else self._create_staging()
        try:
            with gpu_errors(self.label, "running a step"):
                token = self._run(admitted, plan, values, outputs, staging)
        except BaseException:
            if staging is not None:
                self._stagings.append(staging)
            raise
        self._places.pop()
        pending = PendingStep(self, token, outputs, end, staging, admitted.torch)
        if profiler is not None:
            # One set of queries: the step is collected before the next may use them.
            pending.result()
        return pending

    def _layout(self, values: list[int]) -> tuple[list[_Readback | int], int]:
        """Outputs of this step: ints as they are, tensors with their place in the staging buffer;
        and the bytes of it that are used."""
        program = self.program
        at, end = len(program.live), 0
        outputs: list[_Readback | int] = []
        for output in program.outputs:
            if output.kind is ValueKind.INT:
                outputs.append(values[at])
                at += 1
                continue
            tensor = program.tensors[output.index]
            shape = tuple(values[at : at + len(tensor.shape)])
            at += len(shape)
            count = 1
            for extent in shape:
                count *= extent
            size = boundary.storage_bytes(count, tensor.dtype)
            outputs.append(_Readback(shape, tensor.dtype, tensor.buffer, end, size))
            end += -(-size // 8) * 8
        return outputs, end

    def _run(
        self,
        admitted: Admitted,
        plan: Plan,
        values: list[int],
        outputs: list[_Readback | int],
        staging: Staging | None,
    ) -> int:
        """Records and submits; returns the submission's token.

        Recording comes first and may raise; data is written and the work submitted only when the
        command buffer is whole, so a failure leaves no half of a step behind.
        """
        queue, buffers, profiler = self.device.queue, self._buffers, self._profiler
        offset = self._slot * LIVE_BYTES
        encoder = self.device.create_command_encoder(label=self.label)
        if profiler is None:
            compute = encoder.begin_compute_pass(label=self.label)
            self._recorder.record(compute, self._live_group, offset, plan.prepared, values)
            compute.end()
        else:
            symbols = admitted.symbols
            profiler.record(encoder, self._live_group, offset, plan, values, symbols)
        for output in outputs:
            if not isinstance(output, int) and output.size:
                assert staging is not None
                encoder.copy_buffer_to_buffer(
                    buffers[output.buffer], 0, staging.buffer, output.start, output.size
                )
                if profiler is not None:
                    name = self.program.buffers[output.buffer].name
                    profiler.copied(encoder, f"read back {name}", output.size)
        if profiler is not None:
            profiler.finish(encoder)
        commands = encoder.finish(label=self.label)
        if profiler is not None:
            profiler.mark("encode")
        if self._poison:
            buffers.poison()
        for index, data in admitted.uploads:
            if buffers[index] is not None:
                queue.write_buffer(buffers[index], 0, data)
        live = values[: len(self.program.live)]
        if live:
            block = np.array([value & 0xFFFFFFFF for value in live], np.uint32)
            queue.write_buffer(self._live, offset, block)
        self._slot = (self._slot + 1) % RING_SLOTS
        if profiler is None:
            return self._submitter.submit(commands)
        profiler.mark("upload")
        token = self._submitter.submit(commands)
        profiler.mark("submit")
        return token

    def _collect(self, pending: PendingStep) -> list[Any]:
        results: list[Any] = []
        try:
            with gpu_errors(self.label, "reading the outputs"):
                if pending.staging is None:
                    results = self._unpack(pending, memoryview(b""))
                else:
                    with pending.staging.mapped(pending.token, pending.size) as data:
                        if self._profiler is not None:
                            self._profiler.mark("wait")
                        results = self._unpack(pending, data)
        finally:
            self._release(pending)
        if self._profiler is not None:
            self._profiler.mark("readback")
            with gpu_errors(self.label, "reading the timestamps"):
                self._last_profile = self._profiler.collect(pending.token)
        return results

    def _unpack(self, pending: PendingStep, data: memoryview) -> list[Any]:
        results: list[Any] = []
        for output in pending.outputs:
            if isinstance(output, int):
                results.append(output)
                continue
            part = data[output.start : output.start + output.size]
            array = boundary.from_storage(part, output.shape, output.dtype)
            results.append(boundary.to_caller(array, output.dtype is DType.BF16, pending.torch))
        return results

    def _release(self, pending: PendingStep) -> None:
        if pending.staging is not None:
            self._stagings.append(pending.staging)
            pending.staging = None
        self._places.append(None)

    # -- states -------------------------------------------------------------------------------

    def state_names(self) -> list[str]:
        """Fully qualified names of the states that persist between calls, such as KV caches."""
        return self._buffers.state_names()

    def read_state(self, name: str) -> Array:
        """A copy of a state as a numpy array, after all submitted steps.

        Raises:
            InvalidInputError: no such state.
        """
        with self._lock:
            return self._buffers.read_state(name)

    def write_state(self, name: str, value: object) -> None:
        """Overwrites a state for the steps that follow; ``value`` has the dtype and shape of
        :meth:`read_state`.

        Raises:
            InvalidInputError: no such state, or another dtype or shape.
        """
        with self._lock:
            self._buffers.write_state(name, value)

    def reset_state(self, name: str | None = None) -> None:
        """Gives one state, or all, its initial value back, for the steps that follow.

        Raises:
            InvalidInputError: no such state.
        """
        with self._lock:
            self._buffers.reset(name)


class PendingStep:
    """A submitted step of a graph, from :meth:`WebGPUGraph.submit`."""

    def __init__(
        self,
        graph: WebGPUGraph,
        token: int,
        outputs: list[_Readback | int],
        size: int,
        staging: Staging | None,
        torch: bool,
    ) -> None:
        self._graph = graph
        self.token, self.outputs, self.size = token, outputs, size
        self.staging, self.torch = staging, torch
        self._results: list[Any] | None = None
        self._taken = False

    def result(self) -> list[Any]:
        """Waits for this step (not for later ones) and returns its outputs, as ``execute`` does.
        A second call returns the same list.

        Raises:
            DeviceLostError, WgpuDelegateError: the results could not be read.
        """
        if self._results is None:
            if self._taken:
                raise WgpuDelegateError(f"{self._graph.label}: this step's results were lost")
            self._taken = True
            self._results = self._graph._collect(self)
        return self._results

    def __del__(self) -> None:
        # A step that nobody collects has run all the same; its staging buffer is free again.
        if not self._taken:
            self._graph._release(self)
