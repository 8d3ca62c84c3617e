"""WebGPUGraph on a real device: chains, live scalars, routes, states, what is refused."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from programs import (
    AFFINE,
    LIVE,
    MAIN,
    Build,
    R,
    W,
    X,
    Y,
    accumulator,
    chain,
    chain_reference,
    grid_of,
)

from executorch_wgpu.runtime.device import is_native
from executorch_wgpu.runtime.errors import (
    DeviceLostError,
    InvalidInputError,
    WgpuDelegateError,
)
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import (
    BufferKind,
    DType,
    ExprOp,
    Input,
    Output,
    Param,
    ParamKind,
    Route,
    SymSource,
    ValueKind,
)

RNG = np.random.default_rng(0)


# -- chains ----------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [1, 2, 3, 16, 128])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096])
def test_chain(device: Any, links: int, size: int) -> None:
    x = RNG.standard_normal(size, np.float32)
    [y] = WebGPUGraph(device, chain(links, size), label="chain").execute([x])
    np.testing.assert_allclose(y, chain_reference(x, links), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("links", [1, 8])
def test_chain_of_a_million(device: Any, links: int) -> None:
    x = RNG.standard_normal(1024 * 1024, np.float32)
    [y] = WebGPUGraph(device, chain(links, x.size), label="chain").execute([x])
    np.testing.assert_allclose(y, chain_reference(x, links), rtol=1e-6, atol=1e-6)


def test_live_dimension_with_poison(device: Any) -> None:
    graph = WebGPUGraph(device, chain(5, 1000, dynamic=True), label="chain", poison=True)
    for n in (1000, 1, 0, 64, 999, 1000):
        x = RNG.standard_normal(n, np.float32)
        [y] = graph.execute([x])
        assert y.shape == (n,)
        np.testing.assert_allclose(y, chain_reference(x, 5), rtol=1e-6, atol=1e-6)


def test_poison_shows_what_a_program_reads_and_never_wrote(device: Any) -> None:
    b = Build()
    n = b.const(64)
    b.input("x", DType.F32, [n], 256)
    scratch = b.buffer(BufferKind.SCRATCH, 256, "never written")
    y = b.output("y", DType.F32, [n], 256)
    b.simple(b.dispatch(b.affine(n, 1.0), [scratch, y], grid_of(b, n), "read"))
    x = np.ones(64, np.float32)
    [plain] = WebGPUGraph(device, b.program(), poison=False, verified=True).execute([x])
    [poisoned] = WebGPUGraph(device, b.program(), poison=True, verified=True).execute([x])
    assert not plain.any()
    assert np.isnan(poisoned).all()


def test_poison_by_environment(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECUTORCH_WGPU_POISON", "1")
    assert WebGPUGraph(device, chain(1, 4))._poison
    monkeypatch.setenv("EXECUTORCH_WGPU_POISON", "0")
    assert not WebGPUGraph(device, chain(1, 4))._poison


@pytest.mark.parametrize("kind", ["plain_api", "debug_labels"])
def test_the_other_recorders(device: Any, kind: str) -> None:
    graph = WebGPUGraph(device, chain(7, 300, dynamic=True), label="chain", **{kind: True})
    for n in (300, 0, 7):
        x = RNG.standard_normal(n, np.float32)
        np.testing.assert_allclose(graph.execute([x])[0], chain_reference(x, 7), rtol=1e-6)


# -- live scalars ----------------------------------------------------------------------------


def scalars_program() -> Any:
    """y[0..3] = the int argument, the last element of ids, its length, and int - length."""
    b = Build()
    length = b.sym("length", SymSource.INPUT_DIM, 0, 0, 1, 16)
    b.input("ids", DType.I64, [length], None)
    last = b.sym("last", SymSource.TENSOR_ELEMENT, 0, -1, -5, 1000)
    b.inputs.append(Input("start", ValueKind.INT, 2))
    start = b.sym("start", SymSource.INT_ARG, 1, 0, 0, 100)
    difference = b.expr(ExprOp.SUB, start, length)
    y = b.output("y", DType.I32, [b.const(4)], 16)
    for index in (start, last, length, difference):
        b.slot(index)
    b.outputs.append(Output("next", ValueKind.INT, b.expr(ExprOp.ADD, start, length)))
    wgsl = (
        LIVE
        + "@group(1) @binding(0) var<storage, read_write> y: array<i32>;\n"
        + "@compute @workgroup_size(4) fn main(@builtin(local_invocation_index) i: u32) {\n"
        + "    y[i] = bitcast<i32>(live[0][i]);\n}\n"
    )
    kernel = b.kernel(wgsl, (W,), workgroup_size=(4, 1, 1))
    one = b.const(1)
    b.simple(b.dispatch(kernel, [y], (one, one, one), "scalars"))
    return b.program()


def test_live_scalars_from_int_element_and_dimension(device: Any) -> None:
    graph = WebGPUGraph(device, scalars_program(), label="scalars")
    for ids, start in (([7, 8, 9], 2), ([-5], 100), (list(range(16)), 0)):
        y, following = graph.execute([np.array(ids, np.int64), start])
        assert y.tolist() == [start, ids[-1], len(ids), start - len(ids)]
        assert following == start + len(ids) and isinstance(following, int)


@pytest.mark.parametrize(
    "start", [3, np.int32(3), np.array(3), np.array([3], np.int32), np.array([[3]])]
)
def test_ints_in_every_form(device: Any, start: object) -> None:
    y, _ = WebGPUGraph(device, scalars_program()).execute([np.array([1]), start])
    assert y[0] == 3


def test_slots_of_the_ring_do_not_mix(device: Any) -> None:
    graph = WebGPUGraph(device, scalars_program(), label="scalars")
    pending = []
    for start in range(20):
        pending.append((start, graph.submit([np.array([start]), start])))
        if len(pending) == 3:
            expected, step = pending.pop(0)
            assert step.result()[0][:2].tolist() == [expected, expected]
            assert step.result() is step.result()


def test_too_many_steps_in_flight(device: Any) -> None:
    graph = WebGPUGraph(device, chain(1, 4), label="busy")
    x = np.ones(4, np.float32)
    steps = [graph.submit([x]) for _ in range(3)]
    with pytest.raises(WgpuDelegateError, match="busy: 3 steps are in flight"):
        graph.submit([x])
    del steps  # uncollected steps give their place back
    assert graph.execute([x])[0].tolist() == [0.5] * 4


# -- routes ----------------------------------------------------------------------------------


def routed(**first: Any) -> Any:
    """Two steps in a row; the first of each one's two routes multiplies by 10, the other by 2.
    ``first``: what the first route of the first step says; the second step's is guarded n == 3."""
    b = Build()
    n = b.sym("n", SymSource.INPUT_DIM, 0, 0, 1, 128)
    x = b.input("x", DType.F32, [n], 512)
    scratch = b.buffer(BufferKind.SCRATCH, 512, "scratch")
    y = b.output("y", DType.F32, [n], 512)
    ten, two = b.affine(n, 10.0), b.affine(n, 2.0)
    first = dict(first)
    if "guard" in first:
        first["guard"] = b.expr(ExprOp.EQ, n, b.const(first["guard"]))
    for source, to, extra in (
        (x, scratch, first),
        (scratch, y, {"guard": b.expr(ExprOp.EQ, n, b.const(3))}),
    ):
        b.step(
            Route("ten", (b.dispatch(ten, [source, to], grid_of(b, n), "ten"),), **extra),
            Route("two", (b.dispatch(two, [source, to], grid_of(b, n), "two"),)),
        )
    return b.program()


def test_routes_by_guard(device: Any) -> None:
    graph = WebGPUGraph(device, routed(guard=1))
    for n, factor in ((1, 20), (2, 4), (3, 20), (1, 20), (128, 4)):
        assert graph.execute([np.ones(n, np.float32)])[0].tolist() == [factor] * n
    assert len(graph._planner._plans) == 3


@pytest.mark.parametrize(
    ("requirement", "factor"),
    [
        ({"features": ("no-such-feature",)}, 2),
        ({"limits": (("max-buffer-size", 1 << 60),)}, 2),
        ({"limits": (("no-such-limit", 1),)}, 2),
        ({"limits": (("max-compute-invocations-per-workgroup", 256),)}, 10),
    ],
)
def test_routes_by_requirement(device: Any, requirement: dict[str, Any], factor: int) -> None:
    graph = WebGPUGraph(device, routed(**requirement), verified=True)
    assert graph.execute([np.ones(2, np.float32)])[0].tolist() == [factor * 2] * 2


def test_kernels_of_routes_that_cannot_run_are_not_compiled(device: Any) -> None:
    program = routed(features=("no-such-feature",))
    assert (
        len(WebGPUGraph(device, program, verified=True)._pipelines) == 2
    )  # both come up in the second step


def test_subgroup_route(device: Any) -> None:
    if "subgroups" not in device.features and "subgroup" not in device.features:
        pytest.skip("no subgroups here")
    b = Build()
    n = b.const(64)
    x, y = b.input("x", DType.F32, [n], 256), b.output("y", DType.F32, [n], 256)
    fast = b.kernel(
        X + Y + MAIN + "    y[id.x] = subgroupMax(x[id.x]) * 0.0 + 5.0;\n}\n",
        (R, W),
        extensions=("subgroups",),
    )
    grid = grid_of(b, n)
    b.step(
        Route("fast", (b.dispatch(fast, [x, y], grid, "fast"),), features=("subgroups",)),
        Route("plain", (b.dispatch(b.affine(n, 2.0), [x, y], grid, "plain"),)),
    )
    [out] = WebGPUGraph(device, b.program()).execute([np.ones(64, np.float32)])
    assert out.tolist() == [5.0] * 64


# -- states ----------------------------------------------------------------------------------


def test_state_persists_and_graphs_are_independent(device: Any) -> None:
    one = WebGPUGraph(device, accumulator(), label="one")
    two = WebGPUGraph(device, accumulator(), label="two")
    x, pos = np.arange(8, dtype=np.float32), np.array([0])
    for k in range(1, 5):
        assert one.execute([x, pos])[0].tolist() == (k * x).tolist()
    assert two.execute([x, pos])[0].tolist() == x.tolist()
    assert one.state.names == ["layers.0.state"]
    assert one.state.read("layers.0.state").tolist() == (4 * x).tolist()


def test_refused_calls_change_nothing(device: Any) -> None:
    graph = WebGPUGraph(device, accumulator(), label="forward")
    x, pos = np.ones(8, np.float32), np.array([3])
    graph.execute([x, pos])
    with pytest.raises(
        InvalidInputError, match=r"^forward: pos 4 exceeds the cache of 4 positions$"
    ):
        graph.execute([x, np.array([4])])
    with pytest.raises(InvalidInputError, match="expected 0 to 100"):
        graph.execute([x, np.array([101])])
    with pytest.raises(InvalidInputError):
        graph.execute([x[:4], pos])
    assert graph.state.read("layers.0.state").tolist() == [1.0] * 8


def test_initial_state_write_and_reset(device: Any) -> None:
    initial = np.arange(8, dtype=np.float32)
    graph = WebGPUGraph(device, accumulator(initial_key="k"), {"k": initial.tobytes()})
    graph.execute([np.ones(8, np.float32), np.array([0])])
    assert graph.state.read("layers.0.state").tolist() == (initial + 1).tolist()
    graph.state.write("layers.0.state", initial * 2)
    assert graph.state.read("layers.0.state").tolist() == (initial * 2).tolist()
    graph.state.reset()
    assert graph.state.read("layers.0.state").tolist() == initial.tolist()
    zeros = WebGPUGraph(device, accumulator())
    zeros.state.write("layers.0.state", initial)
    zeros.state.reset("layers.0.state")
    assert not zeros.state.read("layers.0.state").any()


def test_unknown_state_and_wrong_state_value(device: Any) -> None:
    graph = WebGPUGraph(device, accumulator(), label="forward")
    for call in (graph.state.read, graph.state.reset):
        with pytest.raises(InvalidInputError, match=r"no state 'nope'; there are: layers.0.state"):
            call("nope")
    with pytest.raises(InvalidInputError, match=r"expected shape \(8,\), got \(7,\)"):
        graph.state.write("layers.0.state", np.zeros(7, np.float32))
    with pytest.raises(InvalidInputError, match="expected dtype float32, got float64"):
        graph.state.write("layers.0.state", np.zeros(8))


# -- what is not created between steps, threads, loss -----------------------------------------


def test_nothing_is_created_between_steps(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = WebGPUGraph(device, chain(8, 256, dynamic=True), label="chain")
    x = np.ones(200, np.float32)
    graph.execute([x])
    created: list[str] = []
    for name in dir(type(device)):
        if name.startswith("create_") or name == "_create_buffer":
            original = getattr(type(device), name)

            def spy(*args: Any, _name: str = name, _call: Any = original, **kwargs: Any) -> Any:
                created.append(_name)
                return _call(*args, **kwargs)

            monkeypatch.setattr(type(device), name, spy)
    for n in (200, 1, 256, 0):
        graph.execute([x[:n] if n <= 200 else np.ones(n, np.float32)])
    # wgpu-native's encoders are made without this call. Elsewhere a step without outputs is waited
    # for through an empty command buffer.
    assert created == ["create_command_encoder"] * (0 if is_native(device) else 5)


def test_threads_take_turns(device: Any) -> None:
    graph = WebGPUGraph(device, chain(4, 64), label="chain")
    failures: list[object] = []

    def work(seed: int) -> None:
        x = np.full(64, seed, np.float32)
        for _ in range(20):
            if not np.array_equal(graph.execute([x])[0], chain_reference(x, 4)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_graphs_of_one_device_from_several_threads(device: Any) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        graph = WebGPUGraph(device, accumulator(), label=f"thread {seed}")
        x = np.full(8, seed, np.float32)
        for k in range(1, 40):
            [y] = graph.execute([x, np.array([0])])
            if y.tolist() != (x * k).tolist():
                failures.append((seed, k, y))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_lost_device_is_an_error_with_a_name() -> None:
    from executorch_wgpu.runtime.device import request_device

    device = request_device()
    graph = WebGPUGraph(device, chain(2, 64), label="forward")
    x = np.ones(64, np.float32)
    graph.execute([x])
    device.destroy()
    with pytest.raises(DeviceLostError, match=r"(?s)^forward: .*Load the program again"):
        graph.execute([x])


def test_a_step_in_a_reference_cycle(device: Any) -> None:
    """The garbage collector releases its staging buffer and lets the step give it back."""
    import gc

    graph = WebGPUGraph(device, chain(2, 64))
    x = np.ones(64, np.float32)
    expected = chain_reference(x, 2)
    for _ in range(3):
        cycle: list[Any] = [graph.submit([x])]
        cycle.append(cycle)
        del cycle
        gc.collect()
        for _ in range(4):
            np.testing.assert_array_equal(graph.execute([x])[0], expected)


def test_no_leak(device: Any) -> None:
    import gc

    import wgpu

    def alive() -> dict[str, int]:
        gc.collect()
        return {
            name: counts["count"]
            for name, counts in wgpu.diagnostics.wgpu_native_counts.get_dict().items()
            if name in ("Buffer", "BindGroup", "ComputePipeline", "ShaderModule", "CommandBuffer")
        }

    def load_and_run() -> None:
        graph = WebGPUGraph(device, chain(3, 64), label="chain")
        for _ in range(5):
            graph.execute([np.ones(64, np.float32)])

    load_and_run()
    before = alive()
    for _ in range(5):
        load_and_run()
    assert alive() == before


def test_grids_larger_than_the_device_takes(device: Any) -> None:
    b = Build()
    n = b.sym("n", SymSource.INPUT_DIM, 0, 0, 1, 1 << 30)
    b.input("x", DType.F32, [n], None)
    y = b.output("y", DType.F32, [b.const(4)], 16)
    scratch = b.buffer(BufferKind.SCRATCH, 16, "scratch")
    grid = (b.expr(ExprOp.MUL, n, b.const(1000)), b.const(1), b.const(1))
    b.simple(b.dispatch(b.affine(b.const(4), 1.0), [scratch, y], grid, "wide"))
    graph = WebGPUGraph(device, b.program(), label="forward", verified=True)
    graph.execute([np.ones(3, np.float32)])
    with pytest.raises(InvalidInputError, match="'wide' needs a grid of 100000 x 1 x 1"):
        graph.execute([np.ones(100, np.float32)])


def test_live_values_must_fit_32_bits(device: Any) -> None:
    b = Build()
    b.inputs.append(Input("n", ValueKind.INT, 0))
    n = b.sym("n", SymSource.INT_ARG, 0, 0, 0, 1 << 40)
    y = b.output("y", DType.F32, [b.const(4)], 16)
    scratch = b.buffer(BufferKind.SCRATCH, 16, "scratch")
    b.simple(b.dispatch(b.affine(n, 1.0), [scratch, y], (b.const(1),) * 3, "all"))
    graph = WebGPUGraph(device, b.program(), label="forward", verified=True)
    graph.execute([2**32 - 1])
    with pytest.raises(InvalidInputError, match="live value 4294967296"):
        graph.execute([2**32])


def test_division_by_zero_is_refused(device: Any) -> None:
    b = Build()
    b.inputs.append(Input("n", ValueKind.INT, 0))
    n = b.sym("n", SymSource.INT_ARG, 0, 0, 0, 10)
    b.outputs.append(Output("q", ValueKind.INT, b.expr(ExprOp.FLOORDIV, b.const(10), n)))
    graph = WebGPUGraph(device, b.program(), label="forward", verified=True)
    assert graph.execute([3]) == [3]
    with pytest.raises(InvalidInputError, match=r"^forward: .*zero"):
        graph.execute([0])


def test_override_constants_of_every_type(device: Any) -> None:
    b = Build()
    y = b.output("y", DType.F32, [b.const(4)], 16)
    wgsl = (
        "override A: u32; override B: i32; override C: f32; override D: bool;\n"
        "@group(1) @binding(0) var<storage, read_write> y: array<f32>;\n"
        "@compute @workgroup_size(1) fn main() {\n"
        "    y[0] = f32(A); y[1] = f32(B); y[2] = C; y[3] = select(0.0, 1.0, D);\n}\n"
    )
    params = [
        Param("A", ParamKind.U32, 4000000000),
        Param("B", ParamKind.I32, -7),
        Param("C", ParamKind.F32, 0.1),
        Param("D", ParamKind.BOOL, 1),
    ]
    kernel = b.kernel(wgsl, (W,), params, workgroup_size=(1, 1, 1))
    b.simple(b.dispatch(kernel, [y], (b.const(1),) * 3, "constants"))
    [out] = WebGPUGraph(device, b.program()).execute([])
    assert out.tolist() == [4000000000.0, -7.0, np.float32(0.1), 1.0]


def test_the_hand_made_shader_is_what_the_tests_say() -> None:
    assert "y[i] = x[i] * SCALE + BIAS" in AFFINE
