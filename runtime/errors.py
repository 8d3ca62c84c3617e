"""Errors of the runtime, and the one place where wgpu's exceptions become ours.

wgpu raises at the call that caused an error (``GPUValidationError``, ``GPUOutOfMemoryError``,
...), with a message that knows nothing of the model. :func:`gpu_errors` adds the label of the
method and what it was doing, and picks the class a caller can act on.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from executorch_wgpu.serialization.errors import InvalidProgramError, WgpuDelegateError

__all__ = [
    "DeviceLostError",
    "InvalidInputError",
    "InvalidProgramError",
    "NotDelegatedError",
    "OutOfDeviceMemoryError",
    "ProfilingError",
    "SoftwareAdapterWarning",
    "UnsupportedDeviceError",
    "WgpuDelegateError",
    "gpu_errors",
    "is_out_of_memory",
    "plain_text",
]


class UnsupportedDeviceError(WgpuDelegateError):
    """No usable adapter, or one without a feature or limit that the program requires. Raised
    before anything is allocated; the message names what was required and what is there."""


class InvalidInputError(WgpuDelegateError, ValueError):
    """An argument of ``execute`` does not fit the program: count, type, dtype, rank, size, range,
    or a check of the program. Nothing was sent to the GPU and no state has changed."""


class NotDelegatedError(WgpuDelegateError):
    """The method also needs CPU operators or other backends, which only ExecuTorch's own runtime
    has. The message names them and says how to run it."""


class OutOfDeviceMemoryError(WgpuDelegateError, MemoryError):
    """The device could not allocate a buffer. The message names its size and purpose."""


class DeviceLostError(WgpuDelegateError, RuntimeError):
    """The device is gone (driver reset, unplugged, destroyed). Every pending and later call on it
    raises this. ``Program.reload`` makes a new one; what the lost one held (states, constants,
    snapshots on it) cannot be read any more, a snapshot in host memory can."""


class SoftwareAdapterWarning(UserWarning):
    """No adapter was asked for and the one that was found computes on the CPU, slowly. Not given
    where one was asked for (``device="cpu"``, a name, wgpu's variables, a device)."""


class ProfilingError(WgpuDelegateError, RuntimeError):
    """Timestamps could not be recorded or read back. The step itself has run."""


@contextmanager
def gpu_errors(label: str, doing: str, *, loading: bool = False) -> Iterator[None]:
    """Turns wgpu's exceptions into ours.

    Args:
        label: the method's label, first word of the message.
        doing: what was being done, such as ``"creating the pipeline 'add'"``.
        loading: at load, a validation error means that the program asks for something invalid:
            :class:`InvalidProgramError`. Later it is a fault of the runtime or the driver:
            :class:`WgpuDelegateError`.

    Raises:
        OutOfDeviceMemoryError, DeviceLostError, InvalidProgramError, WgpuDelegateError.
    """
    try:
        yield
    except DeviceLostError as error:
        # What raised it does not know whose step it was.
        text = str(error)
        if label and not text.startswith(label):
            raise DeviceLostError(f"{label}: {doing}: {text}") from error
        raise
    except WgpuDelegateError:
        raise
    except Exception as error:
        text = plain_text(str(error))
        lowered = text.lower()
        message = f"{label or 'program'}: {doing}: {text}"
        if "device" in lowered and ("lost" in lowered or "destroyed" in lowered):
            raise DeviceLostError(
                f"{message}. Load the program again on a new device: program.reload()."
            ) from error
        if "GPUError" not in _names(error):
            raise
        if is_out_of_memory(error):
            raise OutOfDeviceMemoryError(
                f"{message}. Free other models of this process or pick a bigger device "
                "(`executorch-wgpu devices`)."
            ) from error
        raise (InvalidProgramError if loading else WgpuDelegateError)(message) from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether ``error`` is wgpu's for memory that the device does not have."""
    text = str(error).lower()
    full = "out of memory" in text or "not enough memory" in text
    names = _names(error)
    return "GPUError" in names and (full or "GPUOutOfMemoryError" in names)


def _names(error: Exception) -> set[str]:
    """By name, for wgpu and wgpudawn define the same classes twice."""
    return {cls.__name__ for cls in type(error).__mro__}


def plain_text(text: str) -> str:
    """wgpu's text without its frame (``Validation Error``, ``Caused by:``, the C call)."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    frame = ("Validation Error", "Caused by:", "In wgpu")
    kept = [line for line in lines if not line.strip().startswith(frame)]
    return (textwrap.dedent("\n".join(kept)) or text).strip().rstrip(".")
