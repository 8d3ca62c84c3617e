"""The hot path: one compute pass from a plan.

:class:`CompiledRecorder` goes through the dispatches in C (``record.c``): 12 us for the 98 of a
Llama-3.2-1B. Where that cannot be built, :class:`NativeRecorder` calls wgpu-native's C functions
from Python, 105 us; :class:`PlainRecorder` is their twin on the plain API, twice that. All issue
the same commands in the same order (a test holds them together): the live block once, then for each
dispatch its pipeline and its bind group where they change, and the grid. A dispatch with a zero in
its grid is left out.

Errors inside a pass surface when the command encoder is finished, also those of the C functions.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .device import is_native
from .native_code import address_of, library_of
from .plan import Command

#: ``@group`` of the live block and of the storage buffers.
LIVE_GROUP, STORAGE_GROUP = 0, 1


class PlainRecorder:
    """Records through methods of ``GPUComputePassEncoder``."""

    def prepare(self, commands: Sequence[Command]) -> Any:
        """What :meth:`record` needs of a plan, made once: a sequence, of which slices can be
        recorded."""
        return [(c.pipeline, c.bind_group, *c.grid) for c in commands]

    def record(
        self, encoder: Any, live: Any, offset: int, prepared: Any, values: Sequence[int]
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
        self, encoder: Any, live: Any, offset: int, prepared: Any, values: Sequence[int]
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
        self, encoder: Any, live: Any, offset: int, prepared: Any, values: Sequence[int]
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


#: Of ``record.c``.
_DECLARATIONS = """
struct functions { void *set_pipeline, *set_bind_group, *dispatch; };
struct command { void *pipeline, *group; uint32_t x, y, z; };
void record_dispatches(const struct functions *functions, void *encoder, void *live,
                       uint32_t offset, const struct command *command, size_t count,
                       const uint32_t *sizes);
"""


class _Commands:
    """Commands as C has them. ``at``: where in a step's values the distinct workgroup counts are,
    ``sizes``: their place for C, in common for the slices of one plan, of which one is recorded at
    a time (calls on one graph take turns)."""

    __slots__ = ("_array", "at", "count", "first", "sizes")

    def __init__(self, array: Any, first: Any, count: int, at: list[int], sizes: Any) -> None:
        self._array = array  # owns the memory that ``first`` points into
        self.first, self.count, self.at, self.sizes = first, count, at, sizes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> _Commands:
        begin, end, _ = part.indices(self.count)
        first = self.first + begin
        return _Commands(self._array, first, max(0, end - begin), self.at, self.sizes)


class CompiledRecorder(PlainRecorder):
    """Records through ``record.c``.

    Args:
        ffi, library: its own pair, from :func:`compiled`.
        functions: addresses (``void *`` of ``ffi``) of wgpu-native's SetPipeline, SetBindGroup and
            DispatchWorkgroups.
    """

    def __init__(self, ffi: Any, library: Any, functions: Sequence[Any]) -> None:
        self._ffi, self._record = ffi, library.record_dispatches
        self._functions = ffi.new("struct functions *", list(functions))

    def prepare(self, commands: Sequence[Command]) -> _Commands:
        # Handles are pointers; the plan's commands keep their objects alive.
        at = list(dict.fromkeys(where for command in commands for where in command.grid))
        place = {where: position for position, where in enumerate(at)}
        array = self._ffi.new("struct command[]", len(commands))
        for row, command in zip(array, commands, strict=True):
            row.pipeline = command.pipeline._internal
            row.group = command.bind_group._internal
            row.x, row.y, row.z = (place[where] for where in command.grid)
        sizes = self._ffi.new("uint32_t[]", len(at))
        return _Commands(array, array + 0, len(commands), at, sizes)

    def record(
        self, encoder: Any, live: Any, offset: int, prepared: Any, values: Sequence[int]
    ) -> None:
        sizes = prepared.sizes
        sizes[0 : len(prepared.at)] = [values[where] for where in prepared.at]
        self._record(
            self._functions,
            encoder._internal,
            live._internal,
            offset,
            prepared.first,
            prepared.count,
            sizes,
        )


@functools.cache
def compiled() -> tuple[Any, Any] | None:
    """cffi's pair of ``record.c``; None where it cannot be built."""
    source = Path(__file__).with_name("record.c")
    return library_of(source, _DECLARATIONS, "recording a step takes 0.1 ms more")


_NAMES = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")


def recorder_of(device: Any, *, debug_labels: bool = False, plain: bool = False) -> PlainRecorder:
    """The recorder for ``device``: in C where that can be, plain on Dawn or when asked for,
    labelled when every dispatch shall show in a GPU debugger."""
    if debug_labels:
        return LabelledRecorder()
    if plain or not is_native(device):
        return PlainRecorder()
    bindings = importlib.import_module("wgpu.backends.wgpu_native._ffi")
    built = compiled()
    if built is None:
        return NativeRecorder(bindings.ffi, bindings.lib)
    names = (f"wgpuComputePassEncoder{name}" for name in _NAMES)
    return CompiledRecorder(*built, [address_of(built[0], bindings, name) for name in names])
