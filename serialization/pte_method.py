"""One method of a ``.pte`` file: its values, its delegates, and what runs in which order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from . import format_limits as fl
from .dispatch_list import BACKEND_ID
from .errors import InvalidProgramError
from .flat import Budget, guarded
from .generated import pte_schema_generated as fb

#: ExecuTorch's scalar types that numpy (or, for bfloat16, ml_dtypes and torch) know: name, bytes.
_SCALAR_TYPES: dict[int, tuple[str, int]] = {
    fb.ScalarType.BYTE: ("uint8", 1),
    fb.ScalarType.CHAR: ("int8", 1),
    fb.ScalarType.SHORT: ("int16", 2),
    fb.ScalarType.INT: ("int32", 4),
    fb.ScalarType.LONG: ("int64", 8),
    fb.ScalarType.HALF: ("float16", 2),
    fb.ScalarType.FLOAT: ("float32", 4),
    fb.ScalarType.DOUBLE: ("float64", 8),
    fb.ScalarType.BOOL: ("bool", 1),
    fb.ScalarType.BFLOAT16: ("bfloat16", 2),
    fb.ScalarType.UINT16: ("uint16", 2),
    fb.ScalarType.UINT32: ("uint32", 4),
    fb.ScalarType.UINT64: ("uint64", 8),
}

#: Elements of one list value.
_MAX_LIST = 1 << 16


@dataclass(frozen=True, slots=True)
class PteTensor:
    """A tensor as the file declares it.

    ``dtype``: numpy's name, ``bfloat16``, or ``scalar_type_N`` for one that we do not know.
    ``shape``: sizes, the upper bounds where ``dynamic``. ``dim_order``: dimensions from outermost
    to innermost. ``constant``: its data lies in the file (see PteMethod.tensor_data).
    """

    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    dynamic: bool
    constant: bool
    name: str = ""


#: What an entry of a method's value table can be. None: nothing, or a dynamic int input.
PteValue: TypeAlias = "PteTensor | int | float | bool | str | tuple[PteValue, ...] | None"


@dataclass(frozen=True, slots=True)
class PteDelegate:
    """What one backend gets at load: ``data`` is its payload, a view into the file; ``inline``
    says that it lies in the flatbuffer rather than in a segment; ``compile_specs`` as (key, bytes).
    """

    id: str
    data: memoryview
    inline: bool
    compile_specs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class PteInstruction:
    """One step of a method. ``kind``: ``kernel`` (index into operators), ``delegate`` (index into
    delegates), ``move``, ``jump_false`` or ``free`` (index 0). ``args``: value indices, for
    ``jump_false`` the condition and the destination."""

    kind: str
    index: int
    args: tuple[int, ...]


class SourceKind(Enum):
    """Where a value that crosses the delegate's boundary comes from."""

    ARGUMENT = "argument"  #: an input of the method; index: its position
    DELEGATE = "delegate"  #: an output of the delegate; index: its position among those
    CONSTANT = "constant"  #: in the file; index: into the method's values


@dataclass(frozen=True, slots=True)
class Source:
    """See :class:`SourceKind`."""

    kind: SourceKind
    index: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a method that is one delegate call passes values through: for each input of the
    delegate (never DELEGATE) and each output of the method, where it comes from."""

    delegate_inputs: tuple[Source, ...]
    method_outputs: tuple[Source, ...]


class Segments:
    """The pieces of data behind the flatbuffer. ``ranges``: (offset in the file, size), bytes."""

    def __init__(
        self,
        view: memoryview | None,
        base: int,
        ranges: tuple[tuple[int, int], ...],
        name: str,
    ) -> None:
        self._view = view
        self.ranges = ranges
        self.name = name
        size = len(view) if view is not None else 0
        for i, (offset, length) in enumerate(ranges if view is not None else ()):
            if base == 0 and length:
                raise InvalidProgramError(f"{name}: has segments but no header that places them")
            if offset + length > size:
                raise InvalidProgramError(
                    f"{name}: truncated: segment {i} ends at byte {offset + length}, "
                    f"the file has {size}"
                )

    def view(self, index: int, what: str) -> memoryview:
        """The bytes of a segment. ``what`` refers to it, for the message."""
        if self._view is None:
            raise ValueError(f"{self.name} is closed")
        if not 0 <= index < len(self.ranges):
            raise InvalidProgramError(
                f"{self.name}: {what} lies in segment {index}, the file has {len(self.ranges)}"
            )
        offset, size = self.ranges[index]
        return self._view[offset : offset + size]


class PteMethod:
    """A parsed execution plan. Made by :meth:`PteFile.method`.

    ``inputs``/``outputs``: indices into the value table (:meth:`value`). ``operators``: names of
    CPU operators such as ``aten::add.out``. ``instructions``: what runs, in order.
    """

    def __init__(
        self,
        name: str,
        plan: Any,
        program: Any,
        segments: Segments,
        place: str,
        budget: Budget,
    ) -> None:
        self.name = name
        self._plan = plan
        self._program = program
        self._segments = segments
        self._place = place
        self._value_count = plan.ValuesLength()
        #: The file's: values are read when they are asked for.
        self._budget = budget
        self._values: dict[int, PteValue] = {}
        self.inputs = self._value_indices(
            budget.numbers(plan.InputsLength(), plan.InputsAsNumpy, fl.MAX_VALUES, "inputs"),
            "inputs",
        )
        self.outputs = self._value_indices(
            budget.numbers(plan.OutputsLength(), plan.OutputsAsNumpy, fl.MAX_VALUES, "outputs"),
            "outputs",
        )
        self.operators: tuple[str, ...] = budget.tables(
            plan.OperatorsLength(),
            plan.Operators,
            lambda t, at: _operator_name(budget, t, at),
            fl.MAX_ELEMENTS,
            "operators",
        )
        self.delegates: tuple[PteDelegate, ...] = budget.tables(
            plan.DelegatesLength(),
            plan.Delegates,
            lambda t, at: self._delegate(budget, t, at),
            fl.MAX_VALUES,
            "delegates",
        )
        self.instructions: tuple[PteInstruction, ...] = self._instructions(budget)

    # -- values ------------------------------------------------------------------------------

    def value(self, index: int) -> PteValue:
        """Entry ``index`` of the value table; lists come as tuples with their entries resolved.

        Raises InvalidProgramError when it is malformed.
        """
        if index not in self._values:
            with guarded(f"{self._place}: value {index}"):
                self._values[index] = self._value(index, self._budget, nested=False)
        return self._values[index]

    @property
    def input_values(self) -> tuple[PteValue, ...]:
        """What the file declares of each input. None is an int whose value is not fixed."""
        return tuple(self.value(i) for i in self.inputs)

    @property
    def output_values(self) -> tuple[PteValue, ...]:
        """What the file declares of each output. Ints, floats, ... are constants."""
        return tuple(self.value(i) for i in self.outputs)

    def tensor_data(self, index: int) -> memoryview:
        """The bytes of a constant tensor, in its dim order, without a copy.

        Raises InvalidProgramError when value ``index`` is no constant tensor of this file.
        """
        place = f"{self._place}: value {index}"
        tensor = self.value(index)
        if not isinstance(tensor, PteTensor) or not tensor.constant:
            raise InvalidProgramError(f"{place} is no constant tensor")
        item_bytes = dict(_SCALAR_TYPES.values()).get(tensor.dtype)
        if item_bytes is None:
            raise InvalidProgramError(f"{place}: elements of {tensor.dtype} have an unknown size")
        size = math.prod(tensor.shape) * item_bytes
        with guarded(place):
            slot = self._table(index, fb.Tensor).DataBufferIdx()
            inline = self._program.ConstantBufferLength()
            if inline:
                if slot >= inline:
                    raise InvalidProgramError(f"{place} is constant {slot} of {inline}")
                data = memoryview(self._program.ConstantBuffer(slot).StorageAsNumpy())
                offset = 0
            else:
                where = self._program.ConstantSegment()
                count = where.OffsetsLength() if where is not None else 0
                if slot >= count:
                    raise InvalidProgramError(f"{place} is constant {slot} of {count}")
                data = self._segments.view(where.SegmentIndex(), f"constant {slot}")
                offset = where.Offsets(slot)
            if offset + size > len(data):
                raise InvalidProgramError(
                    f"{place} takes bytes {offset}..{offset + size} of {len(data)}"
                )
            return data[offset : offset + size]

    # -- delegation --------------------------------------------------------------------------

    @property
    def cpu_operators(self) -> tuple[str, ...]:
        """Names of the operators that instructions run on the CPU, each once, by first use."""
        used = dict.fromkeys(x.index for x in self.instructions if x.kind == "kernel")
        return tuple(self.operators[i] for i in used)

    @property
    def delegate_calls(self) -> tuple[PteInstruction, ...]:
        """The instructions that call a delegate."""
        return tuple(x for x in self.instructions if x.kind == "delegate")

    @property
    def is_metadata(self) -> bool:
        """Whether it computes nothing and takes nothing: its ``output_values`` are the answer."""
        return not self.instructions and not self.inputs

    def sole_delegate(self, backend_id: str = BACKEND_ID) -> PteDelegate | None:
        """The delegate, if one call to one of ``backend_id`` is all that the method does."""
        if len(self.instructions) != 1 or self.instructions[0].kind != "delegate":
            return None
        delegate = self.delegates[self.instructions[0].index]
        return delegate if delegate.id == backend_id else None

    def describe_instructions(self) -> str:
        """What runs, for messages: ``1 x WgpuBackend, 2 x aten::add.out``."""
        names = []
        for x in self.instructions:
            if x.kind == "kernel":
                names.append(self.operators[x.index])
            elif x.kind == "delegate":
                names.append(self.delegates[x.index].id)
            else:
                names.append(x.kind)
        counts = Counter(names)
        return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "nothing"

    def wiring(self, inputs: int, outputs: int) -> Wiring:
        """How values pass between the method and its sole delegate, which takes ``inputs`` values
        and gives ``outputs`` (as its dispatch list says): a call's arguments are inputs, then
        outputs, in the delegate's order, not the method's.

        Raises InvalidProgramError when the method is not one delegate call, when the counts do
        not add up, or when a value comes from nowhere.
        """
        if len(self.instructions) != 1 or self.instructions[0].kind != "delegate":
            raise InvalidProgramError(
                f"{self._place} is not one delegate call: it runs {self.describe_instructions()}"
            )
        args = self.instructions[0].args
        if len(args) != inputs + outputs:
            raise InvalidProgramError(
                f"{self._place} passes {len(args)} values to its delegate, whose dispatch list "
                f"has {inputs} inputs and {outputs} outputs"
            )
        arguments: dict[int, int] = {}
        for position, index in enumerate(self.inputs):
            arguments.setdefault(index, position)
        results = {index: position for position, index in enumerate(args[inputs:])}
        return Wiring(
            tuple(self._source(i, arguments, {}) for i in args[:inputs]),
            tuple(self._source(i, arguments, results) for i in self.outputs),
        )

    def _source(self, index: int, arguments: dict[int, int], results: dict[int, int]) -> Source:
        if index in results:
            return Source(SourceKind.DELEGATE, results[index])
        if index in arguments:
            return Source(SourceKind.ARGUMENT, arguments[index])
        value = self.value(index)
        if isinstance(value, PteTensor) and not value.constant:
            raise InvalidProgramError(
                f"{self._place}: value {index} is neither an input nor a constant nor what the "
                "delegate gives"
            )
        return Source(SourceKind.CONSTANT, index)

    # -- parsing -----------------------------------------------------------------------------

    def _value_indices(self, indices: Sequence[int], what: str) -> tuple[int, ...]:
        for index in indices:
            if not 0 <= index < self._value_count:
                raise InvalidProgramError(
                    f"{self._place}: {what} names value {index} of {self._value_count}"
                )
        return tuple(indices)

    def _table(self, index: int, kind: Any) -> Any:
        """The table behind value ``index``, as an object of the generated class ``kind``."""
        union = self._plan.Values(index).Val()
        table = kind()
        table.Init(union.Bytes, union.Pos)
        return table

    def _value(self, index: int, budget: Budget, nested: bool) -> PteValue:
        self._value_indices([index], "a list" if nested else "the caller")
        kinds, kind = fb.KernelTypes, self._plan.Values(index).ValType()
        if kind in (kinds.NONE, kinds.Null):
            return None
        if kind == kinds.Int:
            return int(self._table(index, fb.Int).IntVal())
        if kind == kinds.Bool:
            return bool(self._table(index, fb.Bool).BoolVal())
        if kind == kinds.Double:
            return float(self._table(index, fb.Double).DoubleVal())
        if kind == kinds.String:
            return budget.text(self._table(index, fb.String).StringVal(), "string")
        if kind == kinds.Tensor:
            return self._tensor(self._table(index, fb.Tensor), budget)
        lists = {
            kinds.IntList: fb.IntList,
            kinds.DoubleList: fb.DoubleList,
            kinds.BoolList: fb.BoolList,
            kinds.TensorList: fb.TensorList,
            kinds.OptionalTensorList: fb.OptionalTensorList,
        }
        if kind not in lists:
            raise InvalidProgramError(f"{self._place}: value {index} is of unknown kind {kind}")
        if nested:
            raise InvalidProgramError(f"{self._place}: value {index} is a list in a list")
        table = self._table(index, lists[kind])
        items = budget.numbers(table.ItemsLength(), table.ItemsAsNumpy, _MAX_LIST, "items")
        if kind in (kinds.DoubleList, kinds.BoolList):
            return items
        # The others hold indices of values; -1 stands for None in an optional list.
        return tuple(None if i == -1 else self._value(i, budget, nested=True) for i in items)

    def _tensor(self, t: Any, budget: Budget) -> PteTensor:
        extra = t.ExtraTensorInfo()
        external = extra is not None and extra.Location() == fb.TensorDataLocation.EXTERNAL
        shape = budget.numbers(t.SizesLength(), t.SizesAsNumpy, fl.MAX_RANK, "sizes")
        if any(size < 0 for size in shape):
            raise InvalidProgramError(f"{self._place}: a tensor has the shape {shape}")
        order = budget.numbers(t.DimOrderLength(), t.DimOrderAsNumpy, fl.MAX_RANK, "dim_order")
        if order and sorted(order) != list(range(len(shape))):
            raise InvalidProgramError(
                f"{self._place}: a tensor of shape {shape} has the dim order {order}"
            )
        scalar_type = t.ScalarType()
        name, _ = _SCALAR_TYPES.get(scalar_type, (f"scalar_type_{scalar_type}", 0))
        return PteTensor(
            dtype=name,
            shape=shape,
            dim_order=order,
            dynamic=t.ShapeDynamism() != fb.TensorShapeDynamism.STATIC,
            constant=t.DataBufferIdx() > 0 and t.AllocationInfo() is None and not external,
            name=budget.name(extra.FullyQualifiedName(), "name") if extra is not None else "",
        )

    def _delegate(self, budget: Budget, t: Any, place: str) -> PteDelegate:
        reference = t.Processed()
        inline = reference.Location() == fb.DataLocation.INLINE
        index = reference.Index()
        if inline:
            count = self._program.BackendDelegateDataLength()
            if index >= count:
                raise InvalidProgramError(
                    f"{self._place}: {place} has inline data {index} of {count}"
                )
            table = self._program.BackendDelegateData(index)
            data = memoryview(table.DataAsNumpy()) if table.DataLength() else memoryview(b"")
        else:
            data = self._segments.view(index, f"{self._place}: {place}")
        specs = budget.tables(
            t.CompileSpecsLength(),
            t.CompileSpecs,
            lambda spec, at: (
                budget.name(spec.Key(), f"{at}.key"),
                budget.copy(spec.ValueLength(), spec.ValueAsNumpy, f"{at}.value"),
            ),
            fl.MAX_VALUES,
            f"{place}.compile_specs",
        )
        return PteDelegate(budget.name(t.Id(), f"{place}.id"), data, inline, specs)

    def _instructions(self, budget: Budget) -> tuple[PteInstruction, ...]:
        chains = self._plan.ChainsLength()
        found: list[PteInstruction] = []
        for c in range(budget.count(chains, fl.MAX_VALUES, "chains")):
            chain = self._plan.Chains(c)
            found += budget.tables(
                chain.InstructionsLength(),
                chain.Instructions,
                lambda t, at: self._instruction(budget, t, at),
                fl.MAX_ELEMENTS,
                f"chains[{c}].instructions",
            )
        return tuple(found)

    def _instruction(self, budget: Budget, t: Any, place: str) -> PteInstruction:
        kinds, kind, union = fb.InstructionArguments, t.InstrArgsType(), t.InstrArgs()
        classes = {
            kinds.KernelCall: fb.KernelCall,
            kinds.DelegateCall: fb.DelegateCall,
            kinds.MoveCall: fb.MoveCall,
            kinds.JumpFalseCall: fb.JumpFalseCall,
            kinds.FreeCall: fb.FreeCall,
        }
        if kind not in classes:
            raise InvalidProgramError(f"{self._place}: {place} is of unknown kind {kind}")
        call = classes[kind]()
        call.Init(union.Bytes, union.Pos)
        if kind == kinds.MoveCall:
            return PteInstruction("move", 0, (call.MoveFrom(), call.MoveTo()))
        if kind == kinds.JumpFalseCall:
            condition, target = call.CondValueIndex(), call.DestinationInstruction()
            return PteInstruction("jump_false", 0, (condition, target))
        if kind == kinds.FreeCall:
            return PteInstruction("free", 0, (call.ValueIndex(),))
        args = budget.numbers(call.ArgsLength(), call.ArgsAsNumpy, _MAX_LIST, f"{place}.args")
        self._value_indices(args, place)
        if kind == kinds.KernelCall:
            name, index, count = "kernel", call.OpIndex(), len(self.operators)
        else:
            name, index, count = "delegate", call.DelegateIndex(), len(self.delegates)
        if not 0 <= index < count:
            raise InvalidProgramError(f"{self._place}: {place} calls {name} {index} of {count}")
        return PteInstruction(name, index, args)


def _operator_name(budget: Budget, t: Any, place: str) -> str:
    """``aten::add.out``; an operator without an overload has no dot."""
    name = budget.name(t.Name(), f"{place}.name")
    overload = budget.name(t.Overload(), f"{place}.overload")
    return f"{name}.{overload}" if overload else name
