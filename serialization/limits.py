"""WebGPU's default limits: what every conforming adapter offers (WebGPU specification,
section 3.6.2, "supported limits"). An artifact that stays within them runs anywhere."""

from __future__ import annotations

#: Name (as the WebGPU specification spells it, in kebab case as wgpu-py does) -> default value.
DEFAULT_LIMITS: dict[str, int] = {
    "max-bind-groups": 4,
    "max-storage-buffers-per-shader-stage": 8,
    "max-uniform-buffer-binding-size": 65536,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
    "min-uniform-buffer-offset-alignment": 256,
    "min-storage-buffer-offset-alignment": 256,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
}

#: No feature of WebGPU, where every device has WGSL's dot4I8Packed: that the driver is handed it as
#: one operation, so that kernels built on it pay.
INTEGER_DOT = "integer-dot"

#: No feature of WebGPU yet: subgroups of exactly 32 lanes multiply f16 matrices of 16 x 16 by
#: 16 x 16 and add up in f32, by WGSL's subgroup matrices as Dawn has them.
MATRIX_UNITS = "matrix-units"

#: The optional features that a compute kernel can need, by WebGPU's names; and the two above.
KNOWN_FEATURES: frozenset[str] = frozenset({"shader-f16", "subgroups", INTEGER_DOT, MATRIX_UNITS})

#: WGSL extension, as :class:`~executorch_wgpu.serialization.dispatch_list.Shader` names it ->
#: the feature of the device without which its ``enable`` is an error.
EXTENSION_FEATURES: dict[str, str] = {
    "f16": "shader-f16",
    "subgroups": "subgroups",
    "chromium_experimental_subgroup_matrix": MATRIX_UNITS,
}
