"""What a method takes and gives, for people and for code that prepares inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from executorch_wgpu.serialization.dispatch_list import (
    BufferKind,
    Output,
    ValueKind,
)
from executorch_wgpu.serialization.dispatch_list import Input as InputSpec
from executorch_wgpu.serialization.dispatch_list import Program as DispatchList
from executorch_wgpu.serialization.expressions import format_exprs
from executorch_wgpu.serialization.pte import PteTensor
from executorch_wgpu.serialization.ranges import bounds

from .boundary import dtype_name


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension: its size lies within ``lo`` to ``hi``, both inclusive. ``text``: the number,
    or the expression over live scalars that it equals, such as ``S + 1``."""

    lo: int
    hi: int
    text: str

    @property
    def is_static(self) -> bool:
        """Whether the size never changes."""
        return self.lo == self.hi

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor at the boundary. ``dtype`` as numpy names it, or ``bfloat16``."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The largest size of every dimension."""
        return tuple(dim.hi for dim in self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class IntInfo:
    """An int at the boundary, within ``lo`` to ``hi``; None where nothing bounds it."""

    name: str
    lo: int | None
    hi: int | None

    def __str__(self) -> str:
        if self.lo is None or self.hi is None:
            return f"{self.name}: int"
        return f"{self.name}: int in {self.lo}..{self.hi}"


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """An output that is fixed in the file: an int, float, bool, string, a list, or None."""

    name: str
    value: object

    def __str__(self) -> str:
        return f"{self.name} = {self.value!r}"


ValueInfo: TypeAlias = TensorInfo | IntInfo | ConstantInfo


@dataclass(frozen=True, slots=True)
class MethodMetadata:
    """``inputs`` and ``outputs`` in order; ``states``: names of the buffers that persist between
    calls; ``state_bytes`` and ``constant_bytes``: what they take on the device."""

    name: str
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    states: tuple[str, ...] = ()
    state_bytes: int = 0
    constant_bytes: int = 0

    def __str__(self) -> str:
        taken, given = (", ".join(map(str, infos)) for infos in (self.inputs, self.outputs))
        return f"{self.name}({taken}) -> ({given})"


def describe_values(
    program: DispatchList, specs: Sequence[InputSpec] | Sequence[Output]
) -> list[ValueInfo]:
    """Infos of a dispatch list's inputs or outputs."""
    ranges = bounds(program.exprs, program.symints)
    shapes = [program.tensors[x.index].shape for x in specs if x.kind is ValueKind.TENSOR]
    texts = format_exprs(program.exprs, {i for shape in shapes for i in shape}, program.symints)
    found: list[ValueInfo] = []
    for spec in specs:
        if spec.kind is ValueKind.TENSOR:
            tensor = program.tensors[spec.index]
            shape = tuple(Dim(*ranges[index], texts[index]) for index in tensor.shape)
            found.append(TensorInfo(spec.name, dtype_name(tensor.dtype), shape))
        elif isinstance(spec, Output):
            found.append(IntInfo(spec.name, *ranges[spec.index]))
        elif spec.index < 0:
            found.append(IntInfo(spec.name, None, None))
        else:
            symint = program.symints[spec.index]
            found.append(IntInfo(spec.name, symint.lo, symint.hi))
    return found


def describe_file_value(value: object, name: str) -> ValueInfo:
    """Info of a value of the file's own table, which no delegate describes."""
    if isinstance(value, PteTensor):
        low = [0 if value.dynamic else size for size in value.shape]
        dims = tuple(
            Dim(lo, hi, str(hi) if lo == hi else f"<={hi}")
            for lo, hi in zip(low, value.shape, strict=True)
        )
        return TensorInfo(value.name or name, value.dtype, dims)
    return ConstantInfo(name, value)


def buffer_bytes(program: DispatchList, kind: BufferKind) -> int:
    """Bytes of all buffers of a kind."""
    return sum(buffer.size for buffer in program.buffers if buffer.kind is kind)
