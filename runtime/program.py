"""The front door, with the names and shapes of ``executorch.runtime``::

    method = Runtime.get().load_program("model.pte").load_method("forward")
    [logits] = method.execute([tokens])

Runs programs that are wholly delegated to us. Neither torch nor executorch is needed; a file that
also uses ExecuTorch's CPU kernels has to run in ExecuTorch's own runtime, and the error says so.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable
from typing import Any

from executorch_wgpu.serialization.dispatch_list import BACKEND_ID
from executorch_wgpu.serialization.dispatch_list import Program as DispatchList
from executorch_wgpu.serialization.pte import PteFile, PteMethod
from executorch_wgpu.serialization.reader import deserialize

from .device import another_device, resolve_device
from .errors import InvalidInputError, NotDelegatedError
from .graph import WebGPUGraph
from .metadata import MethodMetadata, describe_file_value
from .method import Method, PendingCall, metadata_of
from .states import StateSpace
from .storage import Progress

__all__ = ["Method", "PendingCall", "Program", "Runtime"]


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
        return metadata_of(method, program, wiring)

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
        metadata = metadata_of(method, program, wiring)
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
            spaces = {id(m.space): StateSpace() for m in methods}
            spaces.setdefault(id(self._space), StateSpace())
            graphs = []
            for method in methods:
                assert method.graph is not None
                graphs.append(method.graph.again(fresh, spaces[id(method.space)]))
            self._device, self._space = fresh, spaces[id(self._space)]
            for method, graph in zip(methods, graphs, strict=True):
                method.move(graph)

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
