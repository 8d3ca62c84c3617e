"""Submitting commands, waiting for one submission, and reading its results.

Two ways with one interface: wgpu-native through its C functions (the wait is for the submission
that is needed, by its index; wgpu-py's own map waits for the newest one and costs 20 to 90 us
more), and the plain API for everything else.

wgpu-native **aborts the process** on an error inside submit or poll (a lost device, a buffer that
is still mapped). So commands are always finished right before, which raises on a device that is
known to be lost, a staging buffer is unmapped whatever happens, and what a driver reports only
there is caught in :mod:`.guard`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .device import is_native
from .errors import DeviceLostError, WgpuDelegateError, plain_text
from .guard import NativeCalls, native_calls
from .memory import allocate

_MAP_READ, _COPY_DST = 0x1, 0x8
_POLL_PATIENCE_S = 10.0


class Submitter:
    """Submits finished command buffers to one device's queue, the plain way.

    Args:
        device: a ``GPUDevice``.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._fence: Any = None
        #: How many submissions there were, and how many of them are known to be done.
        self._submitted = self._done = 0

    def submit(self, command_buffer: Any) -> int:
        """Submits one command buffer; returns a token for :meth:`Staging.mapped` and
        :meth:`wait`."""
        self._device.queue.submit([command_buffer])
        self._submitted += 1
        return self._submitted

    def write(self, buffer: Any, offset: int, data: Any) -> None:
        """Writes bytes, or what is contiguous and has some, before the next submission.

        ``data``: whole words; it may go when this returns.
        """
        self._device.queue.write_buffer(buffer, offset, data)

    def wait(self, token: int) -> None:
        """Waits until the submission of ``token`` is done."""
        if token > self._done:
            self.flush()

    def flush(self) -> None:
        """Hands over pending ``write_buffer`` data and waits until the queue is idle."""
        submitted = self._submitted
        # Taken while it is in use: one that an interrupt leaves mapped is never submitted again.
        fence, self._fence = self._fence, None
        if fence is None:
            fence = self._device.create_buffer(label="fence", size=8, usage=_MAP_READ | _COPY_DST)
        # wgpu-py 0.32's on_submitted_work_done raises a TypeError; a map waits for the same. Dawn's
        # waits only for submissions that use the buffer, so this one does.
        encoder = self._device.create_command_encoder(label="flush")
        encoder.clear_buffer(fence)
        self._device.queue.submit([encoder.finish()])
        fence.map_sync("READ")
        if fence.map_state != "mapped":
            # Ctrl-C has struck in the callback, where cffi prints it and goes on.
            raise KeyboardInterrupt("while the queue was waited for")
        fence.unmap()
        self._fence, self._done = fence, max(self._done, submitted)

    def check_alive(self) -> None:
        """Raises what wgpu raises where the device is known to be lost."""
        # Submitted, for wgpu-native never frees a command buffer that is not.
        self.submit(self._nothing())

    def _nothing(self) -> Any:
        """An empty command buffer. Finishing one raises where the device is lost."""
        return self._device.create_command_encoder(label="flush").finish()

    def staging(self, size: int, label: str) -> Staging:
        """A kept staging buffer of ``size`` bytes."""
        return Staging(self._device, size, label)


class Staging:
    """A mappable buffer that results are copied into, kept between steps (plain API).

    ``idle``: False while it is mapped or being mapped, and when an interrupt has left that open:
    submitting such a buffer would abort the process.
    """

    def __init__(self, device: Any, size: int, label: str) -> None:
        self.size = size
        self.idle = True
        self.buffer = allocate(
            device,
            size,
            _MAP_READ | _COPY_DST,
            label,
            label=label,
            doing=f"allocating {size} bytes to read back",
        )

    @property
    def alive(self) -> bool:
        """False once the garbage collector has released the buffer: it does so before it asks the
        step that held it, which may still give it back."""
        return getattr(self.buffer, "_internal", self) is not None

    @contextmanager
    def mapped(self, token: int, size: int) -> Iterator[memoryview]:
        """The first ``size`` bytes once the submission of ``token`` is done. The view dies with
        the block: copy what is to stay."""
        del token
        self.idle = False
        self.buffer.map_sync("READ", 0, size)
        if self.buffer.map_state != "mapped":
            # Ctrl-C has struck in the callback, where cffi prints it and goes on.
            raise KeyboardInterrupt("while results were mapped")
        try:
            yield memoryview(self.buffer.read_mapped(0, size, copy=False)).cast("B")
        finally:
            self.buffer.unmap()
            self.idle = True


class NativeSubmitter(Submitter):
    """Submits through wgpu-native's C functions."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        bindings = importlib.import_module("wgpu.backends.wgpu_native._ffi")
        self._ffi, self._lib = bindings.ffi, bindings.lib
        self._calls = native_calls()
        # As wgpu-py has it: errors are raised.
        api = importlib.import_module("wgpu.backends.wgpu_native._api")
        self._write, self._from_buffer = api.libf.wgpuQueueWriteBuffer, bindings.ffi.from_buffer

    def submit(self, command_buffer: Any) -> int:
        return self._calls.submit(self._device.queue._internal, command_buffer._internal)

    def write(self, buffer: Any, offset: int, data: Any) -> None:
        view = self._from_buffer(data)
        self._write(self._device.queue._internal, buffer._internal, offset, view, len(view))

    def wait(self, token: int) -> None:
        index = self._ffi.new("WGPUSubmissionIndex *", token)
        self._calls.poll(self._device._internal, True, index)

    def flush(self) -> None:
        self.submit(self._nothing())
        self._calls.poll(self._device._internal, True)

    def staging(self, size: int, label: str) -> Staging:
        return NativeStaging(self._device, size, label, self._ffi, self._lib, self._calls)


class NativeStaging(Staging):
    """Maps through wgpu-native's C functions."""

    def __init__(
        self, device: Any, size: int, label: str, ffi: Any, lib: Any, calls: NativeCalls
    ) -> None:
        super().__init__(device, size, label)
        self._device, self._ffi, self._lib, self._calls = device, ffi, lib, calls
        # A callback outlives the call it was made for, so it may not hold this object.
        state: dict[str, Any] = {"status": 0, "message": "", "interrupt": None}
        self._state = state

        def on_error(_kind: Any, error: BaseException, _trace: Any) -> None:
            # Ctrl-C during the wait strikes at the first line of Python, which is the callback's;
            # cffi would print the KeyboardInterrupt and go on.
            state["interrupt"] = error

        @ffi.callback(  # type: ignore[untyped-decorator,unused-ignore]
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", onerror=on_error
        )
        def on_map(status: int, message: Any, _user1: Any, _user2: Any) -> None:
            if message.data != ffi.NULL and message.length < 1 << 20:
                state["message"] = ffi.unpack(message.data, message.length).decode(
                    "utf8", "replace"
                )
            state["status"] = status

        self._callback = on_map
        self._info = ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = lib.WGPUCallbackMode_AllowSpontaneous
        self._info.callback = on_map
        self._index = ffi.new("WGPUSubmissionIndex *")

    @contextmanager
    def mapped(self, token: int, size: int) -> Iterator[memoryview]:
        lib, state, handle = self._lib, self._state, self.buffer._internal
        state["status"], state["message"], state["interrupt"] = 0, "", None
        self._index[0] = token
        self.idle = False
        lib.wgpuBufferMapAsync(handle, lib.WGPUMapMode_Read, 0, size, self._info[0])
        try:
            try:
                self._calls.poll(self._device._internal, True, self._index)
            except DeviceLostError:
                state["status"] = lib.WGPUMapAsyncStatus_Error
                raise
            if not state["status"]:
                self._await_callback()
            if state["interrupt"] is not None:
                raise state["interrupt"]
            if state["status"] != lib.WGPUMapAsyncStatus_Success:
                text = plain_text(str(state["message"])) or f"map status {state['status']}"
                message = f"{self.buffer.label}: the results could not be mapped: {text}"
                if "lost" in text.lower() or "destroyed" in text.lower():
                    raise DeviceLostError(
                        f"{message}. Load the program again on a new device: program.reload()."
                    )
                raise WgpuDelegateError(message)
            address = self._calls.mapped_range(handle, size)
            if not address:
                raise WgpuDelegateError(f"{self.buffer.label}: the results could not be mapped")
            yield memoryview(self._ffi.buffer(self._ffi.cast("char *", address), size))
        finally:
            # Also cancels a map that is pending (an interrupt in the wait). A refused one leaves
            # nothing to unmap, and wgpu would complain.
            if state["status"] in (0, lib.WGPUMapAsyncStatus_Success):
                lib.wgpuBufferUnmap(handle)
            self.idle = True

    def _await_callback(self) -> None:
        """Another thread's poll may have taken the callback and be about to run it."""
        deadline = time.monotonic() + _POLL_PATIENCE_S
        state = self._state
        while not (state["status"] or state["interrupt"]) and time.monotonic() < deadline:
            self._calls.poll(self._device._internal, False)
            time.sleep(0)


def submitter_of(device: Any, *, plain: bool = False) -> Submitter:
    """The way to submit to ``device``; ``plain`` forces the plain API."""
    return NativeSubmitter(device) if is_native(device) and not plain else Submitter(device)
