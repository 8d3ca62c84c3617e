"""GPU buffers of a program: allocation, constants and their sharing, states.

Constants go from the file's mapping to the device in pieces, and the queue is drained between
them, so that the host holds a few tens of MB beside a model of any size. Graphs on one device that
load from the same file share its constants, which live as long as one of those graphs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import numpy as np

from executorch_wgpu.serialization.dispatch_list import Buffer, BufferKind, DType, Program
from executorch_wgpu.serialization.expressions import EvaluationError, Evaluator

from . import boundary
from .boundary import Array
from .errors import InvalidInputError, InvalidProgramError, gpu_errors
from .submission import Submitter

#: key -> bytes-like (a memoryview of the mapped file), as a mapping or a callable.
NamedData = Mapping[str, Any] | Callable[[str], Any]

COPY_SRC, COPY_DST, UNIFORM, STORAGE = 0x4, 0x8, 0x40, 0x80

_PIECE_BYTES = 4 << 20
_DRAIN_BYTES = 8 << 20

_Cache = weakref.WeakValueDictionary[Hashable, Any]
_caches: weakref.WeakKeyDictionary[Any, tuple[threading.Lock, _Cache]] = weakref.WeakKeyDictionary()
_caches_lock = threading.Lock()


def _constants_of(device: Any) -> tuple[threading.Lock, _Cache]:
    with _caches_lock:
        found = _caches.get(device)
        if found is None:
            found = _caches[device] = (threading.Lock(), weakref.WeakValueDictionary())
        return found


class Buffers:
    """The buffers of one graph.

    Args:
        device: a ``GPUDevice``.
        submitter: its submitter.
        program: verified.
        used: indices of the buffers that are bound or read back; the others are not allocated.
        named_data: where constants and initial states come from.
        identity: equal for graphs whose ``named_data`` is the same file; None shares nothing.
        label: opens error messages, and names the buffers.

    Raises:
        OutOfDeviceMemoryError: with the size and name of the buffer.
        InvalidProgramError: named data is missing or has another size.
    """

    def __init__(
        self,
        device: Any,
        submitter: Submitter,
        program: Program,
        used: Collection[int],
        named_data: NamedData | None,
        identity: Hashable | None,
        label: str,
    ) -> None:
        self._device, self._submitter, self._program = device, submitter, program
        self._label = label
        self._named_data: NamedData = {} if named_data is None else named_data
        self._pending = 0
        # Graphs with no file identity still share a constant that two of their buffers name.
        self._identity: Hashable = identity if identity is not None else object()
        self._handles: list[Any] = [
            self._create(spec) if index in used or spec.kind is BufferKind.STATE else None
            for index, spec in enumerate(program.buffers)
        ]
        self._states = {
            spec.name: index
            for index, spec in enumerate(program.buffers)
            if spec.kind is BufferKind.STATE
        }
        self._submitter.flush()

    def __getitem__(self, index: int) -> Any:
        """The ``GPUBuffer`` of buffer ``index``, None when it is not used on this device."""
        return self._handles[index]

    # -- load ---------------------------------------------------------------------------------

    def _create(self, spec: Buffer) -> Any:
        if spec.kind is not BufferKind.CONSTANT:
            handle = self._allocate(spec)
            if spec.kind is BufferKind.STATE and spec.data_key:
                self._upload(handle, spec)
            return handle
        lock, cache = _constants_of(self._device)
        key = (self._identity, spec.data_key, spec.size)
        with lock:
            handle = cache.get(key)
            if handle is None:
                handle = self._allocate(spec)
                self._upload(handle, spec)
                cache[key] = handle
        return handle

    def _allocate(self, spec: Buffer) -> Any:
        doing = f"allocating {spec.size} bytes for {spec.kind.name.lower()} '{spec.name}'"
        with gpu_errors(self._label, doing, loading=True):
            return self._device.create_buffer(
                label=f"{self._label}: {spec.name}",
                size=spec.size,
                usage=STORAGE | COPY_DST | COPY_SRC,
            )

    def _data(self, spec: Buffer) -> memoryview:
        """The named data of ``spec``, as bytes.

        Raises InvalidProgramError when it is missing or does not fit the buffer.
        """
        source = self._named_data
        try:
            found = source[spec.data_key] if isinstance(source, Mapping) else source(spec.data_key)
        except KeyError:
            found = None
        if found is None:
            raise InvalidProgramError(
                f"{self._label}: the file has no data '{spec.data_key}' for '{spec.name}'; if it "
                "was exported with external data, that file must be given too"
            )
        data = memoryview(found)
        if not data.c_contiguous:
            raise InvalidProgramError(f"{self._label}: data '{spec.data_key}' is not contiguous")
        data = data.cast("B") if data.nbytes else memoryview(b"")
        if not spec.size - 3 <= len(data) <= spec.size:
            raise InvalidProgramError(
                f"{self._label}: data '{spec.data_key}' of '{spec.name}' has {len(data)} bytes, "
                f"expected {spec.size}, or up to 3 less"
            )
        return data

    def _upload(self, handle: Any, spec: Buffer) -> None:
        data = self._data(spec)
        with gpu_errors(self._label, f"uploading '{spec.name}' ({len(data)} bytes)"):
            self.write(handle, data)

    def write(self, handle: Any, data: memoryview) -> None:
        """Writes bytes to the start of a buffer, in pieces, padded with zeros to whole words."""
        queue = self._device.queue
        whole = len(data) // 4 * 4
        for start in range(0, whole, _PIECE_BYTES):
            piece = data[start : min(start + _PIECE_BYTES, whole)]
            queue.write_buffer(handle, start, piece)
            self._pending += len(piece)
            if self._pending >= _DRAIN_BYTES:
                # Written data waits in host-visible memory until a submit takes it.
                self._submitter.flush()
                self._pending = 0
        if whole < len(data):
            queue.write_buffer(handle, whole, bytes(data[whole:]).ljust(4, b"\0"))

    # -- between steps ------------------------------------------------------------------------

    def poison(self) -> None:
        """Fills what a step may not rely on (inputs, scratch, outputs) with 0xFF bytes: NaN in
        every float type, -1 as an integer. A debugging aid, see ``EXECUTORCH_WGPU_POISON``."""
        for handle, spec in zip(self._handles, self._program.buffers, strict=True):
            volatile = (BufferKind.INPUT, BufferKind.SCRATCH, BufferKind.OUTPUT)
            if handle is not None and spec.kind in volatile:
                self.write(handle, np.full(spec.size, 0xFF, np.uint8).data)

    # -- states -------------------------------------------------------------------------------

    def state_names(self) -> list[str]:
        """Fully qualified names of the states, in the program's order."""
        return list(self._states)

    def reset(self, name: str | None = None) -> None:
        """Gives one state, or all, its initial value back.

        Raises:
            InvalidInputError: there is no state of that name.
        """
        for index in self._states.values() if name is None else [self._state(name)]:
            spec, handle = self._program.buffers[index], self._handles[index]
            if spec.data_key:
                self._upload(handle, spec)
            else:
                with gpu_errors(self._label, f"resetting '{spec.name}'"):
                    encoder = self._device.create_command_encoder(label=f"{self._label}: reset")
                    encoder.clear_buffer(handle, 0, spec.size)
                    self._submitter.submit(encoder.finish())

    def read_state(self, name: str) -> Array:
        """A copy of a state, with the shape and dtype of the largest tensor of fixed shape that
        views it whole from its start; as uint32 words where there is none.

        Raises:
            InvalidInputError: there is no state of that name.
        """
        index = self._state(name)
        dtype, shape = self._view(index)
        size = self._program.buffers[index].size
        label = f"{self._label}: reading state '{name}'"
        with gpu_errors(self._label, f"reading state '{name}'"):
            staging = self._submitter.staging(size, label)
            encoder = self._device.create_command_encoder(label=label)
            encoder.copy_buffer_to_buffer(self._handles[index], 0, staging.buffer, 0, size)
            token = self._submitter.submit(encoder.finish())
            with staging.mapped(token, size) as data:
                if dtype is None:
                    return np.frombuffer(data, np.uint32).copy()
                return boundary.from_storage(data, shape, dtype)

    def write_state(self, name: str, value: object) -> None:
        """Overwrites a state.

        Args:
            name: see :meth:`state_names`.
            value: numpy array or torch tensor of the dtype and shape of :meth:`read_state`.

        Raises:
            InvalidInputError: no such state, or another dtype or shape.
        """
        index = self._state(name)
        dtype, shape = self._view(index)
        where = f"{self._label}: state '{name}'"
        if dtype is None:
            array: Array = np.ascontiguousarray(value)
            if array.dtype != np.uint32:
                raise InvalidInputError(f"{where}: expected dtype uint32, got {array.dtype.name}")
        else:
            array = boundary.as_array(value, dtype, where)
        if array.shape != shape:
            raise InvalidInputError(f"{where}: expected shape {shape}, got {array.shape}")
        flat = array.reshape(-1) if dtype is None else boundary.to_storage(array, dtype, where)
        with gpu_errors(self._label, f"writing state '{name}'"):
            self.write(self._handles[index], flat.data.cast("B"))

    def _state(self, name: str) -> int:
        index = self._states.get(name)
        if index is None:
            raise InvalidInputError(
                f"{self._label}: no state '{name}'; there are: {', '.join(self._states) or 'none'}"
            )
        return index

    def _view(self, index: int) -> tuple[DType | None, tuple[int, ...]]:
        """How to show a state: a tensor of constant shape, contiguous from the buffer's start."""
        program = self._program
        size = program.buffers[index].size
        for tensor in program.tensors:
            if tensor.buffer != index:
                continue
            needed = [*tensor.shape, *tensor.strides, tensor.offset]
            try:
                # Constants evaluate without live scalars; anything else asks for one.
                values = Evaluator(program.exprs, needed)(())
            except (EvaluationError, IndexError):
                continue
            rank = len(tensor.shape)
            shape, strides, offset = tuple(values[:rank]), values[rank : 2 * rank], values[-1]
            count = int(np.prod(shape, dtype=np.int64))
            expected = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(rank)]
            contiguous = offset == 0 and strides == expected
            if contiguous and boundary.storage_bytes(count, tensor.dtype) == size:
                return tensor.dtype, shape
        return None, (size // 4,)
