"""States: what a delegate keeps between calls, such as KV caches, and who shares it.

A state belongs to one method, or, where the list names a group (``Buffer.share``), to all methods
of a program that name the same group and state; a :class:`StateSpace` holds those. Copies of
states (:class:`Snapshot`, forks) are made on the GPU, in the queue's order: after every step that
has been submitted, before every one that is submitted later.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from executorch_wgpu.serialization.dispatch_list import Buffer, BufferKind, DType, ExprOp, Program
from executorch_wgpu.serialization.expressions import EvaluationError, Evaluator

from . import boundary
from .boundary import Array
from .errors import InvalidInputError, InvalidProgramError, gpu_errors
from .memory import allocate
from .submission import Submitter

COPY_SRC, COPY_DST, STORAGE = 0x4, 0x8, 0x80


@dataclass(frozen=True, slots=True)
class View:
    """How to show a state: a contiguous tensor from its buffer's start. ``dtype`` None: words."""

    dtype: DType | None
    shape: tuple[int, ...]

    def __str__(self) -> str:
        name = "words" if self.dtype is None else boundary.dtype_name(self.dtype)
        return f"{name}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class _Identity:
    """What two methods must agree on to share a state: bytes, tensor, and initial content."""

    size: int
    view: View
    data_key: str
    data_offset: int

    def __str__(self) -> str:
        content = f"data '{self.data_key}' + {self.data_offset}" if self.data_key else "zeros"
        return f"{self.size} bytes, {self.view}, starting as {content}"


class _Shared:
    """A buffer in a space; lives as long as a graph that holds it."""

    def __init__(self, handle: Any, identity: _Identity, label: str) -> None:
        self.handle, self.identity, self.label = handle, identity, label


class StateSpace:
    """Shared states by (group, name). Methods that are loaded with one space share them; each lives
    as long as one of those methods. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: weakref.WeakValueDictionary[tuple[str, str], _Shared]
        self._shared = weakref.WeakValueDictionary()

    def has(self, spec: Buffer) -> bool:
        """Whether the state ``spec`` is there already."""
        with self._lock:
            return (spec.share, spec.name) in self._shared

    def obtain(
        self, spec: Buffer, view: View, create: Callable[[], Any], label: str
    ) -> tuple[_Shared, bool]:
        """The state ``spec`` of this space, and whether it was ``create``\\ d just now.

        Raises:
            InvalidProgramError: another method's state of that group and name is a different one.
        """
        identity = _Identity(spec.size, view, spec.data_key, spec.data_offset)
        with self._lock:
            found = self._shared.get((spec.share, spec.name))
            if found is None:
                found = _Shared(create(), identity, label)
                self._shared[spec.share, spec.name] = found
                return found, True
        if found.identity != identity:
            raise InvalidProgramError(
                f"{label}: state '{spec.name}' of the group '{spec.share}' is {identity}; in "
                f"'{found.label}', which shares the group, it is {found.identity}"
            )
        return found, False


@dataclass(frozen=True, slots=True)
class _Saved:
    """A copy of the first ``size`` bytes of a state of ``whole`` bytes: a buffer on the GPU, or
    bytes in host memory."""

    buffer: Any
    size: int
    whole: int


class Snapshot:
    """States as they were, on the GPU or in host memory, from ``snapshot()``. Freed when it is
    dropped."""

    def __init__(self, saved: dict[str, _Saved], device: Any = None) -> None:
        self._saved, self._device = saved, device

    @property
    def names(self) -> list[str]:
        """Names of the states in it."""
        return list(self._saved)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, on the GPU or in host memory."""
        return sum(saved.size for saved in self._saved.values())

    @property
    def on_host(self) -> bool:
        """Whether it lies in host memory, and outlives the device."""
        return all(isinstance(saved.buffer, bytes) for saved in self._saved.values())

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self._saved)} states, {self.nbytes} bytes>"


class Handles(Protocol):
    """The buffers of a graph, see :class:`.storage.Buffers`."""

    def __getitem__(self, index: int) -> Any:
        """The ``GPUBuffer`` of buffer ``index``."""

    def upload(self, handle: Any, spec: Buffer) -> None:
        """Writes the initial content of a state that has one."""

    def write(self, handle: Any, data: memoryview) -> None:
        """Writes bytes to the start of a buffer."""


class State:
    """The buffers of a method that persist between calls, such as KV caches, by name. Every call
    acts after all submitted steps and before those that follow. Thread-safe.

    Args:
        device: a ``GPUDevice``.
        submitter: its submitter.
        program: verified.
        label: opens error messages.
        buffers: the graph's.
        lock: the graph's.
    """

    def __init__(
        self,
        device: Any,
        submitter: Submitter,
        program: Program,
        label: str,
        buffers: Handles,
        lock: threading.Lock,
    ) -> None:
        self._device, self._submitter, self._program = device, submitter, program
        self._label, self._buffers, self._lock = label, buffers, lock
        self._views = views_of(program)
        self._indices = {program.buffers[index].name: index for index in self._views}

    @classmethod
    def none(cls, label: str) -> State:
        """The state of a method that has none."""

        nothing: Any = None
        program = Program(producer="")
        return cls(None, Submitter(None), program, label, nothing, threading.Lock())

    @property
    def names(self) -> list[str]:
        """Fully qualified names, such as ``layers.0.attention.k_cache``, in the program's order."""
        return list(self._indices)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of what :meth:`read` gives.

        Raises:
            InvalidInputError: there is no state of that name.
        """
        return self._views[self._index(name)].shape

    def reset(self, name: str | None = None) -> None:
        """Gives one state, or all, its initial value back.

        Raises:
            InvalidInputError: there is no state of that name.
        """
        indices = list(self._indices.values()) if name is None else [self._index(name)]
        zeros = [i for i in indices if not self._program.buffers[i].data_key]
        with self._lock:
            for index in indices:
                if index not in zeros:
                    self._buffers.upload(self._buffers[index], self._program.buffers[index])
            if not zeros:
                return
            with gpu_errors(self._label, f"resetting '{self._program.buffers[zeros[0]].name}'"):
                encoder = self._device.create_command_encoder(label=f"{self._label}: reset")
                for index in zeros:
                    encoder.clear_buffer(self._buffers[index], 0, self._program.buffers[index].size)
                self._submitter.submit(encoder.finish())

    def read(self, name: str) -> Array:
        """A copy of a state, with the dtype and shape of a tensor of fixed shape that views it
        whole from its start; as uint32 words where there is none.

        Raises:
            InvalidInputError: there is no state of that name.
        """
        index = self._index(name)
        size, view = self._program.buffers[index].size, self._views[index]
        with self._lock, self._mapped(name, index, size) as data:
            if view.dtype is None:
                return np.frombuffer(data, np.uint32).copy()
            return boundary.from_storage(data, view.shape, view.dtype)

    @contextmanager
    def _mapped(self, name: str, index: int, size: int) -> Iterator[memoryview]:
        """The first ``size`` bytes of a state, as long as the block runs."""
        with gpu_errors(self._label, f"reading state '{name}' ({size} bytes)"):
            staging = self._submitter.staging(size, f"{self._label}: {name}")
            encoder = self._device.create_command_encoder(label=f"{self._label}: read state")
            encoder.copy_buffer_to_buffer(self._buffers[index], 0, staging.buffer, 0, size)
            token = self._submitter.submit(encoder.finish())
            with staging.mapped(token, size) as data:
                yield data

    def write(self, name: str, value: object) -> None:
        """Overwrites a state.

        Args:
            name: see :attr:`names`.
            value: numpy array or torch tensor of the dtype and shape of :meth:`read`.

        Raises:
            InvalidInputError: no such state, or another dtype or shape.
        """
        index = self._index(name)
        view = self._views[index]
        where = f"{self._label}: state '{name}'"
        if view.dtype is None:
            array: Array = np.ascontiguousarray(value)
            if array.dtype != np.uint32:
                raise InvalidInputError(f"{where}: expected dtype uint32, got {array.dtype.name}")
        else:
            array = boundary.as_array(value, view.dtype, where)
        if array.shape != view.shape:
            raise InvalidInputError(f"{where}: expected shape {view.shape}, got {array.shape}")
        flat = array.reshape(-1)
        if view.dtype is not None:
            flat = boundary.to_storage(array, view.dtype, where)
        with self._lock, gpu_errors(self._label, f"writing state '{name}'"):
            self._buffers.write(self._buffers[index], flat.data.cast("B"))

    def snapshot(self, rows: Mapping[str, int] | None = None, *, on_host: bool = False) -> Snapshot:
        """Copies of all states.

        Args:
            on_host: keep them in host memory, where they outlive the device (``Program.reload``);
                waits for all submitted steps. Else they stay on the GPU, which takes microseconds.
            rows: name -> how many rows are in use, for states of which only the first rows are to
                be copied. Rows lie along the first dimension whose size is not 1.

        Raises:
            InvalidInputError: no state of a name, or fewer rows than asked for.
            OutOfDeviceMemoryError: there is no room for the copies.
        """
        rows = rows or {}
        for name in rows:
            self._index(name)
        sizes = {
            name: self._program.buffers[index].size
            if name not in rows
            else self._row_bytes(name, index, rows[name])
            for name, index in self._indices.items()
        }
        saved: dict[str, _Saved] = {}
        if on_host:
            for name, size in sizes.items():
                index, content = self._indices[name], b""
                if size:
                    with self._lock, self._mapped(name, index, size) as data:
                        content = bytes(data)
                saved[name] = _Saved(content, size, self._program.buffers[index].size)
            return Snapshot(saved)
        for name, size in sizes.items():
            buffer = allocate(
                self._device,
                max(4, size),
                COPY_SRC | COPY_DST,
                f"{self._label}: saved {name}",
                label=self._label,
                doing=f"allocating {size} bytes to save state '{name}'",
            )
            whole = self._program.buffers[self._indices[name]].size
            saved[name] = _Saved(buffer, size, whole)
        self._copy(
            [(self._buffers[self._indices[n]], s.buffer, s.size) for n, s in saved.items()],
            "saving the states",
        )
        return Snapshot(saved, self._device)

    def restore(self, snapshot: Snapshot) -> None:
        """Gives states the content they had when ``snapshot`` was taken, of this graph, a fork of
        it, or another with the same states. Rows that were not saved are left as they are.

        Raises:
            InvalidInputError: a state of the snapshot is not there, or has another size, or the
                snapshot lies on another device.
        """
        if not snapshot.on_host and snapshot._device is not self._device:
            raise InvalidInputError(
                f"{self._label}: the snapshot lies on another device, lost or not; take it with "
                "on_host=True to restore it elsewhere"
            )
        copies = []
        for name, saved in snapshot._saved.items():
            index = self._index(name)
            size = self._program.buffers[index].size
            if size != saved.whole:
                raise InvalidInputError(
                    f"{self._label}: state '{name}' has {size} bytes, in the snapshot {saved.whole}"
                )
            copies.append((saved.buffer, self._buffers[index], saved.size))
        if not snapshot.on_host:
            self._copy(copies, "restoring the states")
            return
        with self._lock, gpu_errors(self._label, "restoring the states"):
            for content, handle, _ in copies:
                self._buffers.write(handle, memoryview(content))

    def copy_from(self, other: State, indices: set[int]) -> None:
        """Copies the states ``indices`` (buffers) of another graph of the same program."""
        self._copy(
            [
                (other._buffers[i], self._buffers[i], self._program.buffers[i].size)
                for i in sorted(indices)
            ],
            "copying the states",
        )

    def _copy(self, copies: list[tuple[Any, Any, int]], doing: str) -> None:
        if not copies:
            return
        with self._lock, gpu_errors(self._label, doing):
            encoder = self._device.create_command_encoder(label=f"{self._label}: {doing}")
            for source, target, size in copies:
                if size:
                    encoder.copy_buffer_to_buffer(source, 0, target, 0, size)
            self._submitter.submit(encoder.finish())

    def _index(self, name: str) -> int:
        index = self._indices.get(name)
        if index is None:
            raise InvalidInputError(
                f"{self._label}: no state '{name}'; there are: {', '.join(self._indices) or 'none'}"
            )
        return index

    def _row_bytes(self, name: str, index: int, count: int) -> int:
        """Bytes of the first ``count`` rows, in whole words."""
        view = self._views[index]
        outer = [size for size in view.shape if size != 1] or [1]
        if not 0 <= count <= outer[0]:
            raise InvalidInputError(
                f"{self._label}: state '{name}' is {view} and has {outer[0]} rows, not {count}"
            )
        size = self._program.buffers[index].size
        return min(size, -(-(size * count) // (outer[0] * 4)) * 4)


def views_of(program: Program, kind: BufferKind = BufferKind.STATE) -> dict[int, View]:
    """How to show each buffer of a kind: as a tensor of constant shape that fills it, contiguous
    from its start; else as words."""
    buffers = program.buffers
    found = {
        index: View(None, (spec.size // 4,))
        for index, spec in enumerate(buffers)
        if spec.kind is kind
    }
    tensors = [t for t in program.tensors if t.buffer in found]
    if not tensors:
        return found
    fixed = _constant_values(program)
    for tensor in reversed(tensors):
        values = [fixed[index] for index in (*tensor.shape, *tensor.strides, tensor.offset)]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            continue
        rank = len(tensor.shape)
        shape, strides, offset = tuple(numbers[:rank]), numbers[rank : 2 * rank], numbers[-1]
        expected = [math.prod(shape[i + 1 :]) for i in range(rank)]
        size = boundary.storage_bytes(math.prod(shape), tensor.dtype)
        if offset == 0 and strides == expected and size == buffers[tensor.buffer].size:
            found[tensor.buffer] = View(tensor.dtype, shape)
    return found


def _constant_values(program: Program) -> list[int | None]:
    """The value of each expression that depends on no live scalar, None for the others."""
    known: list[bool] = []
    for expr in program.exprs:
        if expr.op > ExprOp.SYM:
            known.append(known[expr.a] and known[expr.b])
        else:
            known.append(expr.op is ExprOp.CONST)
    fixed = [index for index, holds in enumerate(known) if holds]
    values: list[int | None] = [None] * len(known)
    try:
        for index, value in zip(fixed, Evaluator(program.exprs, fixed)(()), strict=True):
            values[index] = value
    except EvaluationError:
        pass  # the verifier refuses what always divides by zero
    return values
