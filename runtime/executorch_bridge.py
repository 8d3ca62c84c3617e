"""Our delegate in ExecuTorch's own runtime, which then also runs what was left on its CPU kernels::

    import executorch_wgpu.runtime.executorch_bridge as bridge
    bridge.register()
    from executorch.runtime import Runtime
    Runtime.get().load_program("model.pte").load_method("forward").execute([x, pos])

``register`` compiles a small C++ file the first time on a machine (see :mod:`.bridge.compile`) and
hands ExecuTorch a backend whose init, execute and destroy come back here. It also makes ExecuTorch
safe for threads, since our calls let others run while the GPU works: a lock a program around the
official ``Method.execute``, for the methods of a program share their buffers, and turns in its C++
between our calls (:mod:`.bridge.turns`). The delegates of two programs run beside each other.

The official API reports a failure by a number. The exception behind it is the cause of the
RuntimeError that ``Method.execute`` and ``Program.load_method`` raise, is written to the log, and
is kept for :func:`last_error`.

This is the one module of ``runtime`` that imports executorch (and with it torch), in ``register``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import importlib.util
import logging
import threading
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NoReturn

from executorch_wgpu.serialization.dispatch_list import BACKEND_ID
from executorch_wgpu.serialization.errors import InvalidProgramError
from executorch_wgpu.serialization.reader import deserialize

from .bridge.compile import BridgeError, ExecutorchInstall, shim_path
from .bridge.delegate import Delegate, Instance
from .bridge.turns import Turns
from .device import resolve_device
from .errors import (
    DeviceLostError,
    InvalidInputError,
    OutOfDeviceMemoryError,
    UnsupportedDeviceError,
)
from .graph import WebGPUGraph
from .states import StateSpace

logger = logging.getLogger("executorch_wgpu")

__all__ = ["BridgeError", "is_registered", "last_error", "register"]

#: The releases of executorch whose C++ interface the shim is written for and tested with.
SUPPORTED = ("1.5",)

#: ``executorch::runtime::Error`` of an exception, first match; Internal for the rest.
_ERRORS: tuple[tuple[type[BaseException], int], ...] = (
    (InvalidInputError, 0x12),
    (InvalidProgramError, 0x23),
    (UnsupportedDeviceError, 0x10),
    (OutOfDeviceMemoryError, 0x21),
    (DeviceLostError, 0x02),
)
_INTERNAL = 0x01
#: What a callback answers when all went well: not 0, which is also what one answers that Ctrl-C
#: ended too early to say anything. As in ``shim.cpp``.
_DONE = 1 << 16


class _State:
    """What this process has registered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: Any = None
        self.turns: Any = None
        self.device: Any = None
        self.profile: bool | None = None
        self.delegates: dict[int, Delegate] = {}
        self.callbacks: Any = None  # keeps the ctypes functions alive


_state = _State()
#: Where the methods of a program share states; each lives as long as one of their graphs.
_spaces: weakref.WeakValueDictionary[Hashable, StateSpace] = weakref.WeakValueDictionary()
_failed = threading.local()
_newest: BaseException | None = None


def register(device: Any = None, *, profile: bool | None = None) -> None:
    """Makes our delegate known to ``executorch.runtime`` in this process, before or after that is
    imported. Calling it again changes the options for methods loaded from then on.

    Args:
        device: a ``GPUDevice``, a ``GPUAdapter`` or part of an adapter's summary; None for the
            device that this process shares. Opened when the first method is loaded.
        profile: timestamps for every dispatch; None asks ``WEBGPU_TIMESTAMP_QUERY``.

    Raises:
        BridgeError: executorch is missing, or of a release that this bridge was not built for; no
            C++ compiler; another backend of our name is registered.
    """
    with _state.lock:
        _state.device, _state.profile = device, profile
        if _state.library is None:
            install = _find_executorch()
            # Loads libexecutorch, which the shim is linked to.
            runtime = importlib.import_module("executorch.runtime")
            library = _state.library = _load(shim_path(install), install)
            _state.turns = Turns(library)
            try:
                _attach(library)
            except BridgeError:
                _state.library = None
                raise
            binding = importlib.import_module("executorch.extension.pybindings._C")
            users = importlib.import_module("executorch.extension.pybindings.portable_lib")
            _state.turns.guard(binding, users)
            _lock_methods(runtime)
            atexit.register(_close)


def is_registered() -> bool:
    """Whether :func:`register` has been called in this process."""
    return _state.library is not None


def last_error() -> BaseException | None:
    """The exception behind the newest failure of our delegate in this thread, or else in any
    (ExecuTorch may run methods in threads of its own); None when there was none."""
    return getattr(_failed, "error", None) or _newest


# -- setting up --------------------------------------------------------------------------------


def _find_executorch() -> ExecutorchInstall:
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise BridgeError(
            "executorch is not installed: pip install 'executorch-wgpu[export]'; wholly delegated "
            "programs run without it, in executorch_wgpu.runtime"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    try:
        module = importlib.import_module("executorch.version")
    except ImportError as error:
        raise BridgeError(f"this executorch ({root}) does not say its version: {error}") from error
    version = str(module.__version__)
    if not any(version == s or version.startswith(s + ".") for s in SUPPORTED):
        raise BridgeError(
            f"executorch {version} is not one that this bridge was built for "
            f"({', '.join(s + '.x' for s in SUPPORTED)}): its C++ interface may differ. Install "
            "one of those, or a newer executorch-wgpu"
        )
    commit = getattr(module, "git_version", None)
    return ExecutorchInstall(root, f"{version} {commit}" if commit else version)


def _load(path: Path, install: ExecutorchInstall) -> Any:
    try:
        # Python's lock is held during calls: they are short, and some rely on it.
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise BridgeError(f"the bridge {path} cannot be loaded: {error}") from error
    library.wgpu_bridge_built_for.restype = ctypes.c_char_p
    built_for = library.wgpu_bridge_built_for().decode()
    if built_for != install.version:
        raise BridgeError(
            f"the bridge {path} was built for executorch {built_for}, this is {install.version}: "
            "delete that file"
        )
    library.wgpu_bridge_data.restype = ctypes.c_uint32
    library.wgpu_bridge_data.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_uint64),
    )
    for function in (library.wgpu_bridge_begin, library.wgpu_bridge_set_aside):
        function.restype, function.argtypes = None, ()
    library.wgpu_bridge_close.restype = None
    library.wgpu_bridge_release.restype = None
    library.wgpu_bridge_release.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    library.wgpu_bridge_resize.restype = ctypes.c_uint64
    library.wgpu_bridge_resize.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.wgpu_bridge_register.restype = ctypes.c_uint32
    library.wgpu_bridge_register.argtypes = (ctypes.c_char_p, _Callbacks)
    return library


_InitFn = ctypes.CFUNCTYPE(
    ctypes.c_uint32,
    ctypes.POINTER(Instance),
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_ExecuteFn = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p)
_DestroyFn = ctypes.CFUNCTYPE(None, ctypes.c_uint64)


class _Callbacks(ctypes.Structure):
    _fields_ = (("init", _InitFn), ("execute", _ExecuteFn), ("destroy", _DestroyFn))


def _attach(library: Any) -> None:
    functions = _Callbacks(_InitFn(_init), _ExecuteFn(_execute), _DestroyFn(_destroy))
    error = library.wgpu_bridge_register(BACKEND_ID.encode(), functions)
    if error:
        why = f"error {error:#x}"
        registry = importlib.import_module("executorch.runtime").Runtime.get().backend_registry
        if BACKEND_ID in registry.registered_backend_names:
            why = f"another backend called {BACKEND_ID} is registered in this process"
        raise BridgeError(f"ExecuTorch refuses the delegate: {why}")
    _state.callbacks = functions


def _close() -> None:
    """Before the interpreter ends: methods may be destroyed after it, and must find nobody."""
    _state.library.wgpu_bridge_close()
    _state.delegates.clear()


# -- what the shim calls -----------------------------------------------------------------------


def _fail(error: BaseException, doing: str) -> int:
    global _newest
    _failed.error = _newest = error
    # The traceback would keep the call's arrays alive.
    logger.error("%s: %s: %s", doing, type(error).__name__, error)
    logger.debug("", exc_info=error)
    error.__traceback__ = None
    return next((code for kind, code in _ERRORS if isinstance(error, kind)), _INTERNAL)


def _init(
    instance: Any, method: bytes, blob: int, size: int, data: int, identity: int | None
) -> int:
    paused = _state.turns.pause()
    try:
        content = (ctypes.c_char * size).from_address(blob) if size else b""
        program = deserialize(memoryview(content).cast("B"))
        constants = _Constants(data)
        try:
            key = None if identity is None else ("executorch", identity)
            graph = WebGPUGraph(
                resolve_device(_state.device),
                program,
                constants,
                method.decode(errors="replace"),
                # Graphs of one program are given one map, and share what is on the device.
                data_identity=key,
                profile=_state.profile,
                verified=True,
                space=StateSpace() if key is None else _spaces.setdefault(key, StateSpace()),
            )
        finally:
            constants.close()
        found = instance.contents
        resize = functools.partial(_state.library.wgpu_bridge_resize, ctypes.addressof(found))
        _state.delegates[found.id] = Delegate(graph, found, resize)
        answer = _DONE
    except BaseException as error:
        answer = _fail(error, f"loading a delegate of method '{method.decode(errors='replace')}'")
    return answer | int(_state.turns.resume(paused))


def _execute(identifier: int, arguments: int) -> int:
    paused = _state.turns.pause()
    try:
        _state.delegates[identifier].run(arguments)
        answer = _DONE
    except BaseException as error:
        answer = _fail(error, "executing a delegate")
    return answer | int(_state.turns.resume(paused))


def _destroy(identifier: int) -> None:
    with contextlib.suppress(Exception):
        _state.delegates.pop(identifier, None)


class _Constants:
    """The program's named data while a delegate is loaded: key -> bytes in ExecuTorch's memory,
    which for a mapped file is the file. One at a time is held."""

    def __init__(self, data: int) -> None:
        self._data: int | None = data
        self._held: bytes | None = None

    def __call__(self, key: str) -> memoryview:
        """Valid until the next call. Raises KeyError."""
        self._release()
        if self._data is None:
            raise KeyError(key)  # after loading, ExecuTorch may have let go of its map
        address, size = ctypes.c_void_p(), ctypes.c_uint64()
        encoded = key.encode()
        error = _state.library.wgpu_bridge_data(
            self._data, encoded, ctypes.byref(address), ctypes.byref(size)
        )
        if error:
            raise KeyError(key)
        self._held = encoded
        if not size.value:
            return memoryview(b"")
        content = (ctypes.c_char * size.value).from_address(address.value or 0)
        return memoryview(content).cast("B").toreadonly()

    def close(self) -> None:
        """Nothing can be read any more."""
        self._release()
        self._data = None

    def _release(self) -> None:
        if self._held is not None and self._data is not None:
            _state.library.wgpu_bridge_release(self._data, self._held)
        self._held = None


# -- the official classes ----------------------------------------------------------------------


def _explain(error: RuntimeError) -> NoReturn:
    """Raises a RuntimeError of the official API again: with its cause, where we know it."""
    cause: BaseException | None = getattr(_failed, "error", None)
    if cause is None:
        raise error
    if not isinstance(cause, Exception):
        raise cause from None  # KeyboardInterrupt
    raise RuntimeError(f"{error}\n{type(cause).__name__}: {cause}") from cause


def _lock_methods(runtime: Any) -> None:
    """Methods of one program take turns in ``execute``; programs run beside each other."""
    load, run = runtime.Program.load_method, runtime.Method.execute
    guard = threading.Lock()

    def lock_of(program: Any) -> Any:
        with guard:
            found = getattr(program, "_wgpu_lock", None)
            if found is None:
                found = program._wgpu_lock = threading.RLock()
            return found

    @functools.wraps(load)
    def load_method(program: Any, *args: Any, **kwargs: Any) -> Any:
        lock = lock_of(program)
        with lock:
            _failed.error = None
            try:
                method = load(program, *args, **kwargs)
            except RuntimeError as error:
                _explain(error)
            if method is not None:
                method._wgpu_lock = lock
                # A method does not hold on to the bytes that its program was loaded from.
                method._wgpu_held = (program._program, getattr(program, "_data", None))
            return method

    @functools.wraps(run)
    def execute(method: Any, *args: Any, **kwargs: Any) -> Any:
        lock = getattr(method, "_wgpu_lock", None)
        if lock is None:  # loaded before register(), so with none of our delegates
            return run(method, *args, **kwargs)
        with lock:
            _failed.error = None
            try:
                return run(method, *args, **kwargs)
            except RuntimeError as error:
                _explain(error)

    runtime.Program.load_method, runtime.Method.execute = load_method, execute
