"""Attention over a KV cache: the ``llama::`` operators of ExecuTorch."""

from executorch_wgpu.ops.attention import rope_attention, sdpa, update_cache  # noqa: F401
