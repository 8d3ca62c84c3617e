"""A method of a ``.pte`` file made ready: around a graph, the file's own order of arguments and
results, and the values that are fixed in it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.dispatch_list import Program as DispatchList
from executorch_wgpu.serialization.errors import InvalidProgramError
from executorch_wgpu.serialization.pte import PteMethod, PteTensor
from executorch_wgpu.serialization.pte_method import Source, SourceKind, Wiring

from . import boundary
from .errors import InvalidInputError
from .graph import WebGPUGraph
from .metadata import MethodMetadata, ValueInfo, buffer_bytes, describe_file_value, describe_values
from .pending_step import PendingStep
from .states import State, StateSpace

if TYPE_CHECKING:
    from .profiling.records import StepProfile


class Method:
    """A method made ready, from :meth:`.program.Program.load_method`."""

    def __init__(
        self,
        method: PteMethod,
        graph: WebGPUGraph | None,
        wiring: Wiring | None,
        metadata: MethodMetadata,
        space: StateSpace,
        siblings: weakref.WeakSet[Method],
    ) -> None:
        siblings.add(self)
        self._siblings = siblings
        self._method = method
        self._graph = graph
        self._wiring = wiring
        self._space = space
        self.metadata = metadata
        #: Goes up when ``Program.reload`` gives the method a new device and new states.
        self.epoch = 0
        #: What persists between calls.
        self.state = State.none(metadata.name) if graph is None else graph.state
        self._constants: dict[int, Any] = {}
        if wiring is None:
            self._outputs = [Source(SourceKind.CONSTANT, index) for index in method.outputs]
        else:
            self._outputs = list(wiring.method_outputs)
        sources = [*self._outputs, *(wiring.delegate_inputs if wiring is not None else ())]
        for source in sources:
            if source.kind is SourceKind.CONSTANT and source.index not in self._constants:
                self._constants[source.index] = _constant(method, source.index)

    @property
    def name(self) -> str:
        """The method's name; it opens every error message."""
        return self.metadata.name

    @property
    def space(self) -> StateSpace:
        """Where its states are shared, by group."""
        return self._space

    @property
    def graph(self) -> WebGPUGraph | None:
        """What replays it; None for a method whose outputs are all constants."""
        return self._graph

    def execute(self, inputs: Sequence[object], outputs: Sequence[int] | None = None) -> list[Any]:
        """Runs the method once.

        Args:
            inputs: one value an input: numpy arrays or torch tensors of the right dtype and shape,
                ints, and ``FED_BACK`` for the last call's output where it is fed back on the GPU.
            outputs: indices of the outputs that are wanted, in that order; the others are not
                read back from the GPU. None for all.

        Returns:
            One value an output: numpy arrays, torch tensors when one came in, ints; constants as
            they are in the file. An output that is an input is the object passed in.

        Raises:
            InvalidInputError: the arguments do not fit; nothing has run and no state has changed.
            OutOfDeviceMemoryError, DeviceLostError.
        """
        taken, wanted, finish = self._prepare(inputs, outputs)
        return finish([] if self._graph is None else self._graph.execute(taken, wanted))

    def submit(self, inputs: Sequence[object], outputs: Sequence[int] | None = None) -> PendingCall:
        """Like :meth:`execute`, but returns as soon as the work is on its way. At most three calls
        may be uncollected.

        Raises:
            As :meth:`execute`; WgpuDelegateError when too many are in flight.
            InvalidInputError: the method computes nothing.
        """
        taken, wanted, finish = self._prepare(inputs, outputs)
        if self._graph is None:
            raise InvalidInputError(f"{self.name}: the method computes nothing; execute it")
        return PendingCall(self._graph.submit(taken, wanted), finish)

    def fork(self, beside: Method | None = None) -> Method:
        """The same method with states of its own, which start as copies of what these are after
        all submitted calls. Constants and compiled kernels are shared.

        Args:
            beside: a fork of another method of the program: states that this method shares with
                that one by group are then the same for the two forks.

        Raises:
            OutOfDeviceMemoryError, DeviceLostError.
        """
        space = StateSpace() if beside is None else beside.space
        graph = None if self._graph is None else self._graph.fork(space)
        return Method(self._method, graph, self._wiring, self.metadata, space, self._siblings)

    def move(self, graph: WebGPUGraph) -> None:
        """Goes on with ``graph``, on another device."""
        self._graph, self._space, self.state = graph, graph.space, graph.state
        self.epoch += 1

    def feedback(self) -> list[tuple[int, int]]:
        """(output, input) pairs that may stay on the GPU between calls, see ``FED_BACK``."""
        if self._graph is None or self._wiring is None:
            return []
        given = {source: at for at, source in enumerate(self._outputs)}
        found = []
        for pair in self._graph.program.feedback:
            output = given.get(Source(SourceKind.DELEGATE, pair.output))
            source = self._wiring.delegate_inputs[pair.input]
            if output is not None and source.kind is SourceKind.ARGUMENT:
                found.append((output, source.index))
        return found

    def allocated(self) -> dict[int, int]:
        """What it takes on the GPU: a key a buffer -> bytes. Methods that share a buffer name the
        same key, so that the union of several counts it once."""
        return {} if self._graph is None else self._graph.allocated()

    def _prepare(
        self, inputs: Sequence[object], outputs: Sequence[int] | None
    ) -> tuple[list[Any], list[int], Callable[[list[Any]], list[Any]]]:
        """The graph's arguments, the outputs it has to read back, and what makes the caller's
        outputs of them."""
        expected = self.metadata.inputs
        if len(inputs) != len(expected):
            names = ", ".join(info.name for info in expected) or "none"
            raise InvalidInputError(
                f"{self.name}: expected {len(expected)} inputs ({names}), got {len(inputs)}"
            )
        for index in outputs or ():
            if not 0 <= index < len(self._outputs):
                raise InvalidInputError(
                    f"{self.name}: output {index} was asked for, of {len(self._outputs)}"
                )
        sources = self._outputs if outputs is None else [self._outputs[i] for i in outputs]
        wanted = sorted({s.index for s in sources if s.kind is SourceKind.DELEGATE})
        torch_out = any(boundary.is_torch(value) for value in inputs)
        delegate_inputs = () if self._wiring is None else self._wiring.delegate_inputs
        taken = [self._value(source, inputs, {}) for source in delegate_inputs]

        def finish(results: list[Any]) -> list[Any]:
            by_index = dict(zip(wanted, results, strict=True))
            return [self._value(source, inputs, by_index, torch_out) for source in sources]

        return taken, wanted, finish

    def last_profile(self) -> StepProfile | None:
        """The last call: its dispatches with their times, and more, see
        :meth:`.graph.WebGPUGraph.last_profile`."""
        return None if self._graph is None else self._graph.last_profile()

    def _value(
        self,
        source: Source,
        inputs: Sequence[object],
        results: Mapping[int, Any],
        torch_out: bool = False,
    ) -> Any:
        if source.kind is SourceKind.ARGUMENT:
            return inputs[source.index]
        if source.kind is SourceKind.DELEGATE:
            return results[source.index]
        value = self._constants[source.index]
        if isinstance(value, _Constant):
            # A copy: callers may write to what they get.
            return boundary.to_caller(value.array.copy(), value.bfloat16, torch_out)
        return value


@dataclass(frozen=True, slots=True)
class _Constant:
    """A tensor that is fixed in the file; ``bfloat16``: its bits as uint16."""

    array: boundary.Array
    bfloat16: bool


class PendingCall:
    """A submitted call of a method, from :meth:`Method.submit`."""

    def __init__(self, step: PendingStep, finish: Callable[[list[Any]], list[Any]]) -> None:
        self._step, self._finish = step, finish

    def result(self) -> list[Any]:
        """Waits for this call (not for later ones) and returns what ``execute`` would have.

        Raises:
            DeviceLostError, WgpuDelegateError: the results could not be read.
        """
        return self._finish(self._step.result())


def metadata_of(method: PteMethod, program: DispatchList, wiring: Wiring) -> MethodMetadata:
    """The method's view on its delegate: its own order, and values the delegate does not see."""
    taken = describe_values(program, program.inputs)
    given = describe_values(program, program.outputs)
    inputs: list[ValueInfo] = [
        describe_file_value(value, f"input{i}") for i, value in enumerate(method.input_values)
    ]
    for info, source in zip(taken, wiring.delegate_inputs, strict=True):
        if source.kind is SourceKind.ARGUMENT:
            inputs[source.index] = info
    outputs: list[ValueInfo] = []
    for i, source in enumerate(wiring.method_outputs):
        if source.kind is SourceKind.DELEGATE:
            outputs.append(given[source.index])
        elif source.kind is SourceKind.ARGUMENT:
            outputs.append(inputs[source.index])
        else:
            outputs.append(describe_file_value(method.value(source.index), f"output{i}"))
    return MethodMetadata(
        method.name,
        tuple(inputs),
        tuple(outputs),
        tuple(b.name for b in program.buffers if b.kind is BufferKind.STATE),
        buffer_bytes(program, BufferKind.STATE),
        buffer_bytes(program, BufferKind.CONSTANT),
    )


def _constant(method: PteMethod, index: int) -> Any:
    """A value that is fixed in the file, a tensor as :class:`_Constant`."""
    value = method.value(index)
    if not isinstance(value, PteTensor):
        return value
    bfloat16 = value.dtype == "bfloat16"
    name = "uint16" if bfloat16 else value.dtype
    try:
        stored = np.frombuffer(method.tensor_data(index), np.dtype(name))
    except TypeError as error:
        raise InvalidProgramError(
            f"{method.name}: value {index} is a constant of dtype {value.dtype}, which is unknown"
        ) from error
    order = value.dim_order or tuple(range(len(value.shape)))
    # Stored with the outermost dimension first; undo that order.
    array = stored.reshape([value.shape[dim] for dim in order])
    return _Constant(np.ascontiguousarray(array.transpose(np.argsort(order))), bfloat16)
