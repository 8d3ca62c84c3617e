"""Constants on their way into the ``.pte``, without a copy of them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from executorch.exir._serialize._cord import FileBackedData


class ArrayData(FileBackedData):
    """The bytes of an array, read when the file is written.

    ExecuTorch keeps named data as bytes, which a weight would have to be copied into, or as this
    class, whose bytes lie elsewhere: on disk in its own use, in the exported program's tensor
    here, or in several of them, which are put together while they are written. So lowering takes
    no memory for weights. As with the constants that ExecuTorch writes itself, a weight that is
    changed between lowering and ``to_executorch`` is written changed.
    """

    def __init__(self, read: Callable[[], np.ndarray], size: int, identity: str) -> None:
        """``read`` gives the content, ``size`` bytes, contiguous. ``identity`` tells contents
        apart: equal ones have equal identities, others have others."""
        self._read, self._size = read, size
        self._digest = hashlib.sha256(identity.encode()).digest()

    @property
    def _bytes(self) -> memoryview:
        return memoryview(self._read().reshape(-1).view(np.uint8))

    def __len__(self) -> int:
        return self._size

    def __deepcopy__(self, memo: dict[int, Any]) -> ArrayData:
        return self

    def prefix(self, size: int) -> bytes:
        """The first ``size`` bytes."""
        return bytes(self._bytes[:size])

    def sha256(self) -> bytes:
        """Of the identity: whoever asks wants to know which contents are equal, and gigabytes
        have been hashed once for that already."""
        return self._digest

    def to_bytes(self) -> bytes:
        """A copy."""
        return bytes(self._bytes)

    def write_to_file(self, outfile: io.BufferedIOBase) -> None:
        """Write all of it."""
        outfile.write(self._bytes)

    def close(self) -> None:
        """Nothing: there is no file."""
