"""Choosing the next token from logits."""

from executorch_wgpu.ops.sampling import operator, sample  # noqa: F401
