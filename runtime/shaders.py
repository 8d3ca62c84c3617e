"""Shader modules, layouts and compute pipelines.

One :class:`Pipelines` a device: programs and methods that carry the same shader (by sha256) share
its module, and kernels with the same accesses share their layouts.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from executorch_wgpu.serialization.dispatch_list import (
    LIVE_SLOTS,
    Access,
    Kernel,
    ParamKind,
    Shader,
)

from .errors import gpu_errors

#: Bytes of the live block.
LIVE_BYTES = LIVE_SLOTS * 4

_COMPUTE = 4  # GPUShaderStage.COMPUTE, the same number in every implementation


def is_native(device: Any) -> bool:
    """True when ``device`` is wgpu-native's (naga), False for Dawn's (Tint)."""
    return type(device).__module__.startswith("wgpu.backends.wgpu_native")


class Pipelines:
    """What one device has compiled. Thread-safe.

    Args:
        device: a ``GPUDevice`` of wgpu or wgpudawn.
    """

    def __init__(self, device: Any) -> None:
        # Weak: the instance is kept in a map keyed by the device.
        self._device = weakref.ref(device)
        self._lock = threading.Lock()
        self._modules: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
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

    @property
    def device(self) -> Any:
        """The device; alive as long as any graph on it is."""
        device = self._device()
        assert device is not None
        return device

    def layouts(self, accesses: tuple[Access, ...]) -> tuple[Any, Any]:
        """(bind group layout of group 1, pipeline layout) for kernels with these accesses."""
        with self._lock:
            found = self._layouts.get(accesses)
            if found is None:
                kinds = {Access.READ: "read-only-storage", Access.READ_WRITE: "storage"}
                group = self.device.create_bind_group_layout(
                    entries=[
                        {"binding": i, "visibility": _COMPUTE, "buffer": {"type": kinds[access]}}
                        for i, access in enumerate(accesses)
                    ]
                )
                layout = self.device.create_pipeline_layout(
                    bind_group_layouts=[self.live_layout, group]
                )
                found = self._layouts[accesses] = (group, layout)
            return found

    def module(self, shader: Shader, label: str) -> Any:
        """The compiled module of ``shader``.

        Raises:
            InvalidProgramError: the WGSL does not compile; the message has ``label``.
        """
        with self._lock:
            module = self._modules.get(shader.sha256)
            if module is None:
                code = source(shader, native=is_native(self.device))
                with gpu_errors(label, f"compiling shader {shader.sha256[:12]}", loading=True):
                    module = self.device.create_shader_module(label=label, code=code)
                self._modules[shader.sha256] = module
            return module

    def pipeline(self, kernel: Kernel, module: Any, label: str) -> Any:
        """A compute pipeline for ``kernel``, whose compiled shader is ``module``.

        Raises:
            InvalidProgramError: the device refuses it; the message has ``label``.
        """
        _, layout = self.layouts(kernel.accesses)
        constants = {
            param.name: bool(param.value) if param.kind is ParamKind.BOOL else param.value
            for param in kernel.params
        }
        with gpu_errors(label, f"creating the pipeline of '{kernel.entry_point}'", loading=True):
            return self.device.create_compute_pipeline(
                label=label,
                layout=layout,
                compute={
                    "module": module,
                    "entry_point": kernel.entry_point,
                    "constants": constants,
                },
            )


def source(shader: Shader, *, native: bool) -> str:
    """The WGSL with the ``enable`` lines that the device's compiler wants: naga rejects
    ``enable subgroups;`` (it takes the calls without), Tint requires it."""
    enables = [e for e in sorted(shader.extensions) if not (native and e == "subgroups")]
    return "".join(f"enable {e};\n" for e in enables) + shader.wgsl


def trust_shaders() -> bool:
    """False when ``EXECUTORCH_WGPU_LOOP_BOUNDING`` asks for naga's loop counters."""
    return os.environ.get("EXECUTORCH_WGPU_LOOP_BOUNDING", "") in ("", "0")


_pipelines: weakref.WeakKeyDictionary[Any, Pipelines] = weakref.WeakKeyDictionary()
_pipelines_lock = threading.Lock()


def pipelines_of(device: Any) -> Pipelines:
    """The one :class:`Pipelines` of ``device``."""
    with _pipelines_lock:
        found = _pipelines.get(device)
        if found is None:
            found = _pipelines[device] = Pipelines(device)
        return found
