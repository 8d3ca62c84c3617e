"""Keeps the process alive where wgpu-native would end it.

wgpu-native calls ``abort()`` on an error inside submit or poll, which is what a driver's report of
a lost device becomes. ``guard.c`` turns that into a result. Where it cannot be built (see
:mod:`.native_code`), and with ``EXECUTORCH_WGPU_GUARD=0``, the calls are made as they are and end
the process as before.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import DeviceLostError
from .native_code import address_of, library_of

SOURCE = Path(__file__).with_name("guard.c")

_DECLARATIONS = """
int guarded_submit(void *function, void *queue, size_t count, void *commands, uint64_t *index);
int guarded_poll(void *function, void *device, uint32_t wait, const void *index);
int guarded_range(void *function, void *buffer, size_t offset, size_t size, const void **range);
"""

_LOST = (
    "the driver gave the device up (wgpu-native's words are on stderr). "
    "Load the program again on a new device: program.reload()"
)


class NativeCalls:
    """Submit and poll of wgpu-native, unguarded: an error ends the process.

    Args:
        ffi, lib: cffi's pair, as in ``wgpu.backends.wgpu_native._ffi``.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._submit, self._poll = lib.wgpuQueueSubmitForIndex, lib.wgpuDevicePoll
        self._range = lib.wgpuBufferGetConstMappedRange
        self._command_buffer, self._null = ffi.typeof("WGPUCommandBuffer[1]"), ffi.NULL
        self._new, self._cast = ffi.new, ffi.cast

    def submit(self, queue: Any, command_buffer: Any) -> int:
        """Submits one command buffer (handles all); returns the submission's index.

        Raises:
            DeviceLostError: the driver gave the device up (where guarded).
        """
        return int(self._submit(queue, 1, self._new(self._command_buffer, [command_buffer])))

    def poll(self, device: Any, wait: bool, index: Any = None) -> None:
        """Takes notice of what is done; with ``wait`` until the submission that ``index`` points at
        is, None: until all are.

        Raises:
            DeviceLostError: the driver gave the device up (where guarded).
        """
        self._poll(device, wait, self._null if index is None else index)

    def mapped_range(self, buffer: Any, size: int) -> int:
        """The address of the first ``size`` bytes of a mapped buffer, 0 where there is none.

        Raises:
            DeviceLostError: the device went in between (where guarded).
        """
        return int(self._cast("uintptr_t", self._range(buffer, 0, size)))


class GuardedCalls(NativeCalls):
    """The same through ``guard.c``.

    Args:
        bindings: wgpu-py's module with ``ffi`` and ``lib``.
        mine, library: of ``guard.c``.
    """

    def __init__(self, bindings: Any, mine: Any, library: Any) -> None:
        super().__init__(bindings.ffi, bindings.lib)
        self._library = library  # stays loaded
        self._address = {
            name: address_of(mine, bindings, name)
            for name in (
                *("wgpuQueueSubmitForIndex", "wgpuDevicePoll"),
                *("wgpuBufferGetConstMappedRange",),
            )
        }
        self._guarded_submit, self._guarded_poll = library.guarded_submit, library.guarded_poll
        self._guarded_range = library.guarded_range
        self._make_range: Callable[[], Any] = lambda: mine.new("void const **")
        self._my_cast = mine.cast
        self._local = threading.local()
        self._make_index: Callable[[], Any] = lambda: mine.new("uint64_t *")

    def submit(self, queue: Any, command_buffer: Any) -> int:
        index = getattr(self._local, "index", None)
        if index is None:
            index = self._local.index = self._make_index()
        commands = self._new(self._command_buffer, [command_buffer])
        address = self._address["wgpuQueueSubmitForIndex"]
        if not self._guarded_submit(address, queue, 1, commands, index):
            raise DeviceLostError(f"submitting: {_LOST}")
        return int(index[0])

    def poll(self, device: Any, wait: bool, index: Any = None) -> None:
        which = self._null if index is None else index
        if not self._guarded_poll(self._address["wgpuDevicePoll"], device, wait, which):
            raise DeviceLostError(f"waiting: {_LOST}")

    def mapped_range(self, buffer: Any, size: int) -> int:
        place = self._make_range()
        address = self._address["wgpuBufferGetConstMappedRange"]
        if not self._guarded_range(address, buffer, 0, size, place):
            raise DeviceLostError(f"reading: {_LOST}")
        return int(self._my_cast("uintptr_t", place[0]))


_calls: NativeCalls | None = None
_calls_lock = threading.Lock()


def native_calls() -> NativeCalls:
    """The one instance of this process, guarded where that can be."""
    global _calls
    with _calls_lock:
        if _calls is None:
            bindings = importlib.import_module("wgpu.backends.wgpu_native._ffi")
            _calls = NativeCalls(bindings.ffi, bindings.lib)
            if os.environ.get("EXECUTORCH_WGPU_GUARD") != "0":
                built = library_of(SOURCE, _DECLARATIONS, "a driver's failure will end the process")
                if built is not None:
                    _calls = GuardedCalls(bindings, *built)
        return _calls
