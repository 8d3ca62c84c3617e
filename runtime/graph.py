"""Replays one program on one device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executorch_wgpu.serialization.dispatch_list import (
    NONE,
    Binding,
    BufferKind,
    Dispatch,
    Program,
    Route,
    ValueKind,
)

from . import boundary
from ._expressions_stub import Evaluator
from .errors import InvalidInputError, UnsupportedDeviceError, gpu_errors
from .live_scalars import Admission
from .shaders import LIVE_BYTES, pipelines_of

NamedData = Mapping[str, Any] | Callable[[str], Any]

_MAP_READ, _COPY_SRC, _COPY_DST, _UNIFORM, _STORAGE = 0x1, 0x4, 0x8, 0x40, 0x80
_RING = 4
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class _Command:
    pipeline: Any
    bind_group: Any
    grid: tuple[int, int, int]  # positions in the values of the plan's evaluator
    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class _Plan:
    commands: tuple[_Command, ...]
    values: Evaluator  # live, then output shapes and ints, then grids


class WebGPUGraph:
    """A program made ready on a device.

    Args:
        device: a ``GPUDevice`` of wgpu or wgpudawn.
        program: the dispatch list, verified.
        named_data: key -> bytes-like, as a mapping or a callable.
        label: opens every error message and names the GPU objects.
    """

    def __init__(
        self, device: Any, program: Program, named_data: NamedData | None = None, label: str = ""
    ) -> None:
        self.device = device
        self.program = program
        self.label = label or "program"
        data: NamedData = {} if named_data is None else named_data
        self._get = data.__getitem__ if isinstance(data, Mapping) else data
        self._lock = threading.Lock()
        self._features = {"subgroups" if f == "subgroup" else f for f in device.features}
        self._limits = {k.replace("_", "-"): v for k, v in device.limits.items()}
        missing = self._missing(program.features, program.limits)
        if missing:
            raise UnsupportedDeviceError(f"{self.label}: the device lacks {', '.join(missing)}")
        self._candidates = [self._choose(step.routes) for step in program.steps]
        self._guards = Evaluator(
            program.exprs,
            [r.guard for routes in self._candidates for r in routes if r.guard != NONE],
        )
        self._admission = Admission(program, self.label)
        self._pipelines = pipelines_of(device)
        self._create_pipelines()
        self._create_buffers()
        self._bind_groups: dict[tuple[Any, ...], Any] = {}
        for routes in self._candidates:
            for route in routes:
                for dispatch in route.dispatches:
                    self._bind_group(dispatch)
        self._plans: dict[tuple[int, ...], _Plan] = {}

    # -- load ---------------------------------------------------------------------------------

    def _missing(self, features: Sequence[str], limits: Sequence[tuple[str, int]]) -> list[str]:
        out = [f"feature '{f}'" for f in features if f not in self._features]
        for name, value in limits:
            have = self._limits.get(name, 0)
            if have < value:
                out.append(f"limit {name} >= {value} (has {have})")
        return out

    def _choose(self, routes: Sequence[Route]) -> list[Route]:
        chosen = []
        for route in routes:
            if not self._missing(route.features, route.limits):
                chosen.append(route)
                if route.guard == NONE:
                    break
        return chosen

    def _create_pipelines(self) -> None:
        labels: dict[int, str] = {}
        for routes in self._candidates:
            for route in routes:
                for dispatch in route.dispatches:
                    labels.setdefault(dispatch.kernel, dispatch.label)
        self._kernels: dict[int, Any] = {}
        for index, label in labels.items():
            kernel = self.program.kernels[index]
            full = f"{self.label}: {label}"
            module = self._pipelines.module(self.program.shaders[kernel.shader], full)
            self._kernels[index] = self._pipelines.pipeline(kernel, module, full)

    def _create_buffers(self) -> None:
        device = self.device
        self._buffers = []
        for spec in self.program.buffers:
            with gpu_errors(self.label, f"allocating {spec.size} bytes for '{spec.name}'"):
                buffer = device.create_buffer(
                    label=f"{self.label}: {spec.name}",
                    size=spec.size,
                    usage=_STORAGE | _COPY_DST | _COPY_SRC,
                )
            self._buffers.append(buffer)
            if spec.data_key:
                self._upload(buffer, spec.data_key)
        self._live = device.create_buffer(
            label=f"{self.label}: live", size=LIVE_BYTES * _RING, usage=_UNIFORM | _COPY_DST
        )
        self._live_group = device.create_bind_group(
            layout=self._pipelines.live_layout,
            entries=[
                {
                    "binding": 0,
                    "resource": {"buffer": self._live, "offset": 0, "size": LIVE_BYTES},
                }
            ],
        )
        self._slot = 0
        total = sum(
            -(-self.program.buffers[self.program.tensors[o.index].buffer].size // 8) * 8
            for o in self.program.outputs
            if o.kind is ValueKind.TENSOR
        )
        self._staging = (
            device.create_buffer(
                label=f"{self.label}: staging", size=total, usage=_MAP_READ | _COPY_DST
            )
            if total
            else None
        )

    def _upload(self, buffer: Any, key: str) -> None:
        data = memoryview(self._get(key)).cast("B")
        whole = len(data) // 4 * 4
        for start in range(0, whole, _CHUNK):
            part = data[start : min(start + _CHUNK, whole)]
            self.device.queue.write_buffer(buffer, start, part)
        if whole < len(data):
            tail = bytes(data[whole:]).ljust(4, b"\0")
            self.device.queue.write_buffer(buffer, whole, tail)

    def _bind_group(self, dispatch: Dispatch) -> Any:
        kernel = self.program.kernels[dispatch.kernel]
        key: tuple[Any, tuple[Binding, ...]] = (kernel.accesses, dispatch.bindings)
        group = self._bind_groups.get(key)
        if group is None:
            with gpu_errors(self.label, f"binding the buffers of '{dispatch.label}'", loading=True):
                group = self.device.create_bind_group(
                    layout=self._pipelines.layouts(kernel.accesses)[0],
                    entries=[
                        {
                            "binding": i,
                            "resource": {
                                "buffer": self._buffers[binding.buffer],
                                "offset": binding.offset,
                                "size": binding.size,
                            },
                        }
                        for i, binding in enumerate(dispatch.bindings)
                    ],
                )
            self._bind_groups[key] = group
        return group

    # -- execute ------------------------------------------------------------------------------

    def _plan(self, guards: tuple[int, ...]) -> _Plan:
        plan = self._plans.get(guards)
        if plan is not None:
            return plan
        left = iter(guards)
        program = self.program
        needed = list(program.live)
        for output in program.outputs:
            if output.kind is ValueKind.TENSOR:
                needed += program.tensors[output.index].shape
            else:
                needed.append(output.index)
        position: dict[int, int] = {}
        commands = []
        for routes in self._candidates:
            results = [r.guard == NONE or next(left) for r in routes]
            route = routes[next(i for i, result in enumerate(results) if result)]
            for dispatch in route.dispatches:
                for index in dispatch.grid:
                    if index not in position:
                        position[index] = len(needed)
                        needed.append(index)
                x, y, z = dispatch.grid
                commands.append(
                    _Command(
                        self._kernels[dispatch.kernel],
                        self._bind_group(dispatch),
                        (position[x], position[y], position[z]),
                        dispatch,
                    )
                )
        plan = _Plan(tuple(commands), Evaluator(program.exprs, needed))
        self._plans[guards] = plan
        return plan

    def execute(self, inputs: Sequence[object]) -> list[Any]:
        """Runs the program once.

        Args:
            inputs: one value per program input: numpy arrays, torch tensors or ints.

        Returns:
            One value per output: numpy arrays (torch tensors when torch came in) and ints.

        Raises:
            InvalidInputError: before anything touched the GPU; no state has changed.
        """
        with self._lock:
            admitted = self._admission(inputs)
            guards = tuple(int(g != 0) for g in self._guards(admitted.symbols))
            plan = self._plan(guards)
            values = plan.values(admitted.symbols)
            live = values[: len(self.program.live)]
            for slot, value in enumerate(live):
                if not -(2**31) <= value < 2**32:
                    raise InvalidInputError(
                        f"{self.label}: live value {slot} is {value}, outside 32 bits"
                    )
            limit = self._limits["max-compute-workgroups-per-dimension"]
            for command in plan.commands:
                for at in command.grid:
                    if not 0 <= values[at] <= limit:
                        raise InvalidInputError(
                            f"{self.label}: '{command.dispatch.label}' needs a grid of "
                            f"{[values[i] for i in command.grid]} workgroups; the device takes "
                            f"0..{limit} a dimension"
                        )
            with gpu_errors(self.label, "running a step"):
                return self._run(admitted.uploads, plan, values, admitted.torch)

    def _run(
        self, uploads: list[tuple[int, Any]], plan: _Plan, values: list[int], torch_out: bool
    ) -> list[Any]:
        queue = self.device.queue
        for index, data in uploads:
            queue.write_buffer(self._buffers[index], 0, data)
        offset = self._slot * LIVE_BYTES
        self._slot = (self._slot + 1) % _RING
        n_live = len(self.program.live)
        if n_live:
            block = np.array([v & 0xFFFFFFFF for v in values[:n_live]], np.uint32)
            queue.write_buffer(self._live, offset, block)
        encoder = self.device.create_command_encoder(label=self.label)
        encode = encoder.begin_compute_pass(label=self.label)
        encode.set_bind_group(0, self._live_group, [offset])
        pipeline = group = None
        for command in plan.commands:
            x, y, z = (values[i] for i in command.grid)
            if not (x and y and z):
                continue
            if command.pipeline is not pipeline:
                pipeline = command.pipeline
                encode.set_pipeline(pipeline)
            if command.bind_group is not group:
                group = command.bind_group
                encode.set_bind_group(1, group)
            encode.dispatch_workgroups(x, y, z)
        encode.end()
        at = n_live
        end = 0
        pending: list[Any] = []
        for output in self.program.outputs:
            if output.kind is ValueKind.INT:
                pending.append(values[at])
                at += 1
                continue
            tensor = self.program.tensors[output.index]
            shape = tuple(values[at : at + len(tensor.shape)])
            at += len(tensor.shape)
            count = int(np.prod(shape, dtype=np.int64))
            size = boundary.storage_bytes(count, tensor.dtype)
            if size:
                encoder.copy_buffer_to_buffer(
                    self._buffers[tensor.buffer], 0, self._staging, end, size
                )
            pending.append((tensor.dtype, shape, end, size))
            end += -(-size // 8) * 8
        queue.submit([encoder.finish()])
        data = memoryview(b"")
        if end:
            assert self._staging is not None
            self._staging.map_sync("READ", 0, end)
            data = memoryview(self._staging.read_mapped(0, end)).cast("B")
            self._staging.unmap()
        outputs: list[Any] = []
        for item in pending:
            if isinstance(item, int):
                outputs.append(item)
                continue
            dtype, shape, start, size = item
            array = boundary.from_storage(data[start : start + size], shape, dtype)
            outputs.append(boundary.to_caller(array, dtype, torch_out))
        return outputs
