"""Normalisations of the last dimension."""

from executorch_wgpu.ops.norm import rms_norm, softmax  # noqa: F401
