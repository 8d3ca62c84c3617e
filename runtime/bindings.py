"""What the dispatches of a graph are bound to: its buffers, and the block of live scalars."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from executorch_wgpu.serialization.dispatch_list import Dispatch, Program

from .errors import gpu_errors
from .memory import allocate
from .shaders import LIVE_BYTES, Pipelines
from .storage import COPY_DST, UNIFORM, Buffers
from .submission import Submitter

#: Slots of the live block's ring; more than the steps that may be in flight.
RING_SLOTS = 4


class LiveBlock:
    """The values that live, one slot of a ring a step: the step before may still read its own.

    Args:
        device: a ``GPUDevice``.
        layout: of bind group 0.
        label: of the graph.

    Attributes:
        group: bind group 0, with a dynamic offset.

    Raises:
        OutOfDeviceMemoryError, DeviceLostError.
    """

    #: Bytes on the device.
    SIZE = LIVE_BYTES * RING_SLOTS

    def __init__(self, device: Any, layout: Any, label: str) -> None:
        name, doing = f"{label}: live block", "creating the live block"
        usage = UNIFORM | COPY_DST
        self._buffer = allocate(
            device, self.SIZE, usage, name, label=label, doing=doing, loading=True
        )
        with gpu_errors(label, doing, loading=True):
            resource = {"buffer": self._buffer, "offset": 0, "size": LIVE_BYTES}
            self.group = device.create_bind_group(
                label=name, layout=layout, entries=[{"binding": 0, "resource": resource}]
            )
        self._slot = 0

    @property
    def offset(self) -> int:
        """Where the next step's values are to be, in bytes."""
        return self._slot * LIVE_BYTES

    @property
    def last_offset(self) -> int:
        """Where the last step's values are."""
        return (self._slot - 1) % RING_SLOTS * LIVE_BYTES

    def write(self, submitter: Submitter, values: Sequence[int]) -> None:
        """Writes the next step's values, as words, and moves on by a slot."""
        if values:
            block = struct.pack(f"={len(values)}I", *[value & 0xFFFFFFFF for value in values])
            submitter.write(self._buffer, self.offset, block)
        self._slot = (self._slot + 1) % RING_SLOTS


class BindGroups:
    """Bind group 1 of each dispatch; dispatches that bind the same share one."""

    def __init__(
        self, device: Any, compiler: Pipelines, program: Program, buffers: Buffers, label: str
    ) -> None:
        self._device, self._compiler, self._program = device, compiler, program
        self._buffers, self._label = buffers, label
        self._groups: dict[Any, Any] = {}

    def of(self, dispatch: Dispatch) -> Any:
        """The group of a dispatch, created on first use.

        Raises:
            OutOfDeviceMemoryError, DeviceLostError, WgpuDelegateError.
        """
        accesses = self._program.kernels[dispatch.kernel].accesses
        key = (accesses, dispatch.bindings)
        group = self._groups.get(key)
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
            with gpu_errors(self._label, doing, loading=True):
                group = self._device.create_bind_group(
                    label=f"{self._label}: {dispatch.label}",
                    layout=self._compiler.layouts(accesses)[0],
                    entries=entries,
                )
            self._groups[key] = group
        return group
