"""Weights and caches stored in 16 bits, computed with in f32.

What ``--dtype`` and ``--kv-dtype`` make of the graph: every activation stays f32, and each read of
a stored tensor is followed by a conversion, which a kernel takes in as it loads::

    linear      _to_copy(weight: f16) -> f32, linear(x: f32, that)
    embedding   embedding(weight: f16, tokens), _to_copy -> f32
    KV cache    _to_copy(k: f32) -> f16, update_cache(that, cache: f16)
    attention   custom_sdpa(q: f32, _to_copy(cache: f16) -> f32, ...)

``module.to(torch.float16)`` instead would round every activation as well, and what a model
computes would drift from its f32 self by far more than its weights did. Tensors of one dimension
(norm weights, biases) stay f32: they are small, and read whole at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class StoredLinear(nn.Module):
    """A linear layer over a weight of any float dtype; input, bias and output are f32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(torch.float32), self.bias)


class StoredEmbedding(nn.Module):
    """An embedding table of any float dtype; its rows come out as f32."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.weight).to(torch.float32)


class StoredKVCache(nn.Module):
    """A KV cache ``[1, context, heads, head_dim]`` of any float dtype, for f32 attention.

    Stands in for ExecuTorch's ``CustomKVCache``, whose dtype has to be that of q, k and v.
    """

    def __init__(
        self, context: int, heads: int, head_dim: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        shape = (1, context, heads, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype, device="cpu"))
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype, device="cpu"))

    def update(self, input_pos: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store ``k`` and ``v`` ``[1, heads, S, head_dim]`` from position ``input_pos[0]`` on.
        Returns the whole caches in the same layout, in f32."""
        position = input_pos[0].item()
        for new, cache in ((k, self.k_cache), (v, self.v_cache)):
            torch.ops.llama.update_cache(new.transpose(1, 2).to(cache.dtype), cache, position)
        return (
            self.k_cache.to(torch.float32).transpose(1, 2),
            self.v_cache.to(torch.float32).transpose(1, 2),
        )

    def reset(self) -> None:
        """Empty it."""
        self.k_cache.zero_()
        self.v_cache.zero_()


def store_weights(module: nn.Module) -> None:
    """Replace each linear and embedding below ``module`` whose weight is not f32."""
    for name, child in module.named_children():
        weight = getattr(child, "weight", None)
        if weight is not None and weight.dtype != torch.float32:
            if isinstance(child, nn.Linear):
                setattr(module, name, StoredLinear(child))
            elif isinstance(child, nn.Embedding):
                setattr(module, name, StoredEmbedding(child))
        else:
            store_weights(child)
