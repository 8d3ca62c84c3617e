"""Rotary position embeddings (Su et al. 2021), in both ways that pairs are laid out."""

from executorch_wgpu.ops.rope import rope, rope_cache  # noqa: F401
