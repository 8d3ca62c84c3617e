"""The last step ahead of time: buffers, kernels and expressions get their indices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from executorch_wgpu.backend.planner import plan_scratch
from executorch_wgpu.ops.builder import Builder, DispatchSpec, RouteSpec, shader_digest
from executorch_wgpu.ops.call import OpChain
from executorch_wgpu.ops.joined import JoinedRows
from executorch_wgpu.ops.tensor import Storage, Tensor, contiguous_strides
from executorch_wgpu.serialization.dispatch_list import (
    NONE,
    Binding,
    Buffer,
    BufferKind,
    Check,
    Dispatch,
    Feedback,
    Input,
    Kernel,
    Output,
    Program,
    Route,
    Shader,
    Step,
    ValueKind,
)
from executorch_wgpu.serialization.dispatch_list import Tensor as TensorEntry
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS


def producer() -> str:
    """Name and version of this package, as written into the file."""
    try:
        return f"executorch-wgpu {version('executorch-wgpu')}"
    except PackageNotFoundError:  # a source tree that was never installed
        return "executorch-wgpu"


def storage_bytes(data: Any) -> np.ndarray:
    """``data`` (a torch tensor on the CPU, or JoinedRows of them) in storage layout, as a flat
    array of whole words. Raises ValueError for an int64 that does not fit 32 bits."""
    import torch

    data = data.tensor() if isinstance(data, JoinedRows) else data.detach().contiguous()
    if data.dtype == torch.int64:
        if data.numel() and (int(data.max()) > 2**31 - 1 or int(data.min()) < -(2**31)):
            raise ValueError("an int64 constant does not fit 32 bits")
        data = data.to(torch.int32)
    elif data.dtype == torch.bool:
        data = data.to(torch.int32)
    elif data.dtype in (torch.float16, torch.bfloat16):
        data = data.reshape(-1).view(torch.int16)
        if data.numel() % 2:
            data = torch.nn.functional.pad(data, (0, 1))
    elif data.dtype in (torch.int8, torch.uint8) and data.numel() % 4:
        data = torch.nn.functional.pad(data.reshape(-1), (0, -data.numel() % 4))
    if data.numel() == 0:
        return np.zeros(1, np.int32)  # no buffer is empty
    return data.reshape(-1).numpy()


class ConstantData(Mapping[str, np.ndarray]):
    """Named-data key -> content in storage layout. Where that is not what lies in memory already
    (JoinedRows), it is made each time that it is asked for, and held by nobody."""

    def __init__(self) -> None:
        self._sources: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}

    def add(self, data: Any) -> str:
        """The key of ``data``, what :func:`storage_bytes` takes, which is kept."""
        content = storage_bytes(data)
        digest = hashlib.blake2b(content.data, digest_size=16).hexdigest()
        key = f"wgpu/{digest}"
        self._sources[key], self._sizes[key] = data, content.nbytes
        return key

    def size(self, key: str) -> int:
        """Bytes of a content."""
        return self._sizes[key]

    def __getitem__(self, key: str) -> np.ndarray:
        return storage_bytes(self._sources[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def build_program(
    b: Builder,
    chain: OpChain,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | None],
) -> tuple[Program, ConstantData]:
    """The program that ``b`` collected, and the content of its constants by named-data key.
    ``inputs``/``outputs`` are parallel to the chain's, None for ints."""
    return _Build(b, chain).run(inputs, outputs)


class _Build:
    def __init__(self, b: Builder, chain: OpChain) -> None:
        self.b = b
        self.chain = chain
        self.data = ConstantData()
        #: id of a torch tensor, which its storage keeps alive, -> key in ``data``.
        self.keys: dict[int, str] = {}
        self.buffers: list[Buffer] = []
        self.buffer_of: dict[Storage, int] = {}
        self.tensors: list[TensorEntry] = []
        self.shaders: dict[str, tuple[int, Shader]] = {}
        self.kernels: dict[Kernel, int] = {}
        self.limits: dict[str, int] = {}

    def run(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]
    ) -> tuple[Program, ConstantData]:
        b, chain = self.b, self.chain
        used = {
            storage
            for routes in b.steps
            for route in routes
            for dispatch in route.dispatches
            for storage, _, _ in dispatch.bindings
        }
        input_entries = []
        for item, tensor in zip(chain.inputs, inputs, strict=True):
            if tensor is None:
                index = NONE if item.symint is None else item.symint
                input_entries.append(Input(item.name, ValueKind.INT, index))
                continue
            # An input that no kernel reads is checked by the host and never uploaded.
            buffer = self._buffer(tensor.storage) if tensor.storage in used else NONE
            input_entries.append(Input(item.name, ValueKind.TENSOR, self._tensor(tensor, buffer)))
        for group in plan_scratch(b.steps):
            size = max(storage.size_bytes for storage in group)
            name = group[0].name if len(group) == 1 else f"{group[0].name} (+{len(group) - 1})"
            self.buffers.append(Buffer(BufferKind.SCRATCH, size, name))
            for storage in group:
                self.buffer_of[storage] = len(self.buffers) - 1
        output_entries = []
        for index, (value, tensor) in enumerate(zip(chain.outputs, outputs, strict=True)):
            if tensor is None:
                entry = Output(f"output {index}", ValueKind.INT, b.table.add(value))
            else:
                buffer = self._buffer(tensor.storage)
                position = self._tensor(tensor, buffer)
                entry = Output(f"output {index}", ValueKind.TENSOR, position)
            output_entries.append(entry)
        steps = tuple(self._step(routes) for routes in b.steps)
        live = tuple(b.table.add(value) for value in b.live)
        checks = tuple(
            Check(b.table.add(condition), message, tuple(b.table.add(a) for a in args))
            for condition, (message, args) in b.checks.items()
        )
        for entry in self.buffers:
            # These exist whatever route runs; the others where a route binds them.
            if entry.kind in (BufferKind.OUTPUT, BufferKind.STATE):
                self._limit("max-buffer-size", entry.size)
        program = Program(
            producer=producer(),
            symints=tuple(chain.symints),
            exprs=tuple(b.table.exprs),
            live=live,
            buffers=tuple(self.buffers),
            tensors=tuple(self.tensors),
            shaders=tuple(shader for _, shader in self.shaders.values()),
            kernels=tuple(self.kernels),
            steps=steps,
            checks=checks,
            inputs=tuple(input_entries),
            outputs=tuple(output_entries),
            limits=tuple(sorted(self.limits.items())),
            feedback=tuple(Feedback(output, input) for output, input in chain.feedback),
        )
        return program, self.data

    def _limit(self, name: str, needed: int) -> None:
        if needed > max(DEFAULT_LIMITS[name], self.limits.get(name, 0)):
            self.limits[name] = needed

    def _tensor(self, tensor: Tensor, buffer: int) -> TensorEntry:
        add = self.b.table.add
        self.tensors.append(
            TensorEntry(
                tensor.dtype,
                tuple(add(s) for s in tensor.shape),
                tuple(add(s) for s in tensor.strides),
                add(tensor.offset),
                buffer,
            )
        )
        return len(self.tensors) - 1

    def _buffer(self, storage: Storage) -> int:
        """Index of the storage's buffer. Constants and states are described by a tensor too, for
        those who read the list or the state."""
        if storage not in self.buffer_of:
            key = "" if storage.data is None else self._data_key(storage.data)
            self.buffer_of[storage] = len(self.buffers)
            self.buffers.append(
                Buffer(
                    storage.kind,
                    storage.size_bytes,
                    storage.name,
                    key,
                    share=storage.share,
                    data_offset=storage.data_offset,
                )
            )
            if storage.layout is not None:
                dtype, shape = storage.layout
                whole = Tensor(dtype, shape, contiguous_strides(shape), 0, storage)
                self._tensor(whole, self.buffer_of[storage])
        return self.buffer_of[storage]

    def _data_key(self, data: Any) -> str:
        """The key of ``data`` (a torch tensor or JoinedRows) in the named data."""
        if id(data) not in self.keys:
            self.keys[id(data)] = self.data.add(data)
        return self.keys[id(data)]

    def _step(self, routes: Sequence[RouteSpec]) -> Step:
        return Step(tuple(self._route(route, route is routes[-1]) for route in routes))

    def _route(self, route: RouteSpec, last: bool) -> Route:
        limits = dict(route.limits)
        for dispatch in route.dispatches:
            for name, needed in self._needs(dispatch).items():
                if needed > DEFAULT_LIMITS[name]:
                    limits[name] = max(needed, limits.get(name, 0))
        if last:
            # What the last route needs, the program needs.
            for name, needed in limits.items():
                self._limit(name, needed)
            limits = {}
        conditional = route.guard is not None and not isinstance(route.guard, int)
        return Route(
            name=route.name,
            dispatches=tuple(self._dispatch(dispatch) for dispatch in route.dispatches),
            guard=self.b.table.add(route.guard) if conditional else NONE,
            features=route.features,
            limits=tuple(sorted(limits.items())),
        )

    def _dispatch(self, spec: DispatchSpec) -> Dispatch:
        digest = shader_digest(spec.wgsl, spec.extensions)
        if digest not in self.shaders:
            shader = Shader(spec.wgsl, spec.extensions, digest)
            self.shaders[digest] = (len(self.shaders), shader)
        kernel = Kernel(
            self.shaders[digest][0],
            spec.entry_point,
            spec.params,
            spec.accesses,
            spec.workgroup,
            spec.workgroup_bytes,
        )
        x, y, z = spec.grid
        add = self.b.table.add
        return Dispatch(
            kernel=self.kernels.setdefault(kernel, len(self.kernels)),
            bindings=tuple(
                Binding(self._buffer(storage), offset, size)
                for storage, offset, size in spec.bindings
            ),
            grid=(add(x), add(y), add(z)),
            label=spec.label,
            op=spec.origin.op,
            module_path=spec.origin.module_path,
            debug_handle=spec.origin.debug_handle,
            bytes=NONE if spec.bytes is None else add(spec.bytes),
            flops=NONE if spec.flops is None else add(spec.flops),
            debug_handles=spec.origin.debug_handles,
        )

    def _needs(self, dispatch: DispatchSpec) -> dict[str, int]:
        x, y, z = dispatch.workgroup
        buffers = [self.buffers[self._buffer(storage)] for storage, _, _ in dispatch.bindings]
        return {
            "max-storage-buffers-per-shader-stage": len(dispatch.bindings),
            "max-storage-buffer-binding-size": max(size for _, _, size in dispatch.bindings),
            "max-buffer-size": max(entry.size for entry in buffers),
            "max-compute-workgroup-storage-size": dispatch.workgroup_bytes,
            "max-compute-invocations-per-workgroup": x * y * z,
            "max-compute-workgroup-size-x": x,
            "max-compute-workgroup-size-y": y,
            "max-compute-workgroup-size-z": z,
        }
