"""The 24 bytes in front of the flatbuffer (layout: see ``schema.fbs``).

A flatbuffer does not know its own size, so a truncated one or one with bytes behind it can look
whole. The header says the size and a checksum, and the version before anything is parsed.
"""

from __future__ import annotations

import struct
import zlib

from .dispatch_list import FORMAT_VERSION
from .errors import InvalidProgramError
from .format_limits import MAX_PAYLOAD_BYTES

MAGIC = b"WgpuList"
_HEADER = struct.Struct("<8sIIQ")
HEADER_BYTES = _HEADER.size


def _checksum(version: int, body: bytes | memoryview) -> int:
    """crc32 over the version, the size and the body: a flipped bit anywhere is found."""
    return zlib.crc32(body, zlib.crc32(struct.pack("<IQ", version, len(body))))


def pack(version: int, body: bytes) -> bytes:
    """Put the header in front of the flatbuffer ``body``.

    Raises InvalidProgramError when the result would be larger than any reader accepts.
    """
    total = HEADER_BYTES + len(body)
    if total > MAX_PAYLOAD_BYTES:
        raise InvalidProgramError(
            f"the dispatch list takes {total} bytes, more than the {MAX_PAYLOAD_BYTES} allowed"
        )
    return _HEADER.pack(MAGIC, version, _checksum(version, body), len(body)) + body


def unpack(data: memoryview) -> tuple[int, memoryview]:
    """Check the header of ``data`` and return the format version and the flatbuffer.

    Raises InvalidProgramError for everything that is not a whole payload of a known version.
    """
    size = len(data)
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidProgramError(
            f"dispatch list of {size} bytes, more than the {MAX_PAYLOAD_BYTES} allowed"
        )
    if size < HEADER_BYTES:
        raise InvalidProgramError(
            f"not a dispatch list: {size} bytes, fewer than its header of {HEADER_BYTES}"
        )
    magic, version, checksum, body_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InvalidProgramError(
            f"not a dispatch list: expected {MAGIC!r} at byte 0, found {magic!r}"
        )
    if version > FORMAT_VERSION:
        raise InvalidProgramError(
            f"dispatch list of format version {version}; this executorch-wgpu reads up to "
            f"version {FORMAT_VERSION}: install a newer one or export again"
        )
    if version < 1:
        raise InvalidProgramError(f"dispatch list of format version {version}, which never was")
    body = data[HEADER_BYTES:]
    if body_bytes != len(body):
        what = "truncated" if body_bytes > len(body) else "followed by other bytes"
        raise InvalidProgramError(
            f"dispatch list {what}: its header says {body_bytes} bytes after the header, "
            f"there are {len(body)}"
        )
    found = _checksum(version, body)
    if found != checksum:
        raise InvalidProgramError(
            f"dispatch list corrupted: its header says crc32 {checksum:#010x}, "
            f"its bytes give {found:#010x}"
        )
    return version, body
