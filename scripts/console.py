"""Text for people: tables and numbers, the same in every command."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class Console:
    """Prints to standard output. Tables fit the terminal; in a file or a pipe they are as wide as
    they need to be, so that ``grep`` finds whole rows."""

    def __init__(self) -> None:
        import rich.console

        # No markup: names such as ``x[0]`` are no tags.
        self._rich = rich.console.Console(
            markup=False,
            highlight=False,
            emoji=False,
            width=None if sys.stdout.isatty() else 400,
        )

    def line(self, text: str = "") -> None:
        """One line, never wrapped."""
        self._rich.print(text, soft_wrap=True)

    def heading(self, text: str) -> None:
        """A line that opens a part."""
        self._rich.print()
        self._rich.print(text, style="bold", soft_wrap=True)

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Names and values, one a line."""
        rows = [(name, str(value)) for name, value in pairs]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"  {name.ljust(width)}  {value}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table. A column whose name ends in ``>`` is right-aligned, None is an empty cell."""
        import rich.box
        import rich.table

        table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in columns:
            right = name.endswith(">")
            table.add_column(
                name.removesuffix(">"), justify="right" if right else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        if table.row_count:
            self._rich.print(table)


def size(count: int) -> str:
    """Bytes for people: ``1,024 B``, ``3.4 MiB``."""
    if count < 10 << 10:
        return f"{count:,} B"
    for unit, shift in (("KiB", 10), ("MiB", 20)):
        if count < 10000 << shift:
            return f"{count / (1 << shift):,.1f} {unit}"
    return f"{count / (1 << 30):,.1f} GiB"


def duration(seconds: float) -> str:
    """A time for people, with three digits that mean something: ``231 us``, ``1.25 ms``."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what torch, executorch and their C++ write to standard error; it is shown if the
    block raises."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
