"""The invariants of what runs: shaders, kernels, steps, routes and dispatches.

Entered from :func:`executorch_wgpu.serialization.verify.verify`, after the tables of data.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from . import dispatch_list as dl
from . import format_limits as fl
from .dispatch_list import NONE, Access, BufferKind, ParamKind
from .limits import DEFAULT_LIMITS, EXTENSION_FEATURES
from .requirements import kernel_limits
from .verify_base import (
    Knowledge,
    check_count,
    check_enum,
    check_index,
    check_int,
    check_requirements,
    check_text,
    check_unique,
    fail,
)
from .wgsl_text import functions, is_identifier, leading_directive, overrides, shader_digest


def verify_shaders(program: dl.Program) -> None:
    """Shaders are what their digests say, and carry no directives."""
    check_count(program.shaders, fl.MAX_SHADERS, "shaders")
    for i, shader in enumerate(program.shaders):
        place = f"shaders[{i}]"
        if not isinstance(shader.wgsl, str) or not shader.wgsl.strip():
            fail(place, "has no WGSL")
        if len(shader.wgsl.encode("utf-8")) > fl.MAX_WGSL_BYTES:
            fail(place, f"more than {fl.MAX_WGSL_BYTES} bytes of WGSL")
        if "\0" in shader.wgsl:
            fail(place, "its WGSL holds a NUL")
        check_count(shader.extensions, fl.MAX_REQUIREMENTS, f"{place}.extensions")
        for extension in shader.extensions:
            if extension not in EXTENSION_FEATURES:
                known = ", ".join(sorted(EXTENSION_FEATURES))
                fail(place, f"WGSL extension {extension!r} is unknown (known: {known})")
        check_unique(shader.extensions, f"{place}.extensions")
        directive = leading_directive(shader.wgsl)
        if directive:
            fail(
                place,
                f"opens with the directive {directive!r}: name extensions in Shader.extensions, "
                "the replayer writes what its compiler wants",
            )
        digest = shader_digest(shader.wgsl, shader.extensions)
        if shader.sha256 != digest:
            fail(place, f"sha256 {shader.sha256!r}, but its text gives {digest!r}")


def verify_kernels(program: dl.Program) -> None:
    """Kernels name what their shaders declare, and their constants have legal values."""
    check_count(program.kernels, fl.MAX_KERNELS, "kernels")
    names: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
    for i, kernel in enumerate(program.kernels):
        place = f"kernels[{i}] {kernel.entry_point!r}"
        check_index(kernel.shader, program.shaders, place, "shaders")
        if kernel.shader not in names:
            wgsl = program.shaders[kernel.shader].wgsl
            names[kernel.shader] = (functions(wgsl), overrides(wgsl))
        declared, overridable = names[kernel.shader]
        check_text(kernel.entry_point, place, empty=False)
        if not is_identifier(kernel.entry_point) or kernel.entry_point not in declared:
            fail(place, f"shaders[{kernel.shader}] declares no function of that name")
        check_count(kernel.params, fl.MAX_PARAMS, f"{place} params")
        for param in kernel.params:
            _verify_param(param, len(program.live), f"{place} param {param.name!r}")
            if param.name not in overridable:
                fail(place, f"shaders[{kernel.shader}] declares no override {param.name!r}")
        check_unique([param.name for param in kernel.params], f"{place} params")
        check_count(kernel.accesses, fl.MAX_BINDINGS, f"{place} accesses")
        for access in kernel.accesses:
            check_enum(access, Access, f"{place} accesses")
        if len(kernel.workgroup_size) != 3:
            fail(place, f"workgroup size {kernel.workgroup_size} has not three members")
        for size in kernel.workgroup_size:
            check_int(size, 1, fl.MAX_WORKGROUP_INVOCATIONS, f"{place} workgroup size")
        if math.prod(kernel.workgroup_size) > fl.MAX_WORKGROUP_INVOCATIONS:
            fail(
                place,
                f"workgroup size {kernel.workgroup_size} has {math.prod(kernel.workgroup_size)} "
                f"invocations, at most {fl.MAX_WORKGROUP_INVOCATIONS} are allowed",
            )
        check_int(kernel.workgroup_bytes, 0, fl.MAX_WORKGROUP_BYTES, f"{place} workgroup_bytes")


def _verify_param(param: dl.Param, live_count: int, place: str) -> None:
    check_text(param.name, place)
    if not is_identifier(param.name):
        fail(place, "is not a WGSL identifier")
    check_enum(param.kind, ParamKind, place)
    value = param.value
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        fail(place, f"value {value!r} is not a finite number")
    if param.kind is ParamKind.F32:
        try:
            struct.pack("<f", value)
        except OverflowError:
            fail(place, f"value {value!r} does not fit an f32")
        return
    lo, hi = {
        ParamKind.U32: (0, (1 << 32) - 1),
        ParamKind.I32: (-(1 << 31), (1 << 31) - 1),
        ParamKind.BOOL: (0, 1),
        ParamKind.LIVE: (0, live_count - 1),
    }[param.kind]
    if value != int(value) or not lo <= value <= hi:
        what = f"a slot of the live block, which has {live_count}" if hi < lo else f"{lo}..{hi}"
        fail(place, f"value {value!r} of kind {param.kind.name} is not in {what}")


def verify_steps(program: dl.Program, known: Knowledge) -> None:
    """Steps in order: what each route needs, launches and writes."""
    check_count(program.steps, fl.MAX_STEPS, "steps")
    _Steps(program, known).verify()


class _Steps:
    """A walk over the steps that keeps which buffers hold something."""

    def __init__(self, program: dl.Program, known: Knowledge) -> None:
        self._program = program
        self._known = known
        self._limits = {**DEFAULT_LIMITS, **dict(program.limits)}
        self._needs = [kernel_limits(kernel) for kernel in program.kernels]
        self._kinds = [buffer.kind for buffer in program.buffers]
        #: Buffers whose content is defined: filled from outside, or written by what came before.
        self._defined = {
            i
            for i, kind in enumerate(self._kinds)
            if kind not in (BufferKind.SCRATCH, BufferKind.OUTPUT)
        }
        self._dispatches = 0
        #: Grids of the route at hand already looked at, and the corners at which it can run.
        self._grids: set[tuple[int, ...]] = set()
        self._corners: list[Sequence[int]] = []

    def verify(self) -> None:
        for i, buffer in enumerate(self._program.buffers):
            # These exist whatever route runs; the others where a route binds them.
            always = buffer.kind in (BufferKind.OUTPUT, BufferKind.STATE)
            if always and buffer.size > self._limits["max-buffer-size"]:
                self._exceeds(
                    f"buffers[{i}] {buffer.name!r}",
                    "max-buffer-size", buffer.size, self._limits,
                )  # fmt: skip
        for i, step in enumerate(self._program.steps):
            self._step(step, f"steps[{i}]")
        self._outputs()

    def _outputs(self) -> None:
        """Nothing is returned that nothing wrote."""
        for i, value in enumerate(self._program.outputs):
            if value.kind is not dl.ValueKind.TENSOR:
                continue
            tensor = self._program.tensors[value.index]
            empty = any(self._known.maxima[size] <= 0 for size in tensor.shape)
            if tensor.buffer not in self._defined and not empty:
                fail(f"outputs[{i}] {value.name!r}", f"nothing writes its buffer {tensor.buffer}")

    def _step(self, step: dl.Step, place: str) -> None:
        if not step.routes:
            fail(place, "has no routes")
        check_count(step.routes, fl.MAX_ROUTES, f"{place}.routes")
        last = step.routes[-1]
        if last.guard != NONE or last.features or last.limits:
            fail(
                f"{place}.routes[{len(step.routes) - 1}] {last.name!r}",
                "the last route has a guard or requirements, so that none may apply",
            )
        writes = []
        corners = list(self._known.corners)
        for i, route in enumerate(step.routes):
            writes.append(self._route(route, f"{place}.routes[{i}]", corners))
            if not route.features and not route.limits and route.guard != NONE:
                # On every device, where its guard holds, no later route runs.
                corners = [corner for corner in corners if not corner[route.guard]]
        lasting = [{b for b in w if self._kinds[b] is not BufferKind.SCRATCH} for w in writes]
        for i, route_writes in enumerate(lasting[1:], 1):
            if route_writes != lasting[0]:
                fail(
                    f"{place}.routes[{i}] {step.routes[i].name!r}",
                    f"writes buffers {sorted(route_writes)}, but routes[0] writes "
                    f"{sorted(lasting[0])}",
                )
        self._defined |= set.intersection(*writes)

    def _route(self, route: dl.Route, place: str, corners: Sequence[Sequence[int]]) -> set[int]:
        """Check one route and return the buffers that it writes. ``corners``: those at which no
        earlier route runs for certain."""
        place = f"{place} {route.name!r}" if route.name else place
        check_text(route.name, place)
        if route.guard != NONE:
            check_index(route.guard, self._program.exprs, f"{place}.guard", "exprs")
            corners = [corner for corner in corners if corner[route.guard]]
        if corners != self._corners:
            self._corners, self._grids = list(corners), set()
        check_requirements(route.features, route.limits, f"{place}.")
        features = {*self._program.features, *route.features}
        limits = dict(self._limits)
        for name, value in route.limits:
            limits[name] = max(value, limits[name])
        self._dispatches += len(route.dispatches)
        if self._dispatches > fl.MAX_DISPATCHES:
            fail(place, f"more than {fl.MAX_DISPATCHES} dispatches in all steps together")
        written: set[int] = set()
        for i, dispatch in enumerate(route.dispatches):
            self._dispatch(dispatch, features, limits, written, place, i)
        return written

    def _dispatch(
        self,
        dispatch: dl.Dispatch,
        features: set[str],
        limits: Mapping[str, int],
        written: set[int],
        route_place: str,
        number: int,
    ) -> None:
        """Check one dispatch and add the buffers that it writes to ``written``."""
        program = self._program
        place = f"{route_place}.dispatches[{number}] {dispatch.label!r}"
        check_text(dispatch.label, place, empty=False)
        check_text(dispatch.op, f"{place} op")
        check_text(dispatch.module_path, f"{place} module_path")
        self._origin(dispatch, place)
        check_index(dispatch.kernel, program.kernels, f"{place} kernel", "kernels")
        kernel = program.kernels[dispatch.kernel]
        for extension in program.shaders[kernel.shader].extensions:
            if EXTENSION_FEATURES[extension] not in features:
                fail(
                    place,
                    f"its shader uses {extension!r}, but neither the route nor the program "
                    f"requires the feature {EXTENSION_FEATURES[extension]!r}",
                )
        for name, value in self._needs[dispatch.kernel]:
            if value > limits[name]:
                self._exceeds(place, name, value, limits)
        if dispatch.grid not in self._grids:
            if len(dispatch.grid) != 3:
                fail(place, f"grid {dispatch.grid} has not three members")
            for index in dispatch.grid:
                check_index(index, program.exprs, f"{place} grid", "exprs")
                self._known.check_within(index, 0, (1 << 32) - 1, f"{place} grid", self._corners)
            self._grids.add(dispatch.grid)
        if len(dispatch.bindings) != len(kernel.accesses):
            fail(
                place,
                f"{len(dispatch.bindings)} bindings, but kernel {dispatch.kernel} "
                f"{kernel.entry_point!r} has {len(kernel.accesses)}",
            )
        self._bindings(dispatch, kernel, limits, written, place)

    def _origin(self, dispatch: dl.Dispatch, place: str) -> None:
        """What only profiles read."""
        check_int(dispatch.debug_handle, fl.MIN_VALUE, fl.MAX_VALUE, f"{place} debug_handle")
        check_count(dispatch.debug_handles, fl.MAX_DEBUG_HANDLES, f"{place} debug_handles")
        for handle in dispatch.debug_handles:
            check_int(handle, fl.MIN_VALUE, fl.MAX_VALUE, f"{place} debug_handles")
        for index, name in ((dispatch.bytes, "bytes"), (dispatch.flops, "flops")):
            if index != NONE:
                check_index(index, self._program.exprs, f"{place} {name}", "exprs")

    def _bindings(
        self,
        dispatch: dl.Dispatch,
        kernel: dl.Kernel,
        limits: Mapping[str, int],
        written: set[int],
        place: str,
    ) -> None:
        buffers = self._program.buffers
        largest = limits["max-storage-buffer-binding-size"]
        largest_buffer = limits["max-buffer-size"]
        reads: list[int] = []
        writes: set[int] = set()
        for i, (binding, access) in enumerate(zip(dispatch.bindings, kernel.accesses, strict=True)):
            index, offset, size = binding.buffer, binding.offset, binding.size
            if type(index) is not int or not 0 <= index < len(buffers):
                check_index(index, buffers, f"{place}: binding {i}", "buffers")
            if type(offset) is not int or type(size) is not int or offset < 0 or size < 4:
                fail(place, f"binding {i} has offset {offset!r} and size {size!r}")
            if offset % fl.BINDING_ALIGNMENT or size % 4:
                fail(
                    place,
                    f"binding {i} has offset {offset}, to be a multiple of "
                    f"{fl.BINDING_ALIGNMENT}, and size {size}, to be one of 4",
                )
            if offset + size > buffers[index].size:
                fail(
                    place,
                    f"binding {i} reaches byte {offset + size} of buffer {index} "
                    f"{buffers[index].name!r}, which has {buffers[index].size}",
                )
            if buffers[index].size > largest_buffer:
                self._exceeds(
                    f"{place}: binding {i}", "max-buffer-size", buffers[index].size, limits
                )
            if size > largest:
                self._exceeds(
                    f"{place}: binding {i}", "max-storage-buffer-binding-size", size, limits
                )
            if access is Access.READ:
                reads.append(index)
                continue
            if index in writes:
                self._twice(i, index, place)
            writes.add(index)
            if self._kinds[index] in (BufferKind.CONSTANT, BufferKind.INPUT):
                fail(
                    place,
                    f"binding {i} writes buffer {index} {buffers[index].name!r} "
                    f"of kind {self._kinds[index].name}",
                )
        for index in reads:
            if index in writes:
                self._twice(None, index, place)
            if index not in self._defined and index not in written:
                fail(
                    place,
                    f"reads buffer {index} {buffers[index].name!r} of kind "
                    f"{self._kinds[index].name}, which nothing has written",
                )
        written |= writes

    def _twice(self, binding: int | None, index: int, place: str) -> None:
        which = "" if binding is None else f"binding {binding}: "
        name = self._program.buffers[index].name
        fail(place, f"{which}buffer {index} {name!r} is bound READ_WRITE and once more")

    def _exceeds(self, place: str, name: str, value: int, limits: Mapping[str, int]) -> None:
        fail(
            place,
            f"needs {name} of {value}, but the program (and route) requires only {limits[name]}: "
            "add it to limits",
        )
