"""The same runtime on wgpudawn. Dawn's null device validates every call, more strictly than
wgpu-native does, and computes nothing: results have shapes and no values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import MAIN, Build, R, W, X, Y, accumulator, chain, grid_of

from executorch_wgpu.runtime import device as module
from executorch_wgpu.runtime.errors import DeviceLostError, InvalidProgramError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import DType


@pytest.fixture
def dawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    wgpudawn = pytest.importorskip("wgpudawn")
    monkeypatch.setenv("WGPU_BACKEND_TYPE", "Null")
    monkeypatch.delenv("EXECUTORCH_WGPU_SUBGROUPS", raising=False)
    monkeypatch.setattr(module, "_gpu", lambda: wgpudawn.gpu)
    monkeypatch.setattr(module, "_is_null", lambda adapter: False)
    return module.request_device()


@pytest.mark.parametrize("options", [{}, {"debug_labels": True}, {"profile": True}])
def test_execute(dawn: Any, options: dict[str, Any]) -> None:
    graph = WebGPUGraph(dawn, chain(3, 100, dynamic=True), label="forward", **options)
    for n in (100, 5, 0):
        assert graph.execute([np.ones(n, np.float32)])[0].shape == (n,)


def test_states_and_constants(dawn: Any) -> None:
    graph = WebGPUGraph(dawn, accumulator(initial_key="k"), {"k": bytes(32)}, poison=True)
    graph.execute([np.ones(8, np.float32), np.array([0])])
    graph.state.reset()
    assert graph.state.read("layers.0.state").shape == (8,)


def test_tint_wants_the_enable_line(dawn: Any) -> None:
    b = Build()
    n = b.const(64)
    x, y = b.input("x", DType.F32, [n], 256), b.output("y", DType.F32, [n], 256)
    body = X + Y + MAIN + "    y[id.x] = subgroupMax(x[id.x]);\n}\n"
    kernel = b.kernel(body, (R, W), extensions=("subgroups",))
    b.simple(b.dispatch(kernel, [x, y], grid_of(b, n), "max"))
    WebGPUGraph(dawn, b.program(features=("subgroups",))).execute([np.ones(64, np.float32)])


def test_errors(dawn: Any) -> None:
    b = Build()
    n = b.const(4)
    x, y = b.input("x", DType.F32, [n], 16), b.output("y", DType.F32, [n], 16)
    kernel = b.kernel(X + Y + MAIN + "    y[id.x] = nonsense;\n}\n", (R, W))
    b.simple(b.dispatch(kernel, [x, y], grid_of(b, n), "broken"))
    with pytest.raises(InvalidProgramError, match=r"(?s)^forward: broken: compiling .*nonsense"):
        WebGPUGraph(dawn, b.program(), label="forward")
    graph = WebGPUGraph(dawn, chain(1, 4), label="forward")
    dawn.destroy()
    with pytest.raises(DeviceLostError, match=r"^forward: "):
        graph.execute([np.ones(4, np.float32)])
