"""One thread at a time in ExecuTorch's C++, and none while a delegate of ours runs.

ExecuTorch's Python functions point ``std::cout`` and ``std::cerr`` to buffers on their own stack
while they run, and back to what they found when they return. Python's lock keeps that nested until
something gives it up in the middle of a call: a delegate that waits for the GPU, or one line of
ExecuTorch's log, which goes to ``sys.stderr``. Then another call can begin, find the first one's
buffer and put it back after the first one is gone; the next line of the log crashes.

So every function of that binding is called with a lock, and a call that comes to a delegate of ours
puts the streams as it found them and gives the lock up until the delegate is done. Whoever takes
the lock then finds the streams as they are outside of all calls, whatever the order. CPU kernels
lose nothing: they run with Python's lock held anyway.

Functions that somebody imported from the binding before :meth:`Turns.guard` are not covered, and
neither are ExecuTorch's runners of language models, which redirect nothing.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Classes of the binding whose functions redirect the streams.
_CLASSES = (
    "BundledModule",
    "ExecuTorchMethod",
    "ExecuTorchModule",
    "ExecuTorchProgram",
    "MethodMeta",
    "TensorInfo",
)
#: What the binding's classes have for themselves.
_OWN = ("__init__", "_pybind11_conduit_v1_")
#: Those of the older interface that run a program, whose buffers are one object's.
_RUNS = {
    "ExecuTorchModule": ("__call__", "forward", "plan_execute", "run_method"),
    "BundledModule": ("verify_result_with_bundled_expected_output",),
}


class Turns:
    """Whose turn it is. ``library``: the shim, which swaps the streams."""

    #: Set in a callback's answer: it is this thread's turn again, and the shim puts the streams
    #: back as the call had them.
    RESUMED = 1 << 17

    def __init__(self, library: Any) -> None:
        self._library = library
        # Its owner and count change in C, where Ctrl-C cannot come in between.
        self._lock: Any = threading.RLock()
        self._objects: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def pause(self) -> Any:
        """At the start of a callback: the others' turn. Returns what :meth:`resume` needs; None
        for a call that did not wait for its turn."""
        if not self._lock._is_owned():
            return None
        self._library.wgpu_bridge_set_aside()
        return self._lock._release_save()

    def resume(self, paused: Any) -> int:
        """At the end of a callback: waits for this thread's turn. Returns a flag for the shim."""
        if paused is None:
            return 0
        self._lock._acquire_restore(paused)
        return self.RESUMED

    def guard(self, *modules: ModuleType) -> None:
        """Makes all functions of the binding take turns. ``modules``: the binding, then those that
        have imported from it."""
        binding = modules[0]
        for name in _CLASSES:
            cls = getattr(binding, name)
            for key, function in list(vars(cls).items()):
                if type(function).__name__ != "instancemethod" or key in _OWN:
                    continue
                guarded = self._guarded(function)
                if key in _RUNS.get(name, ()):
                    guarded = self._one_at_a_time(guarded)
                setattr(cls, key, guarded)
        for name, function in list(vars(binding).items()):
            if type(function).__name__ == "builtin_function_or_method":
                guarded = self._guarded(function)
                for module in modules:
                    if getattr(module, name, None) is function:
                        setattr(module, name, guarded)

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        lock, begin = self._lock, self._library.wgpu_bridge_begin
        owned = lock._is_owned

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if owned():  # a call within a call, from a log line's sys.stderr
                return function(*args, **kwargs)
            with lock:
                begin()
                return function(*args, **kwargs)

        return call

    def _one_at_a_time(self, function: Callable[..., Any]) -> Callable[..., Any]:
        objects, guard = self._objects, threading.Lock()

        @functools.wraps(function)
        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            with guard:
                lock = objects.setdefault(target, threading.RLock())
            with lock:
                return function(target, *args, **kwargs)

        return call
