"""Runtime, Program and Method on files written by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import Build, accumulator, chain, chain_reference, grid_of
from pte_files import MethodSpec, delegated, write_pte

from executorch_wgpu.runtime import (
    InvalidInputError,
    InvalidProgramError,
    NotDelegatedError,
    Runtime,
)
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType

TENSOR = ("tensor", "float32", [4])


def with_weight() -> Any:
    """y = weight * 2, of 8 float32 elements; x is not read."""
    b = Build()
    n = b.const(8)
    b.input("x", DType.F32, [n], None)
    w = b.buffer(BufferKind.CONSTANT, 32, "layers.0.weight", "w")
    y = b.output("y", DType.F32, [n], 32)
    b.simple(b.dispatch(b.affine(n, 2.0), [w, y], grid_of(b, n), "double"))
    return b.program()


@pytest.fixture(scope="module")
def pte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pte") / "model.pte"
    constants = [np.arange(6, dtype=np.float32).reshape(2, 3), 77]
    path.write_bytes(
        write_pte(
            [
                delegated("forward", chain(3, 100, dynamic=True)),
                delegated("count", accumulator()),
                delegated("weigh", with_weight()),
                MethodSpec("get_table", constants, [], [0, 1]),
            ],
            {"w": np.arange(8, dtype=np.float32).tobytes()},
        )
    )
    return path


def test_a_file_from_path_and_from_bytes(device: Any, pte: Path) -> None:
    x = np.ones(7, np.float32)
    for source in (pte, str(pte), pte.read_bytes()):
        program = Runtime.get().load_program(source)
        assert program.method_names == {"forward", "count", "weigh", "get_table"}
        method = program.load_method("forward")
        np.testing.assert_allclose(method.execute([x])[0], chain_reference(x, 3))
        assert method.last_profile() is None


def test_metadata(pte: Path) -> None:
    program = Runtime.get().load_program(pte)
    meta = program.metadata("forward")
    [x], [_y] = meta.inputs, meta.outputs
    assert (x.name, x.dtype, x.max_shape, x.shape[0].lo) == ("x", "float32", (100,), 0)
    assert str(meta) == "forward(x: float32[n]) -> (y: float32[n])"
    assert program.metadata("count").states == ("layers.0.state",)
    assert program.metadata("count").state_bytes == 32
    assert program.metadata("weigh").constant_bytes == 32
    assert str(program.metadata("get_table").outputs[1]) == "output1 = 77"


def test_states_belong_to_the_method(device: Any, pte: Path) -> None:
    program = Runtime.get().load_program(pte)
    one, two = program.load_method("count"), program.load_method("count")
    x, pos = np.arange(8, dtype=np.float32), np.array([0])
    one.execute([x, pos])
    assert one.execute([x, pos])[0].tolist() == (2 * x).tolist()
    assert two.execute([x, pos])[0].tolist() == x.tolist()
    assert one.state.names == ["layers.0.state"]
    assert one.state.read("layers.0.state").tolist() == (2 * x).tolist()
    one.state.write("layers.0.state", x)
    one.state.reset("layers.0.state")
    assert not one.state.read("layers.0.state").any()


def test_programs_of_one_file_share_constants(device: Any, pte: Path) -> None:
    methods = [Runtime.get().load_program(pte).load_method("weigh") for _ in range(2)]
    buffers = [method.graph._buffers[0] for method in methods if method.graph]
    assert buffers[0] is buffers[1] is not None
    for method in methods:
        out = method.execute([np.zeros(8, np.float32)])[0]
        assert out.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_method_of_constants(device: Any, pte: Path) -> None:
    method = Runtime.get().load_program(pte).load_method("get_table")
    table, number = method.execute([])
    assert table.tolist() == [[0, 1, 2], [3, 4, 5]] and number == 77
    table[:] = 0
    assert method.execute([])[0].any()
    assert method.state.names == [] and method.last_profile() is None and method.graph is None
    method.state.reset()
    with pytest.raises(InvalidInputError):
        method.state.read("x")


def test_the_delegates_order_is_not_the_methods(device: Any) -> None:
    """Method (unused, pos, x) -> (x, y, 5): an input the delegate does not see, others swapped, and
    outputs that are an input and a constant."""
    program = accumulator()
    spec = delegated("forward", program)
    spec.values += [("tensor", "float32", [2]), 5]
    spec.inputs, spec.outputs = [3, 1, 0], [0, 2, 4]
    method = Runtime.get().load_program(write_pte([spec])).load_method("forward")
    x, pos, unused = np.ones(8, np.float32), np.array([1]), np.zeros(2, np.float32)
    same, y, five = method.execute([unused, pos, x])
    assert same is x and y.tolist() == x.tolist() and five == 5
    assert [info.name for info in method.metadata.inputs] == ["input0", "pos", "x"]
    with pytest.raises(InvalidInputError, match=r"^forward: input 2 'x': expected shape"):
        method.execute([unused, pos, x[:3]])
    with pytest.raises(InvalidInputError, match=r"^forward: input 1 'pos': .*is 200"):
        method.execute([unused, np.array([200]), x])
    with pytest.raises(InvalidInputError, match=r"expected 3 inputs \(input0, pos, x\), got 1"):
        method.execute([x])


def test_a_constant_passed_to_the_delegate(device: Any) -> None:
    spec = delegated("forward", accumulator())
    spec.values[1] = np.array([3], np.int64)
    spec.inputs = [0]
    method = Runtime.get().load_program(write_pte([spec])).load_method("forward")
    assert method.execute([np.ones(8, np.float32)])[0].tolist() == [1.0] * 8


def test_torch_in_torch_out(device: Any, pte: Path) -> None:
    torch = pytest.importorskip("torch")
    method = Runtime.get().load_program(pte).load_method("forward")
    [y] = method.execute([torch.ones(5, requires_grad=True)])
    assert isinstance(y, torch.Tensor) and y.shape == (5,)


# -- what cannot be loaded -------------------------------------------------------------------


def test_files_that_are_not_there_or_not_pte(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Runtime.get().load_program(tmp_path / "none.pte")
    for content in (b"", b"not a pte file at all"):
        (tmp_path / "bad.pte").write_bytes(content)
        with pytest.raises(InvalidProgramError, match=r"bad\.pte"):
            Runtime.get().load_program(tmp_path / "bad.pte")
    with pytest.raises(TypeError, match="a path or bytes, got int"):
        Runtime.get().load_program(3)  # type: ignore[arg-type]


def test_unknown_method(pte: Path) -> None:
    program = Runtime.get().load_program(pte)
    for call in (program.load_method, program.metadata, program.dispatch_list):
        with pytest.raises(InvalidInputError, match="no method 'nope'; there are: forward, count"):
            call("nope")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            MethodSpec(
                "forward",
                [TENSOR, TENSOR, TENSOR],
                [0],
                [2],
                [("kernel", 0, [0, 1]), ("delegate", 0, [1, 2])],
                [("WgpuBackend", b"")],
                [("aten::sin", "out")],
            ),
            r"not fully delegated; the operators aten::sin\.out are not ours.*register\(\)",
        ),
        (
            MethodSpec(
                "forward",
                [TENSOR, TENSOR],
                [0],
                [1],
                [("delegate", 0, [0, 1])],
                [("XnnpackBackend", b"")],
            ),
            "delegated to XnnpackBackend, not to WgpuBackend",
        ),
        (
            MethodSpec(
                "forward",
                [TENSOR, TENSOR, TENSOR],
                [0],
                [2],
                [("delegate", 0, [0, 1]), ("delegate", 1, [1, 2])],
                [("WgpuBackend", b""), ("WgpuBackend", b"")],
            ),
            "not one delegate call, it runs 2 x WgpuBackend",
        ),
    ],
)
def test_methods_that_are_not_wholly_ours(spec: MethodSpec, message: str) -> None:
    program = Runtime.get().load_program(write_pte([spec]))
    for call in (program.load_method, program.metadata):
        with pytest.raises(NotDelegatedError, match=message):
            call("forward")


def test_a_payload_that_is_no_dispatch_list() -> None:
    spec = delegated("forward", chain(1, 4))
    spec.delegates = [("WgpuBackend", b"garbage")]
    with pytest.raises(InvalidProgramError):
        Runtime.get().load_program(write_pte([spec])).load_method("forward")


def test_data_that_the_file_lacks(device: Any) -> None:
    program = Runtime.get().load_program(write_pte([delegated("weigh", with_weight())]))
    with pytest.raises(InvalidProgramError, match="'w'"):
        program.load_method("weigh")


def test_the_runtime_is_one() -> None:
    assert Runtime.get() is Runtime.get()


# -- independence ----------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
for name in ("torch", "executorch", "executorch_wgpu.ops", "executorch_wgpu.backend"):
    sys.modules[name] = None  # importing it raises ImportError
import numpy as np
from executorch_wgpu.runtime import Runtime
method = Runtime.get().load_program(sys.argv[1]).load_method("forward")
[y] = method.execute([np.ones(5, np.float32)])
assert y.shape == (5,) and np.isfinite(y).all()
loaded = [name for name in ("profiling", "query_pool") if f"executorch_wgpu.runtime.{name}" in sys.modules]
assert not loaded, loaded
"""  # noqa: E501


def test_without_torch_nothing_printed_and_no_profiler_loaded(device: Any, pte: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(pte)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "" and "XDG_RUNTIME_DIR" not in ran.stderr, ran.stderr
