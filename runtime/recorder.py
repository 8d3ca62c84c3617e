"""The hot path: one compute pass from a plan.

:class:`NativeRecorder` calls wgpu-native's C functions, which is half the cost a dispatch;
:class:`PlainRecorder` is its twin on the plain API. Both issue the same commands in the same order
(a test holds them together): the live block once, then for each dispatch its pipeline and its bind
group where they change, and the grid. A dispatch with a zero in its grid is left out.

Errors inside a pass surface when the command encoder is finished, also those of the C functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from .device import is_native
from .plan import Command

#: ``@group`` of the live block and of the storage buffers.
LIVE_GROUP, STORAGE_GROUP = 0, 1


class PlainRecorder:
    """Records through methods of ``GPUComputePassEncoder``."""

    def prepare(self, commands: Sequence[Command]) -> list[Any]:
        """What :meth:`record` needs of a plan, made once."""
        return [(c.pipeline, c.bind_group, *c.grid) for c in commands]

    def record(
        self, encoder: Any, live: Any, offset: int, prepared: list[Any], values: Sequence[int]
    ) -> None:
        """Records a pass.

        Args:
            encoder: an open ``GPUComputePassEncoder``.
            live: the live block's bind group; ``offset``: its dynamic offset in bytes.
            prepared: from :meth:`prepare`.
            values: the step's values, which the commands' grids point into.
        """
        encoder.set_bind_group(LIVE_GROUP, live, [offset])
        last_pipeline = last_group = None
        for pipeline, group, at_x, at_y, at_z in prepared:
            x, y, z = values[at_x], values[at_y], values[at_z]
            if not (x and y and z):
                continue
            if pipeline is not last_pipeline:
                encoder.set_pipeline(pipeline)
                last_pipeline = pipeline
            if group is not last_group:
                encoder.set_bind_group(STORAGE_GROUP, group)
                last_group = group
            encoder.dispatch_workgroups(x, y, z)


class LabelledRecorder(PlainRecorder):
    """The plain recorder with a debug group a dispatch, for GPU debuggers (``debug_labels``)."""

    def prepare(self, commands: Sequence[Command]) -> list[Any]:
        return list(commands)

    def record(
        self, encoder: Any, live: Any, offset: int, prepared: list[Any], values: Sequence[int]
    ) -> None:
        encoder.set_bind_group(LIVE_GROUP, live, [offset])
        for command in prepared:
            x, y, z = (values[at] for at in command.grid)
            if not (x and y and z):
                continue
            encoder.push_debug_group(command.dispatch.label)
            encoder.set_pipeline(command.pipeline)
            encoder.set_bind_group(STORAGE_GROUP, command.bind_group)
            encoder.dispatch_workgroups(x, y, z)
            encoder.pop_debug_group()


class NativeRecorder(PlainRecorder):
    """Records through wgpu-native's C functions.

    Args:
        ffi, lib: cffi's pair, as in ``wgpu.backends.wgpu_native._ffi``.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._null = ffi.NULL
        self._offset = ffi.new("uint32_t[1]")
        self._set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        self._set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        self._dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups

    def prepare(self, commands: Sequence[Command]) -> list[Any]:
        # Handles are pointers; the plan's commands keep their objects alive.
        return [(c.pipeline._internal, c.bind_group._internal, *c.grid) for c in commands]

    def record(
        self, encoder: Any, live: Any, offset: int, prepared: list[Any], values: Sequence[int]
    ) -> None:
        handle, null = encoder._internal, self._null
        set_pipeline, set_bind_group = self._set_pipeline, self._set_bind_group
        dispatch = self._dispatch
        self._offset[0] = offset
        set_bind_group(handle, LIVE_GROUP, live._internal, 1, self._offset)
        last_pipeline = last_group = None
        for pipeline, group, at_x, at_y, at_z in prepared:
            x, y, z = values[at_x], values[at_y], values[at_z]
            if not (x and y and z):
                continue
            if pipeline is not last_pipeline:
                set_pipeline(handle, pipeline)
                last_pipeline = pipeline
            if group is not last_group:
                set_bind_group(handle, STORAGE_GROUP, group, 0, null)
                last_group = group
            dispatch(handle, x, y, z)


def recorder_of(device: Any, *, debug_labels: bool = False, plain: bool = False) -> PlainRecorder:
    """The recorder for ``device``: native where it can be, plain on Dawn or when asked for,
    labelled when every dispatch shall show in a GPU debugger."""
    if debug_labels:
        return LabelledRecorder()
    if plain or not is_native(device):
        return PlainRecorder()
    bindings = importlib.import_module("wgpu.backends.wgpu_native._ffi")
    return NativeRecorder(bindings.ffi, bindings.lib)
