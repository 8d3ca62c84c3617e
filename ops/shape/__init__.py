"""Operators that move no arithmetic: views, slices, joins and copies."""

from executorch_wgpu.ops.shape import joins, views  # noqa: F401
