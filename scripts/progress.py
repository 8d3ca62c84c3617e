"""Progress of the long steps of a command: bars on a terminal, a line a step elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

#: Bytes handed on at a time, so that the bar moves.
_CHUNK = 8 << 20


class Progress:
    """Shows steps, one below the other, on what was standard error when it was made: also while
    :func:`executorch_wgpu.scripts.console.quiet` holds that back.

    >>> with Progress() as progress:
    ...     with progress.step("load", total=210) as advance:
    ...         advance(1)
    """

    def __init__(self) -> None:
        import rich.console
        import rich.progress as bars

        self._file = os.fdopen(os.dup(2), "w")
        console = rich.console.Console(file=self._file, highlight=False)
        self._live = console.is_terminal
        self._bars = bars.Progress(
            bars.TextColumn("{task.description:<8}"),
            bars.BarColumn(),
            bars.TextColumn("{task.fields[amount]}"),
            bars.TimeElapsedColumn(),
            console=console,
            disable=not self._live,
        )
        #: Seconds of each step that has ended.
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()
        self._file.close()

    @contextlib.contextmanager
    def step(self, name: str, total: float | None = None, unit: str = "") -> Iterator[Step]:
        """A step. ``total`` None: nobody knows yet how far it is. ``unit``: "bytes" or a word.
        Gives what to call with the amount done since the last call."""
        begin = time.perf_counter()
        task = self._bars.add_task(name, total=total, amount="")
        step = Step(self._bars, task, total, unit)
        yield step
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
        end = step.total or step.done or 1
        self._bars.update(task, total=end, completed=end)
        self._bars.stop_task(task)
        if not self._live:
            text = _amount(step.total or step.done, None, unit) if step.total or step.done else ""
            print(f"{name:<8} {self.seconds[name]:6.1f} s  {text}".rstrip(), file=self._file)
            self._file.flush()

    def over(self, name: str, items: Iterable[Any], total: int, unit: str) -> Iterator[Any]:
        """Goes through ``items`` as a step, one done for each."""
        with self.step(name, total, unit) as advance:
            for item in items:
                yield item
                advance(1)


class Step:
    """A step that is going on. ``done`` of ``total``, None where that is not known."""

    def __init__(self, bars: Any, task: Any, total: float | None, unit: str) -> None:
        self.done, self.total = 0.0, total
        self._bars, self._task, self._unit = bars, task, unit

    def __call__(self, amount: float) -> None:
        """``amount`` more is done."""
        self.at(self.done + amount, self.total)

    def at(self, done: float, total: float | None) -> None:
        """``done`` of ``total`` is done."""
        self.done, self.total = done, total
        amount = _amount(done, total, self._unit)
        self._bars.update(self._task, completed=done, total=total, amount=amount)


def _amount(done: float, total: float | None, unit: str) -> str:
    if unit == "bytes":
        done /= 1 << 20
        total = None if total is None else total / (1 << 20)
        unit = "MiB"
    of = "" if total is None else f"/{total:,.0f}"
    return f"{done:,.0f}{of} {unit}"


class WriteProgress:
    """A binary file that says how much has been written to it."""

    def __init__(self, file: BinaryIO, advance: Callable[[float], None]) -> None:
        self._file = file
        self._advance = advance

    def write(self, data: Any) -> int:
        """Writes all of ``data``."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            self._file.write(part)
            self._advance(len(part))
        return len(view)
