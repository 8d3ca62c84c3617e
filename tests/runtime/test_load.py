"""What WebGPUGraph does at load: requirements, compilation, constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import MAIN, Build, R, W, X, Y, grid_of

from executorch_wgpu.runtime import device as device_module
from executorch_wgpu.runtime.errors import InvalidProgramError, UnsupportedDeviceError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import Binding, BufferKind, DType

RNG = np.random.default_rng(0)


# -- errors at load --------------------------------------------------------------------------


def test_a_shader_that_does_not_compile_names_label_and_place(device: Any) -> None:
    b = Build()
    n = b.const(4)
    x, y = b.input("x", DType.F32, [n], 16), b.output("y", DType.F32, [n], 16)
    kernel = b.kernel(X + Y + MAIN + "    y[id.x] = nonsense;\n}\n", (R, W))
    b.simple(b.dispatch(kernel, [x, y], grid_of(b, n), "layers.7/broken"))
    with pytest.raises(InvalidProgramError) as caught:
        WebGPUGraph(device, b.program(), label="decode")
    text = str(caught.value)
    assert text.startswith("decode: layers.7/broken: compiling") and "nonsense" in text


def test_accesses_that_the_shader_does_not_have(device: Any) -> None:
    b = Build()
    n = b.const(4)
    x, y = b.input("x", DType.F32, [n], 16), b.output("y", DType.F32, [n], 16)
    kernel = b.kernel(X + Y + MAIN + "    y[id.x] = x[id.x];\n}\n", (W, R))
    b.simple(b.dispatch(kernel, [x, y], grid_of(b, n), "swapped"))
    with pytest.raises(InvalidProgramError, match=r"^forward: swapped: creating the pipeline"):
        WebGPUGraph(device, b.program(), label="forward", verified=True)


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"features": ("ray-query",)}, "feature 'ray-query'"),
        (
            {"limits": (("max-storage-buffers-per-shader-stage", 2_000_000_000),)},
            r"limit max-storage-buffers-per-shader-stage of 2000000000 \(the device has \d+\)",
        ),
    ],
)
def test_missing_feature_or_limit(
    device: Any, needs: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Build()
    n = b.const(4)
    x, y = b.input("x", DType.F32, [n], 16), b.output("y", DType.F32, [n], 16)
    b.simple(b.dispatch(b.affine(n, 1.0), [x, y], grid_of(b, n), "affine"))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("allocated before the requirements were compared")

    monkeypatch.setattr(type(device), "create_buffer", refuse)
    with pytest.raises(UnsupportedDeviceError, match=f"^forward: .*{message}"):
        WebGPUGraph(device, b.program(**needs), label="forward", verified=True)


def test_a_buffer_larger_than_the_device_takes(device: Any) -> None:
    b = Build()
    size = device.limits["max-buffer-size"] // 4 * 4 + 4
    n = b.const(4)
    x, y = b.input("x", DType.F32, [n], 16), b.output("y", DType.F32, [n], 16)
    huge = b.buffer(BufferKind.SCRATCH, size, "huge")
    one = b.affine(n, 1.0)
    b.simple(
        b.dispatch(one, [x, y], grid_of(b, n), "whole"),
    )
    dispatch = b.dispatch(one, [x, y], grid_of(b, n), "part")
    dispatch = type(dispatch)(one, (Binding(x, 0, 16), Binding(huge, 0, 16)), dispatch.grid, "part")
    b.simple(dispatch)
    with pytest.raises(UnsupportedDeviceError, match=f"iB: 'huge' has {size} bytes"):
        WebGPUGraph(device, b.program(), verified=True)


def test_a_binding_larger_than_the_device_takes_says_who_would_do(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that says what it needs: refused with the numbers and what to do."""
    b = Build()
    size = device.limits["max-storage-buffer-binding-size"] // 4 * 4 + 1024
    n = b.const(4)
    x, y = b.input("x", DType.F32, [n], 16), b.output("y", DType.F32, [n], 16)
    weight = b.buffer(BufferKind.CONSTANT, size, "lm_head.weight", "w")
    one = b.affine(n, 1.0)
    b.simple(b.dispatch(one, [x, y], grid_of(b, n), "first"))
    b.simple(b.dispatch(one, [weight, y], grid_of(b, n), "lm_head"))
    limits = (("max-storage-buffer-binding-size", size),)
    assert "would do (device=...)" in device_module.advice_for(
        b.program().features, b.program().limits
    )
    monkeypatch.setattr(device_module, "adapters_that_meet", lambda *_: [])
    with pytest.raises(UnsupportedDeviceError) as caught:
        WebGPUGraph(device, b.program(limits=limits), label="forward", verified=True)
    text = str(caught.value)
    assert f"limit max-storage-buffer-binding-size of {size} (the device has " in text
    assert "'lm_head' needs" in text and "of 'lm_head.weight' in one binding, this device" in text
    assert "No adapter of this machine would do; or export with" in text


# -- constants -------------------------------------------------------------------------------


def with_constant(size: int = 10, key: str = "w") -> Any:
    """y = constant * 2, over ``size`` float32 elements; x is not used."""
    b = Build()
    n = b.const(size)
    b.input("x", DType.F32, [b.const(1)], None)
    w = b.buffer(BufferKind.CONSTANT, size * 4, "weight", key)
    y = b.output("y", DType.F32, [n], size * 4)
    b.simple(b.dispatch(b.affine(n, 2.0), [w, y], grid_of(b, n), "double"))
    return b.program()


ONE = np.ones(1, np.float32)


@pytest.mark.parametrize("size", [1, 10, 3 << 20])
def test_constants(device: Any, size: int) -> None:
    w = RNG.standard_normal(size, np.float32)
    graph = WebGPUGraph(device, with_constant(size), lambda key: {"w": memoryview(w)}[key])
    np.testing.assert_array_equal(graph.execute([ONE])[0], w * 2)


def test_constants_are_padded(device: Any) -> None:
    w = np.arange(10, dtype=np.float32)
    graph = WebGPUGraph(device, with_constant(), {"w": w.tobytes()[:-2]})
    assert graph.execute([ONE])[0][:9].tolist() == (w[:9] * 2).tolist()


def test_constants_are_shared_by_file_and_dropped_with_the_last_graph(device: Any) -> None:
    loads = []

    def data(key: str) -> bytes:
        loads.append(key)
        return np.full(10, len(loads), np.float32).tobytes()

    identity = object()
    graphs = [WebGPUGraph(device, with_constant(), data, data_identity=identity) for _ in "ab"]
    assert loads == ["w"]
    assert [g.execute([ONE])[0][0] for g in graphs] == [2.0, 2.0]
    WebGPUGraph(device, with_constant(), data, data_identity=object())
    WebGPUGraph(device, with_constant(), data)
    WebGPUGraph(device, with_constant(), data)
    assert len(loads) == 4
    graphs.clear()
    WebGPUGraph(device, with_constant(), data, data_identity=identity)
    assert len(loads) == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "the file has no data 'w' for 'weight'"),
        ({}, "the file has no data 'w' for 'weight'"),
        ({"w": bytes(36)}, "has 36 bytes, expected 40"),
        ({"w": bytes(44)}, "has 44 bytes, expected 40"),
    ],
)
def test_constants_that_are_missing_or_of_another_size(
    device: Any, data: Any, message: str
) -> None:
    with pytest.raises(InvalidProgramError, match=f"^forward: .*{message}"):
        WebGPUGraph(device, with_constant(), data, label="forward")
