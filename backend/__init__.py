"""Ahead of time: the partitioner, the graph passes, the lowering.

``WgpuPartitioner``, ``WgpuBackend`` and ``CompileOptions`` are loaded when first asked for:
importing executorch takes seconds, and most of this package does without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executorch_wgpu.backend.options import CompileOptions
    from executorch_wgpu.backend.partitioner import WgpuPartitioner
    from executorch_wgpu.backend.preprocess import WgpuBackend

__all__ = ["CompileOptions", "WgpuBackend", "WgpuPartitioner"]


def __getattr__(name: str) -> Any:
    if name == "CompileOptions":
        from executorch_wgpu.backend.options import CompileOptions

        return CompileOptions
    if name == "WgpuPartitioner":
        from executorch_wgpu.backend.partitioner import WgpuPartitioner

        return WgpuPartitioner
    if name == "WgpuBackend":
        from executorch_wgpu.backend.preprocess import WgpuBackend

        return WgpuBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
