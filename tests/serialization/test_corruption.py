"""Whatever the bytes are, reading gives a program or InvalidProgramError, soon."""

from __future__ import annotations

import random
import struct
import zlib

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_examples import example

from executorch_wgpu.serialization import (
    FORMAT_VERSION,
    InvalidProgramError,
    Program,
    deserialize,
    serialize,
    verify,
)
from executorch_wgpu.serialization.container import HEADER_BYTES, MAGIC, pack
from executorch_wgpu.serialization.format_limits import MAX_PAYLOAD_BYTES
from executorch_wgpu.serialization.generated import schema_generated as fb

DATA = serialize(example())
BODY = DATA[HEADER_BYTES:]


def refused(data: bytes, match: str | None = None) -> None:
    with pytest.raises(InvalidProgramError, match=match):
        deserialize(data)


def refused_or_valid(data: bytes) -> bool:
    """Read a body whose checksum is right, as one made on purpose would have. True if refused."""
    try:
        program = deserialize(data)
    except InvalidProgramError:
        return True
    verify(program)  # what is accepted is valid
    return False


def test_every_truncation() -> None:
    for length in range(len(DATA)):
        refused(DATA[:length])
    refused(b"", "0 bytes, fewer than its header")
    refused(DATA[:-1], "truncated: its header says")


def test_trailing_bytes() -> None:
    for extra in (b"\0", b"\0" * 16, DATA):
        refused(DATA + extra, "followed by other bytes")


def test_every_bit_flip() -> None:
    """The checksum finds each. Every bit of the header, one bit of each byte behind it."""
    for position in range(len(DATA)):
        for bit in range(8) if position < HEADER_BYTES else (position % 8,):
            broken = bytearray(DATA)
            broken[position] ^= 1 << bit
            refused(bytes(broken))


def test_wrong_magic_and_version() -> None:
    refused(b"ZgpuList" + DATA[8:], "expected b'WgpuList' at byte 0, found b'ZgpuList'")
    newer = struct.pack("<I", FORMAT_VERSION + 1)
    refused(DATA[:8] + newer + DATA[12:], f"version {FORMAT_VERSION + 1}; .* up to version")
    refused(DATA[:8] + bytes(4) + DATA[12:], "version 0, which never was")


def test_wrong_identifier() -> None:
    refused(pack(FORMAT_VERSION, BODY[:4] + b"ET12" + BODY[8:]), "identifier b'EWG1' at byte 28")


def test_too_large() -> None:
    refused(bytes(MAX_PAYLOAD_BYTES + 1), "more than the")
    with pytest.raises(InvalidProgramError, match="more than the"):
        pack(FORMAT_VERSION, bytes(MAX_PAYLOAD_BYTES))


def test_not_bytes() -> None:
    with pytest.raises(InvalidProgramError, match="not bytes"):
        deserialize("text")  # type: ignore[arg-type]


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    refused(data)
    refused(MAGIC + data)
    assert refused_or_valid(pack(FORMAT_VERSION, BODY[:8] + data) if len(data) else b"")


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_hostile_words(data: st.DataObject) -> None:
    """Offsets, lengths and numbers replaced, the checksum made right again."""
    body = bytearray(BODY)
    words = len(body) // 4
    for _ in range(data.draw(st.integers(1, 3))):
        value = data.draw(
            st.one_of(
                st.sampled_from([0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(body)]),
                st.integers(0, len(body)),
            )
        )
        struct.pack_into("<I", body, 4 * data.draw(st.integers(0, words - 1)), value)
    refused_or_valid(pack(FORMAT_VERSION, bytes(body)))


def test_each_word_hostile() -> None:
    """Every word of the file in turn becomes each of some bad values."""
    refusals = 0
    for position in range(0, len(BODY) - 3, 4):
        for value in (0, 0x7FFFFFFF):
            body = bytearray(BODY)
            struct.pack_into("<I", body, position, value)
            refusals += refused_or_valid(pack(FORMAT_VERSION, bytes(body)))
    assert refusals > len(BODY) // 4


def test_random_bytes_flipped() -> None:
    generator = random.Random(7)
    for _ in range(1500):
        body = bytearray(BODY)
        for _ in range(generator.choice((1, 2, 8, 64))):
            body[generator.randrange(len(body))] = generator.randrange(256)
        refused_or_valid(pack(FORMAT_VERSION, bytes(body)))


def test_checksum_is_crc32() -> None:
    """The header as schema.fbs documents it, for players in other languages."""
    magic, version, checksum, size = struct.unpack_from("<8sIIQ", DATA)
    assert (magic, version, size) == (b"WgpuList", 1, len(DATA) - 24)
    assert checksum == zlib.crc32(DATA[8:12] + DATA[16:24] + DATA[24:])


# -- files built by hand, with a right checksum ----------------------------------------------


def vector(builder: flatbuffers.Builder, offset: int, count: int = 1) -> int:
    """A vector of ``count`` references to one thing."""
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def table(builder: flatbuffers.Builder, name: str, **fields: int) -> int:
    getattr(fb, f"{name}Start")(builder)
    for field, value in fields.items():
        getattr(fb, f"{name}Add{field}")(builder, value)
    return int(getattr(fb, f"{name}End")(builder))


def payload(builder: flatbuffers.Builder, **fields: int) -> bytes:
    builder.Finish(table(builder, "Program", **fields), b"EWG1")
    return pack(FORMAT_VERSION, bytes(builder.Output()))


@pytest.mark.parametrize("routes", [60, 10**6])
def test_many_offsets_to_one_table_do_not_explode(routes: int) -> None:
    """3000 steps that are one step, of routes that are one route, of 3000 dispatches that are
    one: a small file that would unfold into half a billion dispatches."""
    builder = flatbuffers.Builder(0)
    fb.DispatchStart(builder)
    fb.DispatchAddGrid(builder, fb.CreateGrid(builder, 0, 0, 0))
    dispatches = vector(builder, fb.DispatchEnd(builder), 3000)
    route = table(builder, "Route", Dispatches=dispatches)
    step = table(builder, "Step", Routes=vector(builder, route, routes))
    data = payload(builder, Steps=vector(builder, step, 3000))
    refused(data, "unfolds into more than|at most")


def test_one_long_text_many_times_does_not_explode() -> None:
    builder = flatbuffers.Builder(0)
    text = builder.CreateString("x" * 2_000_000)
    data = payload(builder, Features=vector(builder, text, 64))
    refused(data, r"features\[8\]: the file unfolds into more than 16003552 characters")


def test_a_vector_that_claims_too_much() -> None:
    builder = flatbuffers.Builder(0)
    builder.StartVector(4, 3, 4)
    for i in range(3):
        builder.PrependInt32(i)
    data = payload(builder, Live=builder.EndVector())
    body = data[HEADER_BYTES:].replace(
        struct.pack("<4I", 3, 2, 1, 0), struct.pack("<4I", 200, 2, 1, 0)
    )
    assert len(body) == len(data) - HEADER_BYTES and body != data[HEADER_BYTES:]
    refused(pack(FORMAT_VERSION, body), "live|malformed")


def test_missing_structs_are_named() -> None:
    builder = flatbuffers.Builder(0)
    data = payload(builder, Kernels=vector(builder, table(builder, "Kernel")))
    refused(data, r"kernels\[0\] has no workgroup_size")


def test_unknown_enum_is_named() -> None:
    builder = flatbuffers.Builder(0)
    data = payload(builder, Buffers=vector(builder, table(builder, "Buffer", Kind=9)))
    refused(data, r"buffers\[0\]\.kind: BufferKind 9 is unknown \(known: 0 INPUT, ")


def test_text_that_is_no_utf8() -> None:
    builder = flatbuffers.Builder(0)
    text = builder.CreateString(b"\xff\xfe")
    refused(payload(builder, Producer=text), "producer is not UTF-8")


def test_an_empty_program_is_small() -> None:
    assert len(serialize(Program(producer=""))) < 64
