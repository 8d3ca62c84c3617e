"""A reader of ``.pte`` files without torch: maps the file, parses what is asked, copies nothing.

    with PteFile.open("model.pte") as pte:
        method = pte.method("forward")
        delegate = method.sole_delegate()          # None when CPU kernels take part
        program = deserialize(delegate.data)
        wiring = method.wiring(len(program.inputs), len(program.outputs))
        weight = pte.named_data("layers.0.weight")  # a memoryview into the mapped file

A file is never trusted: whatever its bytes are, calls give a sensible answer or
InvalidProgramError. External data (``.ptd``) is not read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import format_limits as fl
from .errors import InvalidProgramError
from .flat import Budget, guarded
from .generated import pte_schema_generated as fb
from .pte_method import PteDelegate, PteMethod, PteTensor, Segments

__all__ = ["PteDelegate", "PteFile", "PteHeader", "PteMethod", "PteTensor"]

_IDENTIFIER = b"ET12"
_HEADER_MAGIC = b"eh00"
#: After the magic: bytes of the header, bytes of the flatbuffer, offset of the first segment.
_HEADER = struct.Struct("<IQQ")
#: The magic with these three.
_HEADER_BYTES = 4 + _HEADER.size


@dataclass(frozen=True, slots=True)
class PteHeader:
    """Where the parts of a file lie: bytes of the flatbuffer that the file opens with, and the
    byte from which segments count (0 when the file has none)."""

    program_bytes: int
    segment_base: int


class PteFile:
    """An open ``.pte`` file, or the bytes of one.

    ``methods``: names of its methods. ``named_data_keys``: keys of its named data. Both in file
    order. Memoryviews that come out stay valid after :meth:`close`: the mapping goes when the
    last one does.
    """

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        """Read from memory. ``name`` stands in messages. Raises InvalidProgramError."""
        self.name = name
        self._mapping: mmap.mmap | None = None
        self._setup(memoryview(data).cast("B"))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PteFile:
        """Map the file at ``path`` (its size does not matter: only its tables are read).

        Raises OSError when it cannot be opened and InvalidProgramError when it is no ``.pte``.
        """
        name = os.fspath(path)
        with open(name, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise InvalidProgramError(f"{name}: not a .pte file: it is empty")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        pte = cls.__new__(cls)
        pte.name = name
        pte._mapping = mapping
        try:
            pte._setup(memoryview(mapping))
        except InvalidProgramError:
            pte.close()
            raise
        return pte

    def _setup(self, view: memoryview) -> None:
        self._view: memoryview | None = view
        self.header = _read_header(view, self.name)
        with guarded(f"{self.name}: its program"):
            flat = view[: self.header.program_bytes]
            self._program = fb.Program.GetRootAs(flat, 0)
            #: For all that is ever read of this file.
            self._budget = budget = Budget.of(len(flat))
            self._segments = Segments(
                view, self.header.segment_base, self._segment_ranges(budget), self.name
            )
            self._plans = self._read_plans(budget)
            self._named = self._read_named(budget)
        self._methods: dict[str, PteMethod] = {}

    # -- what it holds -----------------------------------------------------------------------

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in file order."""
        return tuple(self._plans)

    @property
    def named_data_keys(self) -> tuple[str, ...]:
        """Keys of the named data, in file order."""
        return tuple(self._named)

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """(offset, size) in bytes of every segment, offsets from the start of the file."""
        return self._segments.ranges

    def method(self, name: str = "forward") -> PteMethod:
        """The method called ``name``, parsed on first use.

        Raises InvalidProgramError when there is none of that name or it is malformed.
        """
        self._check_open()
        if name not in self._plans:
            raise InvalidProgramError(
                f"{self.name}: no method {name!r}; it has {', '.join(self.methods) or 'none'}"
            )
        if name not in self._methods:
            place = f"{self.name}: method {name!r}"
            with guarded(place):
                self._methods[name] = PteMethod(
                    name,
                    self._plans[name],
                    self._program,
                    self._segments,
                    place,
                    self._budget,
                )
        return self._methods[name]

    def named_data(self, key: str) -> memoryview:
        """The bytes of the named data ``key``, without a copy.

        Raises InvalidProgramError when the file has no such key.
        """
        self._check_open()
        if key not in self._named:
            raise InvalidProgramError(
                f"{self.name}: no named data {key!r} among its {len(self._named)} keys; "
                "data in a separate .ptd file is not supported"
            )
        return self._segments.view(self._named[key], f"named data {key!r}")

    # -- lifetime ----------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the file. What was handed out stays valid; further calls raise ValueError."""
        self._view = None
        self._methods = {}
        self._program = None
        self._plans = dict.fromkeys(getattr(self, "_plans", {}))
        if hasattr(self, "_segments"):
            self._segments = Segments(None, 0, self._segments.ranges, self.name)
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # With views out, this fails and the mapping goes with the last of them.
            with contextlib.suppress(BufferError):
                mapping.close()

    def __enter__(self) -> PteFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._view is None:
            raise ValueError(f"{self.name} is closed")

    # -- parsing -----------------------------------------------------------------------------

    def _segment_ranges(self, budget: Budget) -> tuple[tuple[int, int], ...]:
        program, base = self._program, self.header.segment_base
        return budget.tables(
            program.SegmentsLength(),
            program.Segments,
            lambda t, place: (base + t.Offset(), t.Size()),
            fl.MAX_ELEMENTS,
            "segments",
        )

    def _read_plans(self, budget: Budget) -> dict[str, Any]:
        plans: dict[str, Any] = {}
        length = self._program.ExecutionPlanLength()
        for i in range(budget.count(length, fl.MAX_VALUES, "execution_plan")):
            plan = self._program.ExecutionPlan(i)
            name = budget.name(plan.Name(), f"execution_plan[{i}].name")
            if name in plans:
                raise InvalidProgramError(f"{self.name}: two methods are called {name!r}")
            plans[name] = plan
        return plans

    def _read_named(self, budget: Budget) -> dict[str, int]:
        program = self._program
        return dict(
            budget.tables(
                program.NamedDataLength(),
                program.NamedData,
                lambda t, place: (budget.name(t.Key(), f"{place}.key"), t.SegmentIndex()),
                fl.MAX_ELEMENTS,
                "named_data",
            )
        )


def _read_header(view: memoryview, name: str) -> PteHeader:
    """Check the identifier and the extended header against the size of the file."""
    size = len(view)
    if size < 8 or view[4:8] != _IDENTIFIER:
        found = f"found {bytes(view[4:8])!r}" if size >= 8 else f"found {size} bytes in all"
        raise InvalidProgramError(
            f"{name}: not a .pte file: expected identifier ET12 at byte 4, {found}"
        )
    if view[8:12] != _HEADER_MAGIC:
        return PteHeader(program_bytes=size, segment_base=0)  # a file without segments
    if size < 8 + _HEADER_BYTES:
        raise InvalidProgramError(f"{name}: truncated within its header, at byte {size}")
    header_bytes, program_bytes, segment_base = _HEADER.unpack_from(view, 12)
    if header_bytes < _HEADER_BYTES:
        raise InvalidProgramError(
            f"{name}: its header claims {header_bytes} bytes, at least {_HEADER_BYTES} expected"
        )
    if program_bytes > size:
        raise InvalidProgramError(
            f"{name}: truncated: its program takes {program_bytes} bytes, the file has {size}"
        )
    if segment_base > size:
        raise InvalidProgramError(
            f"{name}: truncated: its segments start at byte {segment_base}, the file has {size}"
        )
    return PteHeader(program_bytes, segment_base)
