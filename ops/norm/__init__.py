"""Normalisations of the last dimensions."""

from executorch_wgpu.ops.norm import layer_norm, rms_norm, softmax  # noqa: F401
