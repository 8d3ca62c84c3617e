"""The front door, with the names and shapes of ``executorch.runtime``::

    method = Runtime.get().load_program("model.pte").load_method("forward")
    [logits] = method.execute([tokens])

Runs programs that are wholly delegated to us. Neither torch nor executorch is needed; a file that
also uses ExecuTorch's CPU kernels has to run in ExecuTorch's own runtime, and the error says so.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from executorch_wgpu.serialization.dispatch_list import BACKEND_ID, BufferKind
from executorch_wgpu.serialization.dispatch_list import Program as DispatchList
from executorch_wgpu.serialization.errors import InvalidProgramError
from executorch_wgpu.serialization.pte import PteFile, PteMethod, PteTensor
from executorch_wgpu.serialization.pte_method import Source, SourceKind, Wiring
from executorch_wgpu.serialization.reader import deserialize

from . import boundary
from .device import another_device, resolve_device
from .errors import InvalidInputError, NotDelegatedError
from .graph import PendingStep, WebGPUGraph
from .metadata import MethodMetadata, ValueInfo, buffer_bytes, describe_file_value, describe_values
from .states import State, StateSpace
from .storage import Progress

if TYPE_CHECKING:
    from .profiling.records import StepProfile

logger = logging.getLogger("executorch_wgpu")


class Runtime:
    """Loads programs. One instance a process, from :meth:`get`."""

    _instance: Runtime | None = None
    _instance_lock = threading.Lock()

    @classmethod
    def get(cls) -> Runtime:
        """The instance. Thread-safe; opens no device."""
        with cls._instance_lock:
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

    def load_program(
        self,
        data: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        device: Any = None,
        profile: bool | None = None,
        progress: Progress | None = None,
        max_bytes: int | None = None,
    ) -> Program:
        """Opens a ``.pte`` file. A file is mapped and stays open as long as the program and its
        methods; nothing is sent to a device yet.

        Args:
            data: a path, or the file's bytes.
            device: a ``GPUDevice``, a ``GPUAdapter``, ``"gpu"`` (no adapter that computes on the
                CPU), ``"cpu"`` (one that does), part of an adapter's summary such as ``"NVIDIA"``;
                None for the device that this process shares.
            profile: timestamps for every dispatch of every method; None asks the environment
                (``WEBGPU_TIMESTAMP_QUERY=1``).
            progress: called with (bytes done, bytes in all) while a method's weights are uploaded.
            max_bytes: a method is not loaded where this process would then hold more than that on
                the device; None asks ``EXECUTORCH_WGPU_MAX_BYTES``, and where the adapter
                computes on the CPU it is the machine's memory.

        Raises:
            FileNotFoundError, OSError: the file cannot be opened.
            InvalidProgramError: it is no ``.pte`` file.
            TypeError: ``data`` is neither a path nor bytes.
        """
        if isinstance(data, (bytes, bytearray, memoryview)):
            return Program(PteFile(data), object(), device, profile, progress, max_bytes)
        if not isinstance(data, (str, os.PathLike)):
            raise TypeError(f"expected a path or bytes, got {type(data).__name__}")
        status = os.stat(data)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return Program(PteFile.open(data), identity, device, profile, progress, max_bytes)


class Program:
    """An open ``.pte`` file, from :meth:`Runtime.load_program`."""

    def __init__(
        self,
        pte: PteFile,
        identity: Hashable,
        device: Any = None,
        profile: bool | None = None,
        progress: Progress | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._pte = pte
        self._identity = identity
        self._device = device
        self._profile = profile
        self._progress = progress
        self._lists: dict[str, DispatchList] = {}
        self._space = StateSpace()
        self._lock = threading.Lock()
        #: Those that are alive, forks among them.
        self._methods: weakref.WeakSet[Method] = weakref.WeakSet()

    @property
    def method_names(self) -> set[str]:
        """Names of the methods, such as ``{"forward"}``."""
        return set(self._pte.methods)

    def metadata(self, method_name: str) -> MethodMetadata:
        """What a method takes and gives, without a device.

        Raises:
            InvalidInputError: there is no method of that name.
            NotDelegatedError, InvalidProgramError: see :meth:`load_method`.
        """
        method = self._method(method_name)
        if method.is_metadata:
            outputs = tuple(
                describe_file_value(value, f"output{i}")
                for i, value in enumerate(method.output_values)
            )
            return MethodMetadata(method_name, (), outputs)
        program = self._dispatch_list(method)
        wiring = method.wiring(len(program.inputs), len(program.outputs))
        return _metadata(method, program, wiring)

    def load_method(self, name: str, *, apart: bool = False) -> Method:
        """Makes a method ready: compiles its kernels and uploads its weights (those that another
        method of this file has uploaded to the same device are shared).

        Each call gives a method with states of its own, but for those that were exported with a
        group: these are one with the states of the same group and name of every method that this
        program has loaded, until the last of those methods is dropped. (:meth:`Method.fork` makes
        copies.)

        Args:
            apart: share no state, not even those with a group.

        Raises:
            InvalidInputError: there is no method of that name.
            NotDelegatedError: CPU operators or other backends take part in it.
            InvalidProgramError: also where a shared state is another than the one loaded.
            UnsupportedDeviceError, OutOfDeviceMemoryError.
        """
        method = self._method(name)
        if method.is_metadata:
            return Method(method, None, None, self.metadata(name), self._space, self._methods)
        program = self._dispatch_list(method)
        wiring = method.wiring(len(program.inputs), len(program.outputs))
        space = StateSpace() if apart else self._space
        graph = WebGPUGraph(
            self._resolve_device(),
            program,
            self._pte.named_data,
            name,
            data_identity=self._identity,
            profile=self._profile,
            positions=[source.index for source in wiring.delegate_inputs],
            verified=True,
            space=space,
            progress=self._progress,
            max_bytes=self._max_bytes,
        )
        metadata = _metadata(method, program, wiring)
        return Method(method, graph, wiring, metadata, space, self._methods)

    def reload(self, device: Any = None) -> None:
        """Moves the program to a new device, after a :class:`DeviceLostError` or to another
        adapter: compiles and uploads anew for every method (and fork) that is alive. They are the
        same objects as before; calls that were pending raise :class:`DeviceLostError` or, where the
        old device still works, end there. Call it when no other thread is in one of the methods.

        States start from their initial values. To go on from where they were, restore a snapshot
        that is in host memory::

            saved = method.state.snapshot(on_host=True)
            ...
            except DeviceLostError:
                program.reload()
                method.state.restore(saved)

        Args:
            device: as in :meth:`Runtime.load_program`; None for a new device on the same adapter.

        Raises:
            UnsupportedDeviceError, OutOfDeviceMemoryError: the methods are as they were.
        """
        with self._lock:
            old = self._device
            if device is not None:
                fresh = resolve_device(device)
            elif hasattr(old, "create_buffer"):
                fresh = another_device(old)
            else:
                fresh = resolve_device(old)
            methods = [method for method in self._methods if method.graph is not None]
            # States that methods share, they share on the new device.
            spaces = {id(m._space): StateSpace() for m in methods}
            spaces.setdefault(id(self._space), StateSpace())
            graphs = []
            for method in methods:
                assert method.graph is not None
                graphs.append(method.graph.again(fresh, spaces[id(method._space)]))
            self._device, self._space = fresh, spaces[id(self._space)]
            for method, graph in zip(methods, graphs, strict=True):
                method._move(graph)

    def dispatch_list(self, method_name: str) -> DispatchList:
        """The delegate's program of a method, for inspection.

        Raises:
            As :meth:`metadata`; NotDelegatedError for a method with nothing but constants.
        """
        return self._dispatch_list(self._method(method_name))

    def _resolve_device(self) -> Any:
        with self._lock:
            self._device = resolve_device(self._device)
            return self._device

    def _method(self, name: str) -> PteMethod:
        if name not in self._pte.methods:
            names = ", ".join(self._pte.methods) or "none"
            raise InvalidInputError(f"{self._pte.name}: no method '{name}'; there are: {names}")
        return self._pte.method(name)

    def _dispatch_list(self, method: PteMethod) -> DispatchList:
        with self._lock:
            found = self._lists.get(method.name)
            if found is None:
                delegate = method.sole_delegate()
                if delegate is None:
                    raise NotDelegatedError(_why_not(self._pte.name, method))
                found = self._lists[method.name] = deserialize(delegate.data)
            return found


class Method:
    """A method made ready, from :meth:`Program.load_method`."""

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
        space = StateSpace() if beside is None else beside._space
        graph = None if self._graph is None else self._graph.fork(space)
        return Method(self._method, graph, self._wiring, self.metadata, space, self._siblings)

    def _move(self, graph: WebGPUGraph) -> None:
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


def _metadata(method: PteMethod, program: DispatchList, wiring: Wiring) -> MethodMetadata:
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


def _why_not(file: str, method: PteMethod) -> str:
    """Why the torch-free runtime cannot run a method, and what to do."""
    place = f"{file}: method '{method.name}' cannot run here"
    others = sorted({d.id for d in method.delegates} - {BACKEND_ID})
    official = (
        "Run it in ExecuTorch's own runtime: call "
        "executorch_wgpu.runtime.executorch_bridge.register(), then use executorch.runtime"
    )
    if method.cpu_operators:
        operators = ", ".join(method.cpu_operators)
        backends = f" and the backends {', '.join(others)}" if others else ""
        return (
            f"{place}: it is not fully delegated; the operators {operators}{backends} are not "
            f"ours. {official}, or see why they were left with "
            "WgpuPartitioner().explain(exported_program)"
        )
    if others:
        return f"{place}: it is delegated to {', '.join(others)}, not to {BACKEND_ID}. {official}"
    runs = method.describe_instructions()
    return f"{place}: it is not one delegate call, it runs {runs}. {official}"
