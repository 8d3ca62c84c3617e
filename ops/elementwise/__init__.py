"""Pointwise operators, reductions over the last dimensions, and copies."""

from executorch_wgpu.ops.elementwise import fused, operators, reduce  # noqa: F401
