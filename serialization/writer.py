"""From a :class:`~executorch_wgpu.serialization.dispatch_list.Program` to bytes.

Deterministic: equal programs give equal bytes, so that a file can be cached and compared by hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import flatbuffers
import numpy as np

from . import container
from . import dispatch_list as dl
from .errors import InvalidProgramError
from .generated import schema_generated as fb
from .reader import BINDING_DTYPE, EXPR_DTYPE
from .verify import verify

T = TypeVar("T")

#: A table's fields by the generated classes' names: offsets, scalars, None for absent.
Fields = Mapping[str, int | float | None]

FILE_IDENTIFIER = b"EWG1"


def serialize(program: dl.Program) -> bytes:
    """Verify ``program`` and write it: header, then flatbuffer (see ``schema.fbs``).

    Returns the payload of the delegate; :func:`~executorch_wgpu.serialization.deserialize` gives
    an equal program back. Raises InvalidProgramError when the program breaks an invariant or is
    of another format version than this package writes.
    """
    if program.format_version != dl.FORMAT_VERSION:
        raise InvalidProgramError(
            f"format version {program.format_version}: this package writes only "
            f"version {dl.FORMAT_VERSION}"
        )
    verify(program)
    return container.pack(program.format_version, _Writer().write(program))


class _Writer:
    """One flatbuffer under construction. A flatbuffer is built from the leaves: each method
    writes what the table points at, then the table, and returns its offset."""

    def __init__(self) -> None:
        self._builder = flatbuffers.Builder(1 << 16)
        #: Labels' parts and module paths repeat in every dispatch: each is stored once.
        self._texts: dict[str, int] = {}

    def write(self, program: dl.Program) -> bytes:
        parts = {
            "Producer": self._text(program.producer),
            "Symints": self._tables(program.symints, self._symint),
            "Exprs": self._exprs(program.exprs),
            "Live": self._ints(program.live),
            "Buffers": self._tables(program.buffers, self._buffer),
            "Tensors": self._tables(program.tensors, self._tensor),
            "Shaders": self._tables(program.shaders, self._shader),
            "Kernels": self._tables(program.kernels, self._kernel),
            "Steps": self._tables(program.steps, self._step),
            "Checks": self._tables(program.checks, self._check),
            "Inputs": self._tables(program.inputs, lambda x: self._value("Input", x)),
            "Outputs": self._tables(program.outputs, lambda x: self._value("Output", x)),
            "Features": self._text_vector(program.features),
            "Limits": self._tables(program.limits, self._limit),
            "Feedback": self._tables(program.feedback, self._feedback),
        }
        self._builder.Finish(self._table("Program", parts), FILE_IDENTIFIER)
        return bytes(self._builder.Output())

    # -- pieces ------------------------------------------------------------------------------

    def _table(
        self,
        name: str,
        fields: Fields,
        struct_field: str = "",
        create: Callable[[Any], int] | None = None,
    ) -> int:
        """Write a table from offsets and scalars; None leaves a field out. A struct lies inside
        its table, so ``create`` makes the one for ``struct_field`` between start and end."""
        getattr(fb, f"{name}Start")(self._builder)
        for field, value in fields.items():
            if value is not None:
                getattr(fb, f"{name}Add{field}")(self._builder, value)
        if create is not None:
            getattr(fb, f"{name}Add{struct_field}")(self._builder, create(self._builder))
        return int(getattr(fb, f"{name}End")(self._builder))

    def _text(self, text: str) -> int | None:
        """Write a string once and return its offset; "" is left out."""
        if not text:
            return None
        offset = self._texts.get(text)
        if offset is None:
            offset = self._texts[text] = self._builder.CreateString(text)
        return offset

    def _offsets(self, offsets: Sequence[int]) -> int | None:
        """Write a vector of offsets; an empty one is left out."""
        if not offsets:
            return None
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def _tables(self, items: Sequence[T], write: Callable[[T], int]) -> int | None:
        return self._offsets([write(item) for item in items])

    def _text_vector(self, texts: Sequence[str]) -> int | None:
        # An empty text cannot be left out of a vector, so it is written here whatever it is.
        return self._offsets([self._text(t) or self._builder.CreateString(t) for t in texts])

    def _ints(self, values: Sequence[int]) -> int | None:
        if not values:
            return None
        return int(self._builder.CreateNumpyVector(np.array(values, dtype="<i4")))

    def _longs(self, values: Sequence[int]) -> int | None:
        if not values:
            return None
        return int(self._builder.CreateNumpyVector(np.array(values, dtype="<i8")))

    def _structs(self, rows: Sequence[tuple[int, ...]], dtype: np.dtype[Any]) -> int | None:
        """Write a vector of structs, whose padding is zero."""
        if not rows:
            return None
        array = np.zeros(len(rows), dtype)
        for name, column in zip(dtype.names or (), zip(*rows, strict=True), strict=True):
            array[name] = column
        data = array.tobytes()
        builder = self._builder
        builder.StartVector(dtype.itemsize, len(rows), 8)
        builder.head = builder.Head() - len(data)
        builder.Bytes[builder.Head() : builder.Head() + len(data)] = data
        return int(builder.EndVector())

    # -- tables ------------------------------------------------------------------------------

    def _symint(self, x: dl.SymInt) -> int:
        return self._table(
            "SymInt",
            {
                "Name": self._text(x.name),
                "Source": x.source,
                "Input": x.input,
                "Index": x.index,
                "Lo": x.lo,
                "Hi": x.hi,
            },
        )

    def _exprs(self, exprs: Sequence[dl.Expr]) -> int | None:
        return self._structs([(x.a, x.b, x.op) for x in exprs], EXPR_DTYPE)

    def _buffer(self, x: dl.Buffer) -> int:
        return self._table(
            "Buffer",
            {
                "Kind": x.kind,
                "Size": x.size,
                "Name": self._text(x.name),
                "DataKey": self._text(x.data_key),
                "Share": self._text(x.share),
                "DataOffset": x.data_offset,
            },
        )

    def _tensor(self, x: dl.Tensor) -> int:
        return self._table(
            "Tensor",
            {
                "Dtype": x.dtype,
                "Shape": self._ints(x.shape),
                "Strides": self._ints(x.strides),
                "Offset": x.offset,
                "Buffer": x.buffer,
            },
        )

    def _shader(self, x: dl.Shader) -> int:
        return self._table(
            "Shader",
            {
                "Wgsl": self._text(x.wgsl),
                "Extensions": self._text_vector(x.extensions),
                "Sha256": self._text(x.sha256),
            },
        )

    def _param(self, x: dl.Param) -> int:
        return self._table(
            "Param", {"Name": self._text(x.name), "Kind": x.kind, "Value": float(x.value)}
        )

    def _kernel(self, x: dl.Kernel) -> int:
        return self._table(
            "Kernel",
            {
                "Shader": x.shader,
                "EntryPoint": self._text(x.entry_point),
                "Params": self._tables(x.params, self._param),
                "Accesses": (
                    self._builder.CreateByteVector(bytes(x.accesses)) if x.accesses else None
                ),
                "WorkgroupBytes": x.workgroup_bytes,
            },
            "WorkgroupSize",
            lambda builder: fb.CreateWorkgroupSize(builder, *x.workgroup_size),
        )

    def _dispatch(self, x: dl.Dispatch) -> int:
        bindings = [(b.offset, b.size, b.buffer) for b in x.bindings]
        return self._table(
            "Dispatch",
            {
                "Kernel": x.kernel,
                "Bindings": self._structs(bindings, BINDING_DTYPE),
                "Label": self._text(x.label),
                "Op": self._text(x.op),
                "ModulePath": self._text(x.module_path),
                "DebugHandle": x.debug_handle,
                "Bytes": x.bytes,
                "Flops": x.flops,
                "DebugHandles": self._longs(x.debug_handles),
            },
            "Grid",
            lambda builder: fb.CreateGrid(builder, *x.grid),
        )

    def _limit(self, x: tuple[str, int]) -> int:
        return self._table("Limit", {"Name": self._text(x[0]), "Value": x[1]})

    def _route(self, x: dl.Route) -> int:
        return self._table(
            "Route",
            {
                "Name": self._text(x.name),
                "Dispatches": self._tables(x.dispatches, self._dispatch),
                "Guard": x.guard,
                "Features": self._text_vector(x.features),
                "Limits": self._tables(x.limits, self._limit),
            },
        )

    def _step(self, x: dl.Step) -> int:
        return self._table("Step", {"Routes": self._tables(x.routes, self._route)})

    def _check(self, x: dl.Check) -> int:
        return self._table(
            "Check",
            {"Expr": x.expr, "Message": self._text(x.message), "Args": self._ints(x.args)},
        )

    def _value(self, table: str, x: dl.Input | dl.Output) -> int:
        return self._table(table, {"Name": self._text(x.name), "Kind": x.kind, "Index": x.index})

    def _feedback(self, x: dl.Feedback) -> int:
        return self._table("Feedback", {"Output": x.output, "Input": x.input})
