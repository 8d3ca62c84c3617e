"""Careful access to flatbuffers that cannot be trusted.

The Python package of flatbuffers has no verifier: an offset may point anywhere, a vector may claim
four billion elements, and many offsets may point at one table, so that a small file unfolds into
a huge tree. Two rules make reading safe: everything read is charged to a :class:`Budget` *before*
it is built, and whatever Python raises on a wild offset becomes one InvalidProgramError, in
:func:`guarded`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import format_limits as fl
from .errors import InvalidProgramError

E = TypeVar("E", bound=IntEnum)
T = TypeVar("T")

#: What following a wild offset can raise: struct.error from a read past the end, IndexError and
#: ValueError from slices and numpy, TypeError and OverflowError from numbers that are no offsets,
#: AttributeError from an absent table that must be there.
_WILD = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError)


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn what a malformed flatbuffer makes Python raise into InvalidProgramError."""
    try:
        yield
    except InvalidProgramError:
        raise
    except _WILD as error:
        raise InvalidProgramError(
            f"{what} is malformed: {type(error).__name__}: {error}"
        ) from error


class Budget:
    """What one file may still unfold into.

    ``elements``: vector elements, at most the size of the file in bytes, because an honest writer
    spends at least one byte on each. ``chars``: characters of text, and bytes that are copied.
    """

    __slots__ = ("_chars", "_elements", "_limits")

    def __init__(self, elements: int, chars: int) -> None:
        self._elements = elements
        self._chars = chars
        self._limits = (elements, chars)

    @classmethod
    def of(cls, file_bytes: int) -> Budget:
        """What a flatbuffer of ``file_bytes`` may unfold into."""
        chars = file_bytes * fl.TEXT_CHARS_A_BYTE + fl.MAX_NAME_CHARS
        return cls(min(file_bytes, fl.MAX_ELEMENTS), min(chars, fl.MAX_TEXT_CHARS))

    def count(self, length: int, limit: int, place: str) -> int:
        """Charge a vector of ``length`` elements, of which at most ``limit`` are allowed."""
        if length > limit:
            raise InvalidProgramError(f"{place} has {length} elements, at most {limit} are allowed")
        self._elements -= length
        if self._elements < 0:
            raise InvalidProgramError(
                f"{place}: the file unfolds into more than {self._limits[0]} elements"
            )
        return length

    def text(self, raw: bytes | str | None, place: str) -> str:
        """Decode a string field (None, the absent one, is "") and charge its characters."""
        if not raw:
            return ""
        self._chars -= len(raw)
        if self._chars < 0:
            raise InvalidProgramError(
                f"{place}: the file unfolds into more than {self._limits[1]} characters of text"
            )
        try:
            return raw.decode("utf-8") if isinstance(raw, bytes) else raw
        except UnicodeDecodeError as error:
            raise InvalidProgramError(f"{place} is not UTF-8: {error}") from error

    def name(self, raw: bytes | str | None, place: str) -> str:
        """Decode a text that messages and listings show: one printable line."""
        found = self.text(raw, place)
        if not found.isprintable():
            raise InvalidProgramError(f"{place}: {found[:80]!r} cannot be printed")
        return found

    def copy(self, length: int, as_numpy: Callable[[], npt.NDArray[Any]], place: str) -> bytes:
        """Copy a vector of bytes out of the file, charged as text is."""
        if not length:
            return b""
        self._chars -= length
        if self._chars < 0:
            raise InvalidProgramError(
                f"{place}: the file unfolds into more than {self._limits[1]} bytes"
            )
        return as_numpy().tobytes()

    def texts(
        self, length: int, get: Callable[[int], bytes | str], limit: int, place: str
    ) -> tuple[str, ...]:
        """Decode a vector of strings."""
        if not length:
            return ()
        self.count(length, limit, place)
        return tuple(self.text(get(i), f"{place}[{i}]") for i in range(length))

    def tables(
        self,
        length: int,
        get: Callable[[int], Any],
        build: Callable[[Any, str], T],
        limit: int,
        place: str,
    ) -> tuple[T, ...]:
        """Build one ``T`` from each table of a vector; ``build`` is given the table's place."""
        if not length:
            return ()
        self.count(length, limit, place)
        return tuple(build(get(i), f"{place}[{i}]") for i in range(length))

    def numbers(
        self, length: int, as_numpy: Callable[[], npt.NDArray[Any]], limit: int, place: str
    ) -> tuple[int, ...]:
        """Read a vector of scalars through numpy (a view: nothing is allocated on a lie)."""
        if not length:
            return ()
        self.count(length, limit, place)
        return tuple(as_numpy().tolist())

    def structs(
        self, length: int, first: Callable[[int], Any], dtype: np.dtype[Any], limit: int, place: str
    ) -> list[tuple[Any, ...]]:
        """Read a vector of structs of layout ``dtype`` at once. ``first(0)`` is its first element,
        which says where the vector lies."""
        if not length:
            return []
        self.count(length, limit, place)
        table = first(0)._tab
        rows: list[tuple[Any, ...]] = np.frombuffer(table.Bytes, dtype, length, table.Pos).tolist()
        return rows


def enum_member(kind: type[E], number: int, place: str) -> E:
    """The member of ``kind`` with ``number``. Raises InvalidProgramError for an unknown one."""
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{member.value} {member.name}" for member in kind)
        raise InvalidProgramError(
            f"{place}: {kind.__name__} {number} is unknown (known: {known})"
        ) from None
