"""Attention over a KV cache: the ``llama::`` operators of ExecuTorch."""

from executorch_wgpu.ops.attention import sdpa, update_cache  # noqa: F401
