"""What this process holds on each device, and the one place where buffers are made.

WebGPU does not say how much memory a device has or how much is free. So every buffer is noted in
its device's :class:`Ledger`, and an out-of-memory error can say what was asked for, what is in
use, and which buffers are the largest.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from .errors import InvalidInputError, OutOfDeviceMemoryError, gpu_errors, is_out_of_memory

#: Buffers that messages name.
_SHOWN = 5


def human_bytes(count: float) -> str:
    """``525.0 MiB``, from a number of bytes."""
    if count < 1024:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def largest_of(items: Iterable[tuple[str, int]]) -> str:
    """The largest of some (name, bytes), for messages."""
    first = sorted(items, key=lambda item: -item[1])[:_SHOWN]
    return ", ".join(f"'{name}' {human_bytes(size)}" for name, size in first) or "none"


class Ledger:
    """The buffers of one device that are alive. Thread-safe."""

    def __init__(self, where: str = "this device") -> None:
        self.where = where
        # Each change is one operation on a dict, and those are atomic: a lock could be held by
        # the very thread in which the garbage collector calls back.
        self._items: dict[int, tuple[str, int]] = {}
        self._keys = itertools.count()

    def note(self, buffer: Any, name: str, size: int) -> None:
        """``buffer`` counts ``size`` bytes under ``name`` as long as it is alive."""
        key = next(self._keys)
        self._items[key] = (name, size)
        weakref.finalize(buffer, self._items.pop, key, None).atexit = False

    def items(self) -> list[tuple[str, int]]:
        """(name, bytes) of every buffer."""
        return list(self._items.values())

    @property
    def total(self) -> int:
        """Bytes of all buffers."""
        return sum(size for _, size in self.items())

    def __str__(self) -> str:
        items = self.items()
        plural = "" if len(items) == 1 else "s"
        return (
            f"this process holds {human_bytes(sum(size for _, size in items))} in {len(items)} "
            f"buffer{plural} on {self.where}; the largest: {largest_of(items)}"
        )


_ledgers: weakref.WeakKeyDictionary[Any, Ledger] = weakref.WeakKeyDictionary()
_ledgers_lock = threading.Lock()


def ledger_of(device: Any) -> Ledger:
    """The one ledger of ``device``."""
    with _ledgers_lock:
        found = _ledgers.get(device)
        if found is None:
            summary = getattr(getattr(device, "adapter", None), "summary", "")
            found = _ledgers[device] = Ledger(f"'{summary}'" if summary else "this device")
        return found


def allocate(
    device: Any, size: int, usage: int, name: str, *, label: str, doing: str, loading: bool = False
) -> Any:
    """A new buffer of ``size`` bytes called ``name``, noted in the device's ledger.

    Args:
        label, doing, loading: as in :func:`.errors.gpu_errors`.

    Raises:
        OutOfDeviceMemoryError: with what was asked for, what is in use, and the largest buffers.
        DeviceLostError, InvalidProgramError, WgpuDelegateError.
    """
    ledger = ledger_of(device)
    with gpu_errors(label, doing, loading=loading):
        try:
            buffer = device.create_buffer(label=name, size=size, usage=usage)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfDeviceMemoryError(
                f"{label or 'program'}: {doing}: out of memory: {human_bytes(size)} were asked "
                f"for; {ledger}. Drop programs, forks or snapshots that are not needed any more, "
                "or pick a bigger device (`executorch-wgpu devices`)"
            ) from error
    ledger.note(buffer, name, size)
    return buffer


def memory_limit(device: Any, asked: int | None = None) -> int | None:
    """Bytes that buffers on ``device`` may take together: what the caller ``asked`` for, else
    ``EXECUTORCH_WGPU_MAX_BYTES``, else the machine's memory where the adapter computes on the CPU
    (its driver promises more than there is, and the system would end the process), else None.

    Raises:
        InvalidInputError: the environment's value is no number of bytes.
    """
    if asked is not None:
        return asked
    text = os.environ.get("EXECUTORCH_WGPU_MAX_BYTES", "")
    if text:
        if not text.isdecimal():
            raise InvalidInputError(
                f"EXECUTORCH_WGPU_MAX_BYTES is '{text}', expected a number of bytes"
            )
        return int(text)
    info = getattr(getattr(device, "adapter", None), "info", None) or {}
    if str(info.get("adapter_type", "")).lower() == "cpu" and hasattr(os, "sysconf"):
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):
            return None
    return None


def check_room(
    device: Any, needed: Iterable[tuple[str, int]], label: str, limit: int | None
) -> None:
    """Refuses to allocate ``needed``, (name, bytes) each, where ``limit`` would be passed.

    Raises:
        OutOfDeviceMemoryError: nothing has been allocated.
    """
    if limit is None:
        return
    items = list(needed)
    total, ledger = sum(size for _, size in items), ledger_of(device)
    if ledger.total + total > limit:
        raise OutOfDeviceMemoryError(
            f"{label}: needs {human_bytes(total)} for its buffers (the largest: "
            f"{largest_of(items)}), and {human_bytes(limit)} may be used in all; {ledger}. "
            "Nothing was allocated. Drop programs, forks or snapshots that are not needed any "
            "more, export with a shorter context or smaller weights, or pick a bigger device "
            "(`executorch-wgpu devices`)"
        )
