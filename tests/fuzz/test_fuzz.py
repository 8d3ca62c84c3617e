"""A fixed number of fuzzed inputs, what once was a fault, and how much a hostile file may cost.

For hours of it: scripts/fuzz."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mutations import mutate  # noqa: E402
from seeds import DATA, seed_programs, seeds  # noqa: E402
from targets import TARGETS, look  # noqa: E402

from executorch_wgpu.runtime.errors import WgpuDelegateError  # noqa: E402
from executorch_wgpu.runtime.metadata import describe_values  # noqa: E402
from executorch_wgpu.runtime.program import Runtime  # noqa: E402
from executorch_wgpu.runtime.states import views_of  # noqa: E402
from executorch_wgpu.serialization import (  # noqa: E402
    Buffer,
    BufferKind,
    Expr,
    ExprOp,
    InvalidProgramError,
    Output,
    Program,
    PteFile,
    Tensor,
    ValueKind,
    verify,
)
from executorch_wgpu.serialization.dispatch_list import DType  # noqa: E402
from executorch_wgpu.serialization.generated import pte_schema_generated as fb  # noqa: E402

from program_examples import programs  # isort: skip  # noqa: E402


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(seed_programs()), st.randoms(use_true_random=False))
def test_mutated_lists(base: Program, rng: Any) -> None:
    """Refused by name, or all of the host's work on it gives something."""
    program = mutate(base, rng)
    try:
        verify(program)
    except InvalidProgramError:
        return
    look(program)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.randoms(use_true_random=False))
def test_any_list_and_its_mutant(base: Program, rng: Any) -> None:
    look(base)
    test_mutated_lists.hypothesis.inner_test(base, rng)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(seeds("pte")), st.randoms(use_true_random=False))
def test_mutated_files(base: bytes, rng: Any) -> None:
    data = bytearray(base)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, how = rng.randrange(len(data)), rng.randrange(3)
        if how == 0:
            data[at] = rng.randrange(256)
        else:
            word = rng.choice((0, 1, 4, 0x7FFFFFFF, 0xFFFFFFFF, len(data), rng.randrange(256)))
            at = at // 4 * 4
            data[at : at + 4] = word.to_bytes(4, "little")
    TARGETS.pte(bytes(data))


def test_replayed_mutants() -> None:
    """Loaded and run on the device, in a process of its own: a fault may end it."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import run; "
        "run.replay_worker(5000, 400, Path(sys.argv[2]))"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("EXECUTORCH_WGPU_LOOP_BOUNDING", raising=False)
        folder = HERE.parents[1] / "build"
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", code, str(HERE), str(folder / "replayed")],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, (folder / "replayed.seed").read_text() + done.stderr


@pytest.mark.parametrize("target", ["list", "pte"])
def test_coverage_guided(target: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="the extra `fuzz` is not installed")
    for i, data in enumerate(seeds(target)):
        (tmp_path / str(i)).write_bytes(data)
    done = subprocess.run(
        [sys.executable, HERE / "run.py", "--worker", target, str(tmp_path), "-runs=5000"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("path", sorted(DATA.glob("*-*")), ids=lambda path: path.name)
def test_what_was_a_fault(path: Path) -> None:
    getattr(TARGETS, path.name.split("-")[0])(path.read_bytes())


# -- what a small file may cost -------------------------------------------------------------


def costs(act: Callable[[], object]) -> int:
    """Bytes that ``act`` allocates at its peak; it must be refused or succeed."""
    tracemalloc.start()
    try:
        act()
    except WgpuDelegateError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def vector(b: flatbuffers.Builder, offset: int, count: int) -> int:
    b.StartVector(4, count, 4)
    for _ in range(count):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def table(b: flatbuffers.Builder, name: str, **fields: int) -> int:
    getattr(fb, f"{name}Start")(b)
    for field, value in fields.items():
        getattr(fb, f"{name}Add{field}")(b, value)
    return int(getattr(fb, f"{name}End")(b))


def one_plan(b: flatbuffers.Builder, **fields: int) -> bytes:
    name = b.CreateString("forward")
    plan = table(b, "ExecutionPlan", Name=name, **fields)
    b.Finish(table(b, "Program", ExecutionPlan=vector(b, plan, 1)), b"ET12")
    return bytes(b.Output())


def many_instructions() -> bytes:
    """4,000 chains that are one, of 500 instructions that are one: two million from 20 kB."""
    b = flatbuffers.Builder(0)
    call = table(b, "FreeCall", ValueIndex=0)
    one = table(b, "Instruction", InstrArgsType=fb.InstructionArguments.FreeCall, InstrArgs=call)
    chain = table(b, "Chain", Instructions=vector(b, one, 500))
    return one_plan(b, Chains=vector(b, chain, 4000))


def many_lists() -> bytes:
    """4,000 inputs that are one list of 60,000 numbers."""
    b = flatbuffers.Builder(0)
    items = b.CreateNumpyVector(np.zeros(60_000, np.float64))
    numbers = table(b, "DoubleList", Items=items)
    value = table(b, "EValue", ValType=fb.KernelTypes.DoubleList, Val=numbers)
    values = vector(b, value, 4000)
    inputs = b.CreateNumpyVector(np.arange(4000, dtype=np.int32))
    return one_plan(b, Values=values, Inputs=inputs)


def many_copies() -> bytes:
    """4,000 compile specs that are one of a megabyte."""
    b = flatbuffers.Builder(0)
    data, key, name = b.CreateByteVector(bytes(1 << 20)), b.CreateString("k"), b.CreateString("B")
    specs = vector(b, table(b, "CompileSpec", Key=key, Value=data), 4000)
    where = table(b, "BackendDelegateDataReference", Location=fb.DataLocation.INLINE, Index=0)
    delegate = table(b, "BackendDelegate", Id=name, Processed=where, CompileSpecs=specs)
    inline = table(b, "BackendDelegateInlineData", Data=data)
    plan = table(
        b, "ExecutionPlan", Name=b.CreateString("forward"), Delegates=vector(b, delegate, 1)
    )
    program = table(
        b,
        "Program",
        ExecutionPlan=vector(b, plan, 1),
        BackendDelegateData=vector(b, inline, 1),
    )
    b.Finish(program, b"ET12")
    return bytes(b.Output())


@pytest.mark.parametrize("make", [many_instructions, many_lists, many_copies])
def test_a_small_file_costs_little(make: Callable[[], bytes]) -> None:
    data = make()

    def read() -> None:
        method = PteFile(data).method("forward")
        _ = method.input_values

    # The most that an element costs: an instruction with its arguments, a few hundred bytes.
    assert costs(read) < 64 * len(data) + (8 << 20)


def test_what_is_shown_can_be_printed() -> None:
    b = flatbuffers.Builder(0)
    plan = table(b, "ExecutionPlan", Name=b.CreateString("\x1b[2Jforward"))
    b.Finish(table(b, "Program", ExecutionPlan=vector(b, plan, 1)), b"ET12")
    with pytest.raises(InvalidProgramError, match=r"execution_plan\[0\].name: .* cannot be pr"):
        PteFile(bytes(b.Output()))


def test_a_constant_whose_dim_order_is_none() -> None:
    b = flatbuffers.Builder(0)
    sizes = b.CreateNumpyVector(np.array([2, 3], np.int32))
    order = b.CreateNumpyVector(np.array([0, 0], np.uint8))
    tensor = table(b, "Tensor", ScalarType=6, Sizes=sizes, DimOrder=order, DataBufferIdx=1)
    value = table(b, "EValue", ValType=fb.KernelTypes.Tensor, Val=tensor)
    data = one_plan(
        b,
        Values=vector(b, value, 1),
        Outputs=b.CreateNumpyVector(np.array([0], np.int32)),
    )
    program = Runtime.get().load_program(data)
    with pytest.raises(InvalidProgramError, match=r"shape \(2, 3\) has the dim order \(0, 0\)"):
        program.load_method("forward")


def test_many_shapes_of_deep_expressions() -> None:
    """65,000 dimensions over 60,000 expressions, and as many states as tensors: each looked at
    once, not each for each."""
    exprs = [Expr(ExprOp.CONST, 1), Expr(ExprOp.CONST, 0)]
    exprs += [Expr(ExprOp.MIN, i - 1, 0) for i in range(2, 60_000)]
    shapes = [tuple(range(2 + 14 * i, 16 + 14 * i)) for i in range(4000)]
    outputs = [Buffer(BufferKind.OUTPUT, 4, f"y{i}") for i in range(len(shapes))]
    states = [Buffer(BufferKind.STATE, 4, f"s{i}") for i in range(20_000)]
    tensors = [Tensor(DType.F32, s, (0,) * 14, 1, i) for i, s in enumerate(shapes)]
    tensors += [Tensor(DType.F32, (0,), (0,), 1, len(outputs) + i) for i in range(len(states))]
    program = Program(
        producer="",
        exprs=tuple(exprs),
        buffers=(*outputs, *states),
        tensors=tuple(tensors),
        outputs=tuple(Output("y", ValueKind.TENSOR, i) for i in range(len(shapes))),
    )
    assert len(describe_values(program, program.outputs)) == len(shapes)
    views = views_of(program)
    assert len(views) == len(states) and {view.shape for view in views.values()} == {(1,)}
