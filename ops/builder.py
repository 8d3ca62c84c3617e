"""The builder: lowerings emit dispatches into it, and it becomes a dispatch list."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from executorch_wgpu.ops import templates
from executorch_wgpu.ops.call import Origin
from executorch_wgpu.ops.symbolic import (
    ExprTable,
    Scalar,
    Sym,
    ceil_div,
    lower_bound,
    minimum,
    upper_bound,
)
from executorch_wgpu.ops.tensor import (
    Storage,
    Tensor,
    contiguous_strides,
    dtype_bytes,
    touched_bytes,
)
from executorch_wgpu.serialization.dispatch_list import (
    LIVE_SLOTS,
    Access,
    BufferKind,
    DType,
    Param,
    ParamKind,
)
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS

MAX_GROUPS = DEFAULT_LIMITS["max-compute-workgroups-per-dimension"]

_ELEMENT = {
    DType.F32: "f32",
    DType.F16: "u32",
    DType.BF16: "u32",
    DType.I32: "i32",
    DType.I64: "i32",
    DType.BOOL: "u32",
    DType.I8: "u32",
    DType.U8: "u32",
}


@dataclass(frozen=True)
class Bind:
    """How a tensor's storage is bound: the WGSL element type (the dtype's own by default) and,
    for a piece of it, the byte range (offset a multiple of 256)."""

    tensor: Tensor
    element: str = ""
    byte_offset: int = 0
    byte_size: int | None = None


Bindable: TypeAlias = Tensor | Bind
Number: TypeAlias = int | float | bool | Sym


@dataclass(frozen=True)
class DispatchSpec:
    """A dispatch before buffers have indices."""

    wgsl: str
    extensions: tuple[str, ...]
    entry_point: str
    params: tuple[Param, ...]
    accesses: tuple[Access, ...]
    workgroup: tuple[int, int, int]
    workgroup_bytes: int
    bindings: tuple[tuple[Storage, int, int], ...]  # storage, byte offset, byte size
    grid: tuple[Scalar, Scalar, Scalar]
    label: str
    origin: Origin
    bytes: Scalar | None = None
    flops: Scalar | None = None


@dataclass(frozen=True)
class RouteSpec:
    """A route before expressions have indices. ``guard`` None or 1: always."""

    name: str
    dispatches: Sequence[DispatchSpec]
    guard: Scalar | None = None
    features: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()


@dataclass
class Builder:
    """Collects steps, checks and live values while a chain is lowered. The origin (module path,
    source operator) of what is emitted is set by :meth:`at`."""

    table: ExprTable = field(default_factory=ExprTable)
    steps: list[list[RouteSpec]] = field(default_factory=list)
    checks: dict[Sym, tuple[str, tuple[Scalar, ...]]] = field(default_factory=dict)
    live: dict[Sym, int] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    #: How products of many rows may use matrix units: "" (not), "precise" or "fast".
    matrix_units: str = ""
    #: id -> (the torch tensor, kept alive so that ids stay unique; its Tensor)
    #: label -> the calls that used it: a label names the dispatches of one call.
    _labels: dict[str, list[int]] = field(default_factory=dict)
    _call: int = 0
    _constants: dict[int, tuple[Any, Tensor]] = field(default_factory=dict)
    _parts: dict[tuple[Storage, int, int], Storage] = field(default_factory=dict)

    @contextlib.contextmanager
    def at(self, origin: Origin) -> Iterator[None]:
        """Everything emitted inside comes from ``origin``."""
        outer, self.origin = self.origin, origin
        self._call += 1
        try:
            yield
        finally:
            self.origin = outer

    # -- tensors ---------------------------------------------------------------------------

    def empty(
        self,
        shape: Sequence[Scalar],
        dtype: DType = DType.F32,
        name: str = "scratch",
        kind: BufferKind = BufferKind.SCRATCH,
    ) -> Tensor:
        """A new contiguous tensor with undefined content."""
        label = f"{self.origin.module_path}/{name}" if self.origin.module_path else name
        storage = Storage(kind, dtype_bytes(shape, dtype), label)
        return Tensor(dtype, tuple(shape), contiguous_strides(shape), 0, storage)

    def constant(self, data: Any, dtype: DType, name: str) -> Tensor:
        """A tensor with the content of ``data``, a contiguous torch tensor on the CPU. The same
        object gives the same storage."""
        key = id(data)
        if key not in self._constants:
            shape = tuple(data.shape)
            size = dtype_bytes(shape, dtype)
            storage = Storage(BufferKind.CONSTANT, size, name, data, (dtype, shape))
            tensor = Tensor(dtype, shape, contiguous_strides(shape), 0, storage)
            self._constants[key] = data, tensor
        return self._constants[key][1]

    def part_of_constant(self, whole: Storage, byte_offset: int, byte_size: int) -> Storage:
        """Bytes of a constant as a storage of their own, for devices on which the whole does not
        fit one binding or buffer (multiples of 4). The same part is the same storage."""
        key = (whole, byte_offset, byte_size)
        if key not in self._parts:
            name = f"{whole.name}[{byte_offset}:{byte_offset + byte_size}]"
            offset = whole.data_offset + byte_offset
            self._parts[key] = Storage(whole.kind, byte_size, name, whole.data, data_offset=offset)
        return self._parts[key]

    # -- live values -----------------------------------------------------------------------

    def check(self, condition: Scalar, message: str, *args: Scalar, specific: bool = False) -> None:
        """Refuse an execute on the host where ``condition`` is 0; ``{0}`` ... in the message
        stand for ``args``. A condition is stated once: the first message stays, unless a later
        one is ``specific`` (says what it means to the user rather than to the operator). Raises
        ValueError when it can never hold."""
        if isinstance(condition, Sym):
            if specific or condition not in self.checks:
                self.checks[condition] = (message, args)
        elif not condition:
            raise ValueError(f"never true: {message}")

    def live_slot(self, value: Sym) -> int:
        """The slot of the live block that holds ``value``."""
        if value not in self.live:
            if len(self.live) == LIVE_SLOTS:
                raise ValueError(f"more than {LIVE_SLOTS} live values in one program")
            self.live[value] = len(self.live)
        return self.live[value]

    # -- dispatches ------------------------------------------------------------------------

    def dispatch(
        self,
        template: str,
        name: str,
        *,
        reads: Mapping[str, Bindable],
        writes: Mapping[str, Bindable],
        grid: Sequence[Scalar],
        workgroup: Sequence[int],
        params: Mapping[str, Number] | None = None,
        consts: Mapping[str, Any] | None = None,
        extensions: Sequence[str] = (),
        workgroup_bytes: int = 0,
        bytes: Scalar | None = None,
        flops: Scalar | None = None,
    ) -> DispatchSpec:
        """One launch of ``template`` (a path below ops/), not yet part of a step.

        ``reads``/``writes``: WGSL variable -> tensor, bound in this order. ``params``: override
        constants; an int is u32 (i32 when it may be negative), a Sym becomes a live value; use
        them in the template as ``{{ NAME }}``. ``consts``: template values. ``grid``:
        workgroups in x, y, z (padded with 1). ``workgroup``: threads in x, y, z; the template
        gets them as ``WG_X``, ``WG_Y``, ``WG_Z``. ``workgroup_bytes``: bytes of var<workgroup>.
        ``bytes``, ``flops``: what it reads and writes at the least, and computes (a multiply-add
        is two), for profiles; without ``bytes`` every element of the bound tensors counts once.
        Raises ValueError where a written storage is bound twice: WebGPU forbids it.
        """
        decls: list[templates.BindingDecl] = []
        bound: list[tuple[Storage, int, int]] = []
        for access, group in ((Access.READ, reads), (Access.READ_WRITE, writes)):
            for variable, item in group.items():
                bind = item if isinstance(item, Bind) else Bind(item)
                storage = bind.tensor.storage
                element = bind.element or _ELEMENT[bind.tensor.dtype]
                decls.append(templates.BindingDecl(variable, element, access))
                rest = storage.size_bytes - bind.byte_offset
                bound.append(
                    (storage, bind.byte_offset, rest if bind.byte_size is None else bind.byte_size)
                )
        for position, (storage, _, _) in enumerate(bound):
            if decls[position].access is Access.READ_WRITE and any(
                other is storage for i, (other, _, _) in enumerate(bound) if i != position
            ):
                raise ValueError(f"{template}: {storage} is written and bound twice")
        param_decls: list[templates.ParamDecl] = []
        param_values: list[Param] = []
        for key, value in (params or {}).items():
            if isinstance(value, Sym):
                signed = lower_bound(value) < 0
                param_decls.append(templates.ParamDecl(key, ParamKind.LIVE, signed))
                param_values.append(Param(key, ParamKind.LIVE, self.live_slot(value)))
                continue
            if isinstance(value, bool):
                kind = ParamKind.BOOL
            elif isinstance(value, int):
                kind = ParamKind.I32 if value < 0 else ParamKind.U32
            else:
                kind = ParamKind.F32
            param_decls.append(templates.ParamDecl(key, kind))
            param_values.append(Param(key, kind, float(value)))
        size = tuple([*workgroup, 1, 1][:3])
        constants = {**(consts or {}), "WG_X": size[0], "WG_Y": size[1], "WG_Z": size[2]}
        wgsl = templates.render(template, decls, param_decls, constants)
        x, y, z = [*grid, 1, 1][:3]
        path = self.origin.module_path
        return DispatchSpec(
            wgsl=wgsl,
            extensions=tuple(sorted(extensions)),
            entry_point="main",
            params=tuple(param_values),
            accesses=tuple(decl.access for decl in decls),
            workgroup=(size[0], size[1], size[2]),
            workgroup_bytes=workgroup_bytes,
            bindings=tuple(bound),
            grid=(x, y, z),
            label=self._label(f"{path}/{name}" if path else name),
            origin=self.origin,
            bytes=_cost(_bound_bytes([*reads.values(), *writes.values()], bytes)),
            flops=_cost(flops),
        )

    def _label(self, label: str) -> str:
        """``label``, numbered from the second call on that uses it: ``layers.0/add_1``."""
        calls = self._labels.setdefault(label, [])
        if self._call not in calls:
            calls.append(self._call)
        index = calls.index(self._call)
        return f"{label}_{index}" if index else label

    def step(self, *routes: RouteSpec) -> None:
        """Append a step: routes in order of preference, the last without guard, feature or
        limit. Routes whose guard is known to be 0 are dropped, and those behind one that always
        applies."""
        kept: list[RouteSpec] = []
        for route in routes:
            if route.guard is not None and not isinstance(route.guard, Sym) and not route.guard:
                continue
            kept.append(route)
            if not isinstance(route.guard, Sym) and not route.features and not route.limits:
                break
        self.steps.append(kept)

    def run(self, *dispatches: DispatchSpec) -> None:
        """Append a step of one route that always applies."""
        self.step(RouteSpec("only", dispatches))


def _bound_bytes(bound: Sequence[Bindable], given: Scalar | None) -> Scalar:
    if given is not None:
        return given
    return touched_bytes(item.tensor if isinstance(item, Bind) else item for item in bound)


def _cost(value: Scalar | None) -> Scalar | None:
    """Nothing where it might not fit 64 bits: a profile is not worth refusing a program for."""
    return None if value is None or upper_bound(value) >= 1 << 62 else value


def linear_grid(groups: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """A grid of at least ``groups`` workgroups in x and y; the kernel takes
    ``workgroup_id.x + workgroup_id.y * num_workgroups.x`` as its index and returns past the end.
    One dimension holds 65,535 at the most."""
    if upper_bound(groups) <= MAX_GROUPS:
        return groups, 1, 1
    width = 1 << 15
    return minimum(groups, width), ceil_div(groups, width), 1


def shader_digest(wgsl: str, extensions: Sequence[str]) -> str:
    """The sha256 that ``dispatch_list.Shader`` describes, as lower-case hex."""
    return hashlib.sha256("\n".join([*sorted(extensions), wgsl]).encode()).hexdigest()
