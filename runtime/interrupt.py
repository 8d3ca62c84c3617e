"""Ctrl-C between two steps rather than within one, and what a step that stopped half way leaves.

Python raises KeyboardInterrupt wherever it happens to be: in a callback that C has called or in a
destructor, where it is printed and forgotten, or between a submission and the note that was to be
made of it. A step takes milliseconds, so it may end first.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from .device import is_lost


class Interrupts:
    """While it is entered, Ctrl-C is kept until :meth:`check`; a second one is raised at once.

    Does nothing outside the main thread, or where someone handles the signal in another way.
    """

    def __init__(self) -> None:
        self._pending = self._installed = False

    def check(self) -> None:
        """Raises KeyboardInterrupt when Ctrl-C was pressed."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._installed = True
            signal.signal(signal.SIGINT, self._keep)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if error is None:
            self.check()

    def _keep(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True


def stopped_by(error: BaseException, device: Any) -> str:
    """Why a graph is not to be used after half of a step; empty where its device is lost, which
    every later call says itself."""
    try:
        lost = is_lost(device)
    except Exception:  # a device that cannot even be asked
        lost = False
    return "" if lost else str(error) or type(error).__name__
