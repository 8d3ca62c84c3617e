"""Layers of llama models, built from ``executorch.examples.models.llama``'s own modules.

Two forms of the same layer, with the same weights and the same results:

* :class:`Layer` is what ExecuTorch's llama exporter makes of a transformer block: its KV cache
  and attention replaced by the custom ones, so that a graph has two ``llama.update_cache`` and
  one ``llama.custom_sdpa``.
* :class:`FusedLayer` calls ``llama.sdpa_with_kv_cache``, which does both in one operator and
  which no source transformation emits.

Both take ``x`` ``[1, S, dim]`` and ``input_pos`` ``[1]`` (int64, the position of the first of the
S tokens) and keep their caches between calls. Module paths are those of the whole model
(``layers.3.attention``), so labels and state names do not change with how much is exported.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from executorch.examples.models.llama.llama_transformer import Transformer, construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from executorch.examples.models.llama.source_transformation.custom_kv_cache import (
    replace_kv_cache_with_custom_kv_cache,
)
from executorch.examples.models.llama.source_transformation.sdpa import (
    replace_sdpa_with_custom_op,
)

# Registers the operators of the namespace llama.
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
from torch import Tensor, nn

#: Standard deviation of random weights: outputs of a layer stay near the size of its input.
_WEIGHT_STD = 0.05


class Layer(nn.Module):
    """One transformer block with the rotary table it needs.

    Args:
        model: an untransformed model with KV caches and live sizes (see :func:`model_args`);
            the block is taken out of it and transformed in place.
        index: which block.
    """

    def __init__(self, model: Transformer, index: int = 0) -> None:
        super().__init__()
        block = model.layers[index]
        replace_kv_cache_with_custom_kv_cache(block)
        replace_sdpa_with_custom_op(block)
        self.rope = model.rope
        self.layers = nn.ModuleDict({str(index): block})
        self.dim: int = model.params.dim
        self.max_seq_len: int = model.params.max_seq_len
        self.max_context_len: int = model.params.max_context_len

    @property
    def block(self) -> nn.Module:
        """The transformer block itself."""
        (block,) = self.layers.values()
        return block

    def forward(self, x: Tensor, input_pos: Tensor) -> Tensor:
        freqs_cos, freqs_sin = self.rope.get_freqs(input_pos, x.shape[1])
        y, _ = self.block(x, freqs_cos, freqs_sin, {"input_pos": input_pos})
        return y

    def reset(self) -> None:
        """Empty the KV cache, as if the layer had just been built."""
        cache = self.block.attention.kv_cache
        cache.k_cache.zero_()
        cache.v_cache.zero_()


class FusedAttention(nn.Module):
    """The attention of a :class:`Layer`, with one ``llama.sdpa_with_kv_cache``."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (
            attention.wq,
            attention.wk,
            attention.wv,
            attention.wo,
        )
        self.rope = attention.rope
        self.kv_cache = attention.kv_cache
        self.n_heads: int = attention.n_heads
        self.n_kv_heads: int = attention.n_kv_heads
        self.head_dim: int = attention.head_dim

    def forward(
        self, x: Tensor, freqs_cos: Tensor, freqs_sin: Tensor, input_pos: Tensor
    ) -> tuple[Tensor, None]:
        batch, seq_len, _ = x.shape
        q = self.wq(x).view(batch, seq_len, self.n_heads, self.head_dim)
        k = self.wk(x).view(batch, seq_len, self.n_kv_heads, self.head_dim)
        v = self.wv(x).view(batch, seq_len, self.n_kv_heads, self.head_dim)
        q, k = self.rope.forward(q, k, freqs_cos, freqs_sin)
        start_pos = input_pos[0].item()
        y = torch.ops.llama.sdpa_with_kv_cache(
            q,
            k,
            v,
            self.kv_cache.k_cache,
            self.kv_cache.v_cache,
            start_pos,
            seq_len,
            None,  # no mask: causal
            0.0,  # dropout
            True,  # causal
        )
        return self.wo(y.view(batch, seq_len, self.n_heads * self.head_dim)), None


class FusedLayer(Layer):
    """A :class:`Layer` whose attention is :class:`FusedAttention`; same arguments."""

    def __init__(self, model: Transformer, index: int = 0) -> None:
        super().__init__(model, index)
        self.block.attention = FusedAttention(self.block.attention)


def model_args(
    *,
    dim: int,
    n_heads: int,
    n_kv_heads: int,
    hidden_dim: int,
    n_layers: int = 1,
    vocab_size: int = 32,
    max_seq_len: int = 128,
    max_context_len: int = 512,
    **overrides: Any,
) -> ModelArgs:
    """ModelArgs with a KV cache and live sizes. ``overrides``: any other field of ModelArgs.

    Raises ValueError where a prompt would be allowed to be longer than the cache.
    """
    if max_seq_len > max_context_len:
        raise ValueError(
            f"max_seq_len {max_seq_len} is larger than max_context_len {max_context_len}"
        )
    return ModelArgs(
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        vocab_size=vocab_size,
        hidden_dim=hidden_dim,
        use_kv_cache=True,
        enable_dynamic_shape=True,
        max_seq_len=max_seq_len,
        max_context_len=max_context_len,
        **overrides,
    )


def random_llama(args: ModelArgs, seed: int = 0) -> Transformer:
    """A model with random weights, the same for the same ``args`` and ``seed``. Norm weights are
    near 1, biases small; nothing is left as the allocator found it."""
    model = construct_transformer(args).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator) * _WEIGHT_STD
        is_norm = parameter.ndim == 1 and not name.endswith("bias")
        parameter.data = 1.0 + values if is_norm else values
        parameter.requires_grad_(False)
    return model


def random_layer(args: ModelArgs, seed: int = 0, index: int = 0, *, fused: bool = False) -> Layer:
    """A :class:`Layer` (``fused``: :class:`FusedLayer`) of :func:`random_llama`."""
    args = dataclasses.replace(args, apply_embedding=False, apply_output=False)
    return (FusedLayer if fused else Layer)(random_llama(args, seed), index)


def example_inputs(layer: Layer, seq_len: int = 3) -> tuple[Tensor, Tensor]:
    """Inputs to export with: export turns sizes of 0 and 1 into constants, so S is 3."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, min(seq_len, layer.max_seq_len), layer.dim, generator=generator)
    return x, torch.zeros(1, dtype=torch.int64)


def dynamic_shapes(layer: Layer) -> tuple[dict[int, Any], None]:
    """S lives, from 1 to ``max_seq_len``; everything else is fixed."""
    return {1: torch.export.Dim("S", min=1, max=layer.max_seq_len)}, None


def export_layer(layer: Layer) -> torch.export.ExportedProgram:
    """Export a layer with a live S and a live ``input_pos[0]``. An ExportedProgram can be lowered
    once only: export again for each lowering."""
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        return torch.export.export(
            layer, example_inputs(layer), dynamic_shapes=dynamic_shapes(layer)
        )
