"""Shader modules, layouts and compute pipelines.

One :class:`Pipelines` a device: programs and methods that carry the same shader (by sha256) share
its module, equal kernels share a pipeline, and kernels with the same accesses share their layouts.
"""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from executorch_wgpu.serialization.dispatch_list import (
    LIVE_SLOTS,
    Access,
    Kernel,
    ParamKind,
    Program,
    Shader,
)

from .device import is_native
from .errors import InvalidProgramError, gpu_errors

#: Bytes of the live block.
LIVE_BYTES = LIVE_SLOTS * 4

_COMPUTE = 4  # GPUShaderStage.COMPUTE, the same number in every implementation


class Pipelines:
    """What one device has compiled. Thread-safe; compiled objects are held weakly and live as long
    as a graph that uses them.

    Args:
        device: a ``GPUDevice`` of wgpu or wgpudawn.
    """

    def __init__(self, device: Any) -> None:
        # Weak: the instance is the value of a map whose key is the device.
        self._device = weakref.ref(device)
        self._lock = threading.Lock()
        self._modules: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._pipelines: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._layouts: dict[tuple[Access, ...], tuple[Any, Any]] = {}
        self.live_layout = device.create_bind_group_layout(
            label="live block",
            entries=[
                {
                    "binding": 0,
                    "visibility": _COMPUTE,
                    "buffer": {
                        "type": "uniform",
                        "has_dynamic_offset": True,
                        "min_binding_size": LIVE_BYTES,
                    },
                }
            ],
        )

    def layouts(self, accesses: tuple[Access, ...]) -> tuple[Any, Any]:
        """(bind group layout of group 1, pipeline layout) for kernels with these accesses."""
        with self._lock:
            found = self._layouts.get(accesses)
            if found is None:
                kinds = {Access.READ: "read-only-storage", Access.READ_WRITE: "storage"}
                name = "".join("r" if access is Access.READ else "w" for access in accesses)
                device = self._get_device()
                group = device.create_bind_group_layout(
                    label=f"storage {name}",
                    entries=[
                        {"binding": i, "visibility": _COMPUTE, "buffer": {"type": kinds[access]}}
                        for i, access in enumerate(accesses)
                    ],
                )
                layout = device.create_pipeline_layout(
                    label=f"live + storage {name}", bind_group_layouts=[self.live_layout, group]
                )
                found = self._layouts[accesses] = (group, layout)
            return found

    def compile(self, program: Program, labels: Mapping[int, str]) -> dict[int, Any]:
        """Pipelines for some kernels of ``program``, compiled by several threads at once (wgpu
        lets go of the GIL while it compiles, and reports an error to the thread that caused it).

        Args:
            labels: kernel index -> label for errors and GPU debuggers.

        Returns:
            Kernel index -> ``GPUComputePipeline``.

        Raises:
            InvalidProgramError: a shader does not compile or does not fit its kernel.
        """
        trusted = trust_shaders()
        modules: dict[int, str] = {}
        for index, label in labels.items():
            modules.setdefault(program.kernels[index].shader, label)

        def make_module(shader: int) -> Any:
            return self._module(program.shaders[shader], modules[shader], trusted)

        def make_pipeline(index: int) -> Any:
            kernel = program.kernels[index]
            shader = program.shaders[kernel.shader]
            return self._pipeline(kernel, shader, compiled[kernel.shader], labels[index], trusted)

        workers = max(1, min(8, os.cpu_count() or 1, len(labels)))
        with ThreadPoolExecutor(workers, "executorch-wgpu-compile") as pool:
            compiled = dict(zip(modules, pool.map(make_module, modules), strict=True))
            return dict(zip(labels, pool.map(make_pipeline, labels), strict=True))

    def _get_device(self) -> Any:
        device = self._device()
        assert device is not None, "a graph keeps its device alive"
        return device

    def _module(self, shader: Shader, label: str, trusted: bool) -> Any:
        key = (shader.sha256, trusted)
        with self._lock:
            module = self._modules.get(key)
        if module is None:
            device = self._get_device()
            code = source(shader, native=is_native(device))
            with gpu_errors(label, f"compiling its shader {shader.sha256[:12]}", loading=True):
                module = create_module(device, label, code, trusted)
            with self._lock:
                module = self._modules.setdefault(key, module)
        return module

    def _pipeline(
        self, kernel: Kernel, shader: Shader, module: Any, label: str, trusted: bool
    ) -> Any:
        key = (shader.sha256, trusted, kernel.entry_point, kernel.params, kernel.accesses)
        with self._lock:
            pipeline = self._pipelines.get(key)
        if pipeline is None:
            constants = {
                param.name: bool(param.value) if param.kind is ParamKind.BOOL else param.value
                for param in kernel.params
            }
            _, layout = self.layouts(kernel.accesses)
            doing = f"creating the pipeline of '{kernel.entry_point}'"
            with gpu_errors(label, doing, loading=True):
                pipeline = self._get_device().create_compute_pipeline(
                    label=label,
                    layout=layout,
                    compute={
                        "module": module,
                        "entry_point": kernel.entry_point,
                        "constants": constants,
                    },
                )
            with self._lock:
                pipeline = self._pipelines.setdefault(key, pipeline)
        return pipeline


def source(shader: Shader, *, native: bool) -> str:
    """The WGSL with the ``enable`` lines that the device's compiler wants: naga rejects
    ``enable subgroups;`` (it takes the calls without), Tint requires it."""
    enables = [name for name in sorted(shader.extensions) if not (native and name == "subgroups")]
    return "".join(f"enable {name};\n" for name in enables) + shader.wgsl


def trust_shaders() -> bool:
    """False when ``EXECUTORCH_WGPU_LOOP_BOUNDING`` (anything but empty or 0) asks for the counters
    that naga adds to every loop, for files that are not trusted to end their loops."""
    return os.environ.get("EXECUTORCH_WGPU_LOOP_BOUNDING", "") in ("", "0")


def create_module(device: Any, label: str, code: str, trusted: bool) -> Any:
    """A shader module.

    On wgpu-native and with ``trusted``, bounds checks stay on and the loop counters go: they keep
    drivers from unrolling and cost a matmul up to 50 times its run time. wgpu-py does not wrap
    that call, so it is made through its C bindings; where they are absent, the plain one is used.
    """
    if not (trusted and is_native(device)):
        return device.create_shader_module(label=label, code=code)
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    create = getattr(api.libf, "wgpuDeviceCreateShaderModuleTrusted", None)
    if create is None:
        return device.create_shader_module(label=label, code=code)
    ffi = api.ffi
    code_bytes, label_bytes = code.encode(), label.encode()
    c_code, c_label = ffi.new("char[]", code_bytes), ffi.new("char[]", label_bytes)
    wgsl = ffi.new("WGPUShaderSourceWGSL *")
    wgsl.chain.sType = api.lib.WGPUSType_ShaderSourceWGSL
    wgsl.code.data, wgsl.code.length = c_code, len(code_bytes)
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", wgsl)
    descriptor.label.data, descriptor.label.length = c_label, len(label_bytes)
    bounds_checks = 1  # WGPUShaderRuntimeChecks_BoundsChecks, without ForceLoopBounding
    handle = create(device._internal, descriptor, bounds_checks)
    if handle == ffi.NULL:
        raise InvalidProgramError(f"{label}: the shader module could not be created")
    return api.GPUShaderModule(label, handle, device)


_by_device: weakref.WeakKeyDictionary[Any, Pipelines] = weakref.WeakKeyDictionary()
_by_device_lock = threading.Lock()


def pipelines_of(device: Any) -> Pipelines:
    """The one :class:`Pipelines` of ``device``."""
    with _by_device_lock:
        found = _by_device.get(device)
        if found is None:
            found = _by_device[device] = Pipelines(device)
        return found
