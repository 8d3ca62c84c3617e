"""GPU buffers of a program: allocation, upload, constants and their sharing.

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

from executorch_wgpu.serialization.dispatch_list import Buffer, BufferKind, Program

from .errors import InvalidProgramError, gpu_errors
from .memory import allocate, check_room
from .states import StateSpace, views_of
from .submission import Submitter

#: key -> bytes-like (a memoryview of the mapped file), as a mapping or a callable.
NamedData = Mapping[str, Any] | Callable[[str], Any]

#: (bytes uploaded, bytes in all)
Progress = Callable[[int, int], object]

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
        space: where states with a group are shared.
        label: opens error messages, and names the buffers.
        progress: told of what has been uploaded.
        limit: bytes that all buffers on the device may take, None for what it gives.

    Attributes:
        created: indices of the states that are new, not another graph's.
        identity: the one passed in, or one that nothing else has.

    Raises:
        OutOfDeviceMemoryError: with the size and name of the buffer, or, before anything is
            allocated, with what they all take.
        InvalidProgramError: named data is missing or has another size, or a shared state differs
            from that of another method.
    """

    def __init__(
        self,
        device: Any,
        submitter: Submitter,
        program: Program,
        used: Collection[int],
        named_data: NamedData | None,
        identity: Hashable | None,
        space: StateSpace,
        label: str,
        progress: Progress | None = None,
        limit: int | None = None,
    ) -> None:
        self._device, self._submitter, self._program = device, submitter, program
        self._label = label
        self._named_data: NamedData = {} if named_data is None else named_data
        self._pending = 0
        # Graphs with no file identity still share a constant that two of their buffers name.
        self.identity: Hashable = identity if identity is not None else object()
        #: key -> bytes from its start to where the buffer that reaches furthest ends.
        self._ends: dict[str, int] = {}
        for spec in program.buffers:
            end = spec.data_offset + spec.size
            self._ends[spec.data_key] = max(end, self._ends.get(spec.data_key, 0))
        self._space = space
        self._views = views_of(program)
        self._progress, self._done = progress, 0
        self._total = sum(
            spec.size
            for index, spec in enumerate(program.buffers)
            if index in used and spec.kind is BufferKind.CONSTANT
        )
        missing = self._missing(used)
        check_room(device, [(f"{label}: {b.name}", b.size) for b in missing], label, limit)
        self._shared: list[Any] = []
        self.created: set[int] = set()
        self._handles: list[Any] = [
            self._create(index, spec) if index in used or spec.kind is BufferKind.STATE else None
            for index, spec in enumerate(program.buffers)
        ]
        self._submitter.flush()

    def __getitem__(self, index: int) -> Any:
        """The ``GPUBuffer`` of buffer ``index``, None when it is not used on this device."""
        return self._handles[index]

    # -- load ---------------------------------------------------------------------------------

    def _create(self, index: int, spec: Buffer) -> Any:
        if spec.kind is BufferKind.STATE:
            return self._create_state(index, spec)
        if spec.kind is not BufferKind.CONSTANT:
            return self._allocate(spec)
        lock, cache = _constants_of(self._device)
        key = (self.identity, spec.data_key, spec.data_offset, spec.size)
        with lock:
            handle = cache.get(key)
            if handle is None:
                handle = self._allocate(spec)
                self.upload(handle, spec, self._advance)
                cache[key] = handle
            else:
                self._advance(spec.size)
        return handle

    def _missing(self, used: Collection[int]) -> list[Buffer]:
        """The buffers that are to be allocated: not those that other graphs have made."""
        lock, cache = _constants_of(self._device)
        found: dict[Hashable, Buffer] = {}
        for index, spec in enumerate(self._program.buffers):
            key: Hashable = index
            if spec.kind is BufferKind.CONSTANT:
                key = (self.identity, spec.data_key, spec.data_offset, spec.size)
            if index in used or spec.kind is BufferKind.STATE:
                found.setdefault(key, spec)
        with lock:
            missing = [spec for key, spec in found.items() if key not in cache]
        return [spec for spec in missing if not (spec.share and self._space.has(spec))]

    def _advance(self, count: int) -> None:
        if self._progress is not None:
            self._done = min(self._done + count, self._total)
            self._progress(self._done, self._total)

    def _create_state(self, index: int, spec: Buffer) -> Any:
        def create() -> Any:
            handle = self._allocate(spec)
            if spec.data_key:
                self.upload(handle, spec)
            return handle

        if not spec.share:
            self.created.add(index)
            return create()
        shared, new = self._space.obtain(spec, self._views[index], create, self._label)
        self._shared.append(shared)
        if new:
            self.created.add(index)
        return shared.handle

    def _allocate(self, spec: Buffer) -> Any:
        return allocate(
            self._device,
            spec.size,
            STORAGE | COPY_DST | COPY_SRC,
            f"{self._label}: {spec.name}",
            label=self._label,
            doing=f"allocating {spec.size} bytes for {spec.kind.name.lower()} '{spec.name}'",
            loading=True,
        )

    def _data(self, spec: Buffer) -> memoryview:
        """The content of ``spec`` in the named data, as bytes.

        Raises InvalidProgramError when it is missing or does not fit the buffers that name it.
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
        end = self._ends[spec.data_key]
        if not end - 3 <= len(data) <= end:
            raise InvalidProgramError(
                f"{self._label}: data '{spec.data_key}' of '{spec.name}' has {len(data)} bytes, "
                f"expected {end}, or up to 3 less"
            )
        return data[spec.data_offset : spec.data_offset + spec.size]

    def upload(
        self, handle: Any, spec: Buffer, advance: Callable[[int], None] | None = None
    ) -> None:
        """Writes the content of ``spec`` in the named data; ``advance`` is told of its bytes."""
        data = self._data(spec)
        with gpu_errors(self._label, f"uploading '{spec.name}' ({len(data)} bytes)"):
            self.write(handle, data, advance)

    def write(
        self, handle: Any, data: memoryview, advance: Callable[[int], None] | None = None
    ) -> None:
        """Writes bytes to the start of a buffer, in pieces, padded with zeros to whole words."""
        # An error out of write_buffer would hold views on the data in its frames, and such views in
        # a reference cycle crash the garbage collector of Python 3.11.
        self._submitter.check_alive()
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
            if advance is not None:
                advance(len(piece))
        if whole < len(data):
            queue.write_buffer(handle, whole, bytes(data[whole:]).ljust(4, b"\0"))

    # -- between steps ------------------------------------------------------------------------

    def poison(self, keep: Collection[int] = ()) -> None:
        """Fills what a step may not rely on (inputs, scratch, outputs), but for the buffers in
        ``keep``, with 0xFF bytes: NaN in every float type, -1 as an integer. A debugging aid, see
        ``EXECUTORCH_WGPU_POISON``."""
        for index, spec in enumerate(self._program.buffers):
            handle = self._handles[index]
            volatile = (BufferKind.INPUT, BufferKind.SCRATCH, BufferKind.OUTPUT)
            if handle is not None and spec.kind in volatile and index not in keep:
                self.write(handle, np.full(spec.size, 0xFF, np.uint8).data)

    def allocated(self) -> dict[int, int]:
        """Identity of each buffer object -> its bytes; graphs that share one name the same."""
        return {
            id(handle): spec.size
            for handle, spec in zip(self._handles, self._program.buffers, strict=True)
            if handle is not None
        }
