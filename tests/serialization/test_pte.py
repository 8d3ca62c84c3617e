"""The torch-free reader against files that ExecuTorch wrote, and against garbage."""

from __future__ import annotations

import contextlib
import gc
import mmap
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executorch_wgpu.serialization import InvalidProgramError, PteFile
from executorch_wgpu.serialization.pte import PteTensor
from executorch_wgpu.serialization.pte_method import Source, SourceKind

BLOB = bytes(range(256)) * 5
WEIGHT = b"\x07" * 4096


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files written by make_pte.py, in a process of its own."""
    pytest.importorskip("executorch.exir", reason="needs ExecuTorch to write the files")
    path = tmp_path_factory.mktemp("pte")
    script = Path(__file__).with_name("make_pte.py")
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def float32(*shape: int) -> PteTensor:
    return PteTensor("float32", shape, tuple(range(len(shape))), dynamic=False, constant=False)


# -- what is in it ---------------------------------------------------------------------------


def test_fully_delegated(folder: Path) -> None:
    with PteFile.open(folder / "delegated.pte") as pte:
        assert pte.methods == ("forward",)
        method = pte.method()
        assert method is pte.method("forward")
        assert method.input_values == method.output_values == (float32(2, 3),) * 2
        assert method.cpu_operators == ()
        assert not method.is_metadata
        assert method.describe_instructions() == "1 x PteTestBackend"
        delegate = method.sole_delegate("PteTestBackend")
        assert delegate is not None
        assert delegate.id == "PteTestBackend"
        assert delegate.data == BLOB
        assert not delegate.inline
        assert delegate.compile_specs == (("level", b"\x03"),)
        assert method.sole_delegate() is None  # of ours there is none


def test_named_data(folder: Path) -> None:
    with PteFile.open(folder / "delegated.pte") as pte:
        assert pte.named_data_keys == ("layers.0.weight", "layers.1.weight")
        assert pte.named_data("layers.0.weight") == WEIGHT
        assert pte.named_data("layers.1.weight") == b"short"
        with pytest.raises(InvalidProgramError, match=r"no named data 'lost' among its 2 keys"):
            pte.named_data("lost")


def test_inline_delegate(folder: Path) -> None:
    with PteFile.open(folder / "inline.pte") as pte:
        delegate = pte.method().sole_delegate("PteTestBackend")
        assert delegate is not None
        assert delegate.inline
        assert delegate.data == BLOB
        assert pte.named_data("layers.0.weight") == WEIGHT


def test_cpu_operators(folder: Path) -> None:
    with PteFile.open(folder / "mixed.pte") as pte:
        method = pte.method()
        assert method.sole_delegate("PteTestBackend") is None
        assert len(method.delegate_calls) == 1
        assert {"aten::add.out", "aten::sub.out"} <= set(method.cpu_operators)
        assert "1 x PteTestBackend" in method.describe_instructions()
        with pytest.raises(InvalidProgramError, match=r"not one delegate call: it runs .*add.out"):
            method.wiring(2, 2)
    with PteFile.open(folder / "portable.pte") as pte:
        method = pte.method()
        assert method.delegates == ()
        assert "aten::mul.out" in method.cpu_operators
        assert pte.named_data_keys == ()


def test_lists_are_resolved(folder: Path) -> None:
    """A permutation is a list of ints, stored as indices of the method's values."""
    with PteFile.open(folder / "lists.pte") as pte:
        method = pte.method()
        assert method.cpu_operators == ("aten::permute_copy.out",)
        assert (1, 0, 2) in [method.value(i) for i in method.instructions[0].args]


def test_a_dynamic_int_is_none(folder: Path) -> None:
    with PteFile.open(folder / "ints.pte") as pte:
        method = pte.method()
        assert method.input_values == (float32(2), None)
        assert method.sole_delegate("PteTestBackend") is not None
        assert [s.kind for s in method.wiring(2, 1).delegate_inputs] == [SourceKind.ARGUMENT] * 2


def test_wiring(folder: Path) -> None:
    """forward(x, y) -> y, x + y, constant, 7, x - y: the delegate gives the sum and difference."""
    with PteFile.open(folder / "extras.pte") as pte:
        method = pte.method()
        wiring = method.wiring(2, 2)
        argument, delegate, constant = SourceKind.ARGUMENT, SourceKind.DELEGATE, SourceKind.CONSTANT
        assert {s.kind for s in wiring.delegate_inputs} == {argument}
        assert sorted(s.index for s in wiring.delegate_inputs) == [0, 1]
        y, total, fixed, seven, difference = wiring.method_outputs
        assert y == Source(argument, 1)
        assert {total.kind, difference.kind} == {delegate}
        assert {total.index, difference.index} == {0, 1}
        assert fixed.kind is seven.kind is constant
        assert method.value(seven.index) == 7
        assert struct.unpack("<2f", method.tensor_data(fixed.index)) == (1.5, -2.5)
        with pytest.raises(InvalidProgramError, match=r"passes 4 values .* 3 inputs and 2"):
            method.wiring(3, 2)
        with pytest.raises(InvalidProgramError, match="is no constant tensor"):
            method.tensor_data(seven.index)


def test_dynamic_shapes_and_metadata(folder: Path) -> None:
    with PteFile.open(folder / "dynamic.pte") as pte:
        assert pte.methods[0] == "forward"
        (x,) = pte.method().input_values
        assert x == PteTensor("float16", (16, 3), (0, 1), dynamic=True, constant=False)
        values = {
            name: pte.method(name).output_values
            for name in pte.methods
            if pte.method(name).is_metadata
        }
        assert values == {
            "get_max": (128,),
            "get_list": (1, 2, 3),
            "get_eps": (1e-5,),
            "use_cache": (True,),
            "get_name": ("llama",),
        }
        with pytest.raises(InvalidProgramError, match="no method 'decode'; it has forward, get_"):
            pte.method("decode")


def test_from_memory(folder: Path) -> None:
    data = (folder / "delegated.pte").read_bytes()
    pte = PteFile(data, "memory")
    assert pte.named_data("layers.0.weight") == WEIGHT
    with pytest.raises(InvalidProgramError, match="memory: no method"):
        pte.method("lost")


# -- lifetime --------------------------------------------------------------------------------


def test_views_outlive_the_file(folder: Path) -> None:
    with PteFile.open(folder / "delegated.pte") as pte:
        method = pte.method()
        view = pte.named_data("layers.0.weight")
    delegate = method.sole_delegate("PteTestBackend")
    assert delegate is not None
    gc.collect()
    assert isinstance(view.obj, mmap.mmap)
    assert view == WEIGHT
    assert delegate.data == BLOB
    for call in (pte.method, lambda: pte.named_data("layers.0.weight")):
        with pytest.raises(ValueError, match="is closed"):
            call()
    pte.close()  # twice is fine
    assert pte.methods == ("forward",)


def test_a_large_file_opens_at_once(folder: Path, tmp_path: Path) -> None:
    """500 MB, most of it a hole: nothing but its tables is read."""
    data = bytearray((folder / "delegated.pte").read_bytes())
    path = tmp_path / "large.pte"
    path.write_bytes(data)
    with open(path, "r+b") as file:
        file.truncate(500 << 20)
    start = time.process_time()
    with PteFile.open(path) as pte:
        assert pte.method().sole_delegate("PteTestBackend") is not None
        assert pte.named_data("layers.0.weight")[:4] == WEIGHT[:4]
    assert time.process_time() - start < 0.2  # usual: 1 ms


# -- garbage ---------------------------------------------------------------------------------


def look_at_everything(data: bytes) -> None:
    """Call whatever can be called; only InvalidProgramError may come."""
    try:
        pte = PteFile(data)
    except InvalidProgramError:
        return
    for key in pte.named_data_keys:
        with contextlib.suppress(InvalidProgramError):
            pte.named_data(key)
    for name in pte.methods:
        try:
            method = pte.method(name)
        except InvalidProgramError:
            continue
        for index in (*method.inputs, *method.outputs, 0, -1, 10**6):
            for look in (method.value, method.tensor_data):
                with contextlib.suppress(InvalidProgramError):
                    look(index)
        for ask in (lambda m=method: m.wiring(2, 2), lambda m=method: m.wiring(1, 1)):
            with contextlib.suppress(InvalidProgramError):
                ask()
        method.describe_instructions()
        method.sole_delegate("PteTestBackend")


def test_not_a_pte(tmp_path: Path) -> None:
    path = tmp_path / "other.bin"
    path.write_bytes(b"\x7fELF" + bytes(100))
    expected = r"other.bin: not a .pte file: expected identifier ET12 at byte 4, found b'\\x00"
    with pytest.raises(InvalidProgramError, match=expected):
        PteFile.open(path)
    path.write_bytes(b"")
    with pytest.raises(InvalidProgramError, match="it is empty"):
        PteFile.open(path)
    path.write_bytes(b"12345")
    with pytest.raises(InvalidProgramError, match="found 5 bytes in all"):
        PteFile.open(path)
    with pytest.raises(FileNotFoundError):
        PteFile.open(tmp_path / "missing.pte")


def test_every_truncation(folder: Path) -> None:
    """Each length is refused, or everything but the padding at the end was there."""
    data = (folder / "delegated.pte").read_bytes()
    for length in [*range(64), *range(64, len(data), 7), len(data) - 1]:
        with pytest.raises(InvalidProgramError):
            PteFile(data[:length])
    with pytest.raises(InvalidProgramError, match=r"truncated: segment 3 ends at byte \d+, the"):
        PteFile(data[:-1])
    with pytest.raises(InvalidProgramError, match="truncated: its program takes"):
        PteFile(data[:1000])


@pytest.mark.parametrize("name", ["inline", "extras", "mixed"])
def test_each_word_hostile(folder: Path, name: str) -> None:
    """Every word of the flatbuffer in turn becomes each of some bad values."""
    data = (folder / f"{name}.pte").read_bytes()
    (program_bytes,) = struct.unpack_from("<Q", data, 16)
    for position in range(0, program_bytes - 3, 4):
        for value in (0, 1, 0x7FFFFFFF):
            broken = bytearray(data)
            struct.pack_into("<I", broken, position, value)
            look_at_everything(bytes(broken))


def test_random_damage(folder: Path) -> None:
    generator = random.Random(3)
    data = (folder / "extras.pte").read_bytes()
    (program_bytes,) = struct.unpack_from("<Q", data, 16)
    for _ in range(1500):
        broken = bytearray(data)
        for _ in range(generator.choice((1, 4, 32))):
            broken[generator.randrange(program_bytes)] = generator.randrange(256)
        look_at_everything(bytes(broken))


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    look_at_everything(data)
    look_at_everything(b"\x10\0\0\0ET12" + data)
    look_at_everything(b"\x10\0\0\0ET12eh00" + struct.pack("<IQQ", 24, 100, 100) + data)
