"""Programs survive being written and read, byte for byte and field for field."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from program_examples import example, llama_like, programs

from executorch_wgpu.serialization import (
    FORMAT_VERSION,
    InvalidProgramError,
    Program,
    deserialize,
    serialize,
    verify,
)


def test_example() -> None:
    program = example()
    data = serialize(program)
    assert deserialize(data) == program
    assert deserialize(memoryview(bytearray(data))) == program


def test_empty_program() -> None:
    assert deserialize(serialize(Program(producer=""))) == Program(producer="")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_any_program(program: Program) -> None:
    data = serialize(program)
    again = deserialize(data)
    assert again == program
    assert serialize(again) == data  # the same program, the same bytes


def test_llama_like_is_quick() -> None:
    """Generous bounds, in CPU time: the machine may be shared. Usual: 12, 40 and 60 ms."""
    program = llama_like()
    start = time.process_time()
    verify(program)
    verified = time.process_time()
    data = serialize(program)
    written = time.process_time()
    assert deserialize(data) == program
    read = time.process_time()
    assert verified - start < 0.25
    assert written - verified < 1.0
    assert read - written < 1.0
    assert len(data) < 1 << 20


def test_another_version_is_not_written() -> None:
    for version in (0, FORMAT_VERSION + 1):
        with pytest.raises(InvalidProgramError, match=f"version {version}"):
            serialize(replace(example(), format_version=version))


def test_an_invalid_program_is_not_written() -> None:
    with pytest.raises(InvalidProgramError, match=r"live\[0\]: index 99 into exprs"):
        serialize(replace(example(), live=(99,)))


def test_requirements_of_the_program() -> None:
    program = replace(
        example(), features=("shader-f16", "subgroups"), limits=(("max-buffer-size", 1 << 33),)
    )
    assert deserialize(serialize(program)) == program
