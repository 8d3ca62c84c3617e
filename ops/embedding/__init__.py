"""Rows picked by index: embedding, index_select, index."""

from executorch_wgpu.ops.embedding import gather  # noqa: F401
