"""Adapters, devices, shader sources, and how wgpu's errors become ours."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from programs import shader

from executorch_wgpu.runtime import device as module
from executorch_wgpu.runtime import shaders
from executorch_wgpu.runtime.device import Capabilities, capabilities, request_device
from executorch_wgpu.runtime.errors import (
    DeviceLostError,
    InvalidProgramError,
    OutOfDeviceMemoryError,
    SoftwareAdapterWarning,
    UnsupportedDeviceError,
    WgpuDelegateError,
    gpu_errors,
)
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS


def fake_gpu(*adapters: Any, error: Exception | None = None) -> Any:
    def request(**_: Any) -> Any:
        if error is not None:
            raise error
        return adapters[0] if adapters else None

    return SimpleNamespace(
        request_adapter_sync=request, enumerate_adapters_sync=lambda: list(adapters)
    )


NULL = SimpleNamespace(
    summary="Null backend", info={"backend_type": "Null"}, features=set(), limits={}
)


def test_capabilities_and_what_is_lacking() -> None:
    have = Capabilities(frozenset({"subgroups"}), {"max-buffer-size": 100, "min-x-alignment": 32})
    assert have.lacks(("subgroups",), (("max-buffer-size", 100), ("min-x-alignment", 256))) == []
    assert have.lacks(("shader-f16",), (("max-buffer-size", 101), ("min-x-alignment", 16))) == [
        "feature 'shader-f16'",
        "limit max-buffer-size of 101 (the device has 100)",
        "limit min-x-alignment of 16 (the device has 32)",
    ]
    assert have.lacks((), (("max-y", 1),)) == ["limit max-y of 1 (the device does not report it)"]


def test_the_device_has_what_its_adapter_has(device: Any) -> None:
    offered, got = capabilities(device.adapter), capabilities(device)
    wanted = {"subgroups", "shader-f16", "timestamp-query"} & offered.features
    if os.environ.get("EXECUTORCH_WGPU_SUBGROUPS") == "0":
        wanted -= {"subgroups"}
    assert wanted <= got.features
    for name in DEFAULT_LIMITS:
        assert got.limits[name] == offered.limits[name], name


def test_adapters_are_described(device: Any) -> None:
    adapters = module.describe_adapters()
    assert device.adapter.summary in [adapter.summary for adapter in adapters]
    assert all(adapter.usable and adapter.info["backend_type"] for adapter in adapters)


def test_one_device_a_process_and_a_new_one_after_loss(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.resolve_device() is module.default_device() is device
    lost = request_device()
    lost.destroy()
    monkeypatch.setattr(module, "_default", lost)
    assert module.is_lost(lost) and not module.is_lost(device)
    assert module.default_device() is not lost


def test_by_name_by_adapter_or_ready_made(device: Any) -> None:
    assert module.resolve_device(device) is device
    part = device.adapter.summary.split()[0].upper()
    assert part in module.resolve_device(part).adapter.summary.upper()
    assert module.resolve_device(device.adapter).adapter.summary == device.adapter.summary
    with pytest.raises(UnsupportedDeviceError, match="no adapter matches 'Nonesuch'; there are: '"):
        module.resolve_device("Nonesuch")


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        (fake_gpu(), "mesa-vulkan-drivers and libvulkan1"),
        (fake_gpu(error=RuntimeError("none found")), "mesa-vulkan-drivers.*none found"),
        (fake_gpu(NULL), "'Null backend' is a null backend that computes nothing"),
    ],
)
def test_nothing_usable(gpu: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpu", lambda: gpu)
    with pytest.raises(UnsupportedDeviceError, match=message):
        request_device()


def test_a_device_on_a_null_backend_is_refused() -> None:
    null = SimpleNamespace(create_buffer=None, adapter=NULL)
    with pytest.raises(UnsupportedDeviceError, match="null backend"):
        module.resolve_device(null)


def test_dawns_null_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wgpudawn = pytest.importorskip("wgpudawn")
    monkeypatch.setenv("WGPU_BACKEND_TYPE", "Null")
    monkeypatch.setattr(module, "_gpu", lambda: wgpudawn.gpu)
    with pytest.raises(UnsupportedDeviceError, match="null backend that computes nothing"):
        request_device()


# -- which adapter ----------------------------------------------------------------------------


def adapter(summary: str, kind: str, backend: str = "Vulkan") -> Any:
    info = {"backend_type": backend, "adapter_type": kind}
    return SimpleNamespace(summary=summary, info=info, features=set(), limits={})


LVP, GL, CARD = adapter("llvmpipe", "CPU"), adapter("gl", "CPU", "OpenGL"), adapter("card", "GPU")


@pytest.mark.parametrize(
    ("adapters", "asked", "chosen"),
    [
        ((LVP, CARD), "gpu", CARD),
        ((CARD, LVP), "GPU", CARD),
        ((CARD, GL, LVP), "cpu", LVP),
        ((GL, CARD), "CPU", GL),
        ((NULL, CARD), "gpu", CARD),
        ((CARD, LVP), "pipe", LVP),
        ((CARD, LVP), None, CARD),
    ],
)
def test_kinds_of_adapters(
    adapters: Any, asked: Any, chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_gpu", lambda: fake_gpu(*adapters))
    assert module._choose_adapter(asked) is chosen


@pytest.mark.parametrize(
    ("adapters", "asked", "message"),
    [
        ((LVP, GL), "gpu", "a GPU was asked for and there is none; there are: 'llvmpipe', 'gl'"),
        ((CARD,), "cpu", "an adapter that computes on the CPU was asked for and there is none"),
        ((NULL,), "gpu", "a GPU was asked for and there is none; there are: 'Null backend'"),
        ((), "gpu", "there are: none"),
    ],
)
def test_kinds_that_are_not_there(
    adapters: Any, asked: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_gpu", lambda: fake_gpu(*adapters))
    with pytest.raises(UnsupportedDeviceError, match=message):
        module.request_device(asked)


def test_an_adapter_on_the_cpu_is_not_used_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpu", lambda: fake_gpu(LVP))
    monkeypatch.delenv("WGPUPY_WGPU_ADAPTER_NAME", raising=False)
    with pytest.warns(SoftwareAdapterWarning, match="no GPU was found: 'llvmpipe' computes on the"):
        module._choose_adapter(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module._choose_adapter("cpu")
        monkeypatch.setenv("WGPUPY_WGPU_ADAPTER_NAME", "llvmpipe")
        module._choose_adapter(None)


def test_the_api_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    wgpudawn = pytest.importorskip("wgpudawn")
    monkeypatch.setenv("EXECUTORCH_WGPU_API", "wgpudawn")
    assert module._gpu() is wgpudawn.gpu
    monkeypatch.setenv("EXECUTORCH_WGPU_API", "cuda")
    with pytest.raises(UnsupportedDeviceError, match="is 'cuda'; it can be wgpu or wgpudawn"):
        module._gpu()


def test_subgroups_off_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECUTORCH_WGPU_SUBGROUPS", "0")
    assert "subgroups" not in capabilities(request_device()).features


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with module.quiet_driver():
        pass
    assert "XDG_RUNTIME_DIR" not in os.environ
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/somewhere")
    with module.quiet_driver():
        assert os.environ["XDG_RUNTIME_DIR"] == "/somewhere"


# -- shaders ---------------------------------------------------------------------------------


def test_enable_lines() -> None:
    both = shader("fn main() {}", ("subgroups", "f16"))
    assert shaders.source(both, native=True) == "enable f16;\nfn main() {}"
    assert shaders.source(both, native=False) == "enable f16;\nenable subgroups;\nfn main() {}"
    assert shaders.source(shader("x"), native=False) == "x"


def test_a_shader_with_f16_and_subgroups(device: Any) -> None:
    if not {"shader-f16", "subgroups"} <= capabilities(device).features:
        pytest.skip("no f16 and subgroups here")
    wgsl = (
        "@group(0) @binding(0) var<storage, read_write> y: array<f32>;\n"
        "@compute @workgroup_size(32) fn main(@builtin(local_invocation_index) i: u32) {\n"
        "    y[i] = f32(subgroupAdd(f16(1.0)));\n}\n"
    )
    code = shaders.source(shader(wgsl, ("f16", "subgroups")), native=True)
    for trusted in (True, False):
        module_ = shaders.create_module(device, "both", code, trusted)
        device.create_compute_pipeline(
            layout="auto", compute={"module": module_, "entry_point": "main"}
        )


def test_loop_bounding_by_environment(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu.backends.wgpu_native._api as api

    if not module.is_native(device):
        pytest.skip("wgpu-native's switch; Dawn compiles as Chrome does, always")
    calls = []
    original = api.libf.wgpuDeviceCreateShaderModuleTrusted
    monkeypatch.setattr(
        api.libf,
        "wgpuDeviceCreateShaderModuleTrusted",
        lambda *args: (calls.append(args[2]), original(*args))[1],
    )
    code = "@compute @workgroup_size(1) fn main() {}"
    monkeypatch.setenv("EXECUTORCH_WGPU_LOOP_BOUNDING", "1")
    assert not shaders.trust_shaders()
    shaders.create_module(device, "x", code, shaders.trust_shaders())
    assert calls == []
    monkeypatch.setenv("EXECUTORCH_WGPU_LOOP_BOUNDING", "0")
    shaders.create_module(device, "x", code, shaders.trust_shaders())
    assert calls == [1]  # bounds checks only
    monkeypatch.delattr(api.libf, "wgpuDeviceCreateShaderModuleTrusted")
    shaders.create_module(device, "x", code, True)


# -- errors ----------------------------------------------------------------------------------


class GPUError(Exception):
    pass


class GPUValidationError(GPUError):
    pass


class GPUOutOfMemoryError(GPUError):
    pass


@pytest.mark.parametrize(
    ("error", "loading", "becomes"),
    [
        (GPUValidationError("bad"), True, InvalidProgramError),
        (GPUValidationError("bad"), False, WgpuDelegateError),
        (GPUOutOfMemoryError("full"), True, OutOfDeviceMemoryError),
        (GPUValidationError("Not enough memory left."), True, OutOfDeviceMemoryError),
        (GPUValidationError("Parent device is lost"), True, DeviceLostError),
        (GPUError("Device 'x' has been destroyed"), False, DeviceLostError),
        (RuntimeError("The device was lost"), False, DeviceLostError),
        (RuntimeError("something else"), False, RuntimeError),
        (KeyError("lost"), False, KeyError),
        (InvalidProgramError("the device lost it"), False, InvalidProgramError),
    ],
)
def test_errors_of_wgpu_become_ours(error: Exception, loading: bool, becomes: type) -> None:
    with pytest.raises(becomes) as caught, gpu_errors("forward", "doing it", loading=loading):
        raise error
    assert type(caught.value) is becomes
    if isinstance(error, GPUError):
        assert str(caught.value).startswith("forward: doing it: ")
        assert caught.value.__cause__ is error


def test_out_of_memory_names_the_buffer(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from programs import chain

    from executorch_wgpu.runtime.graph import WebGPUGraph

    original = type(device).create_buffer

    def create(self: Any, *, label: str = "", **kwargs: Any) -> Any:
        if label.endswith("scratch0"):
            raise GPUOutOfMemoryError("Not enough memory left.")
        return original(self, label=label, **kwargs)

    monkeypatch.setattr(type(device), "create_buffer", create)
    with pytest.raises(
        OutOfDeviceMemoryError, match=r"^forward: allocating 4096 bytes for scratch 'scratch0'"
    ):
        WebGPUGraph(device, chain(3, 1024), label="forward")
