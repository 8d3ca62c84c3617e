"""Published models by name: what they are, without their weights. For tests and benchmarks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from executorch.examples.models.llama.model_args import ModelArgs

from executorch_wgpu.scripts.recipes import llama
from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint
from executorch_wgpu.scripts.recipes.whole import Llama, random_weights

_LLAMA3 = {"vocab_size": 128256, "rope_theta": 5e5, "n_kv_heads": 8}
_LLAMA3_1 = {**_LLAMA3, "use_scaled_rope": True, "rope_scale_factor": 8}
_LLAMA3_2 = {**_LLAMA3, "use_scaled_rope": True, "rope_scale_factor": 32}
_QWEN = {"vocab_size": 151936, "rope_theta": 1e6, "norm_eps": 1e-6, "use_hf_rope": True}

#: name -> (fields of ModelArgs, whether embedding and head are one tensor)
_FAMILIES: dict[str, tuple[dict[str, Any], bool]] = {
    "llama2_7b": (
        {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32}
        | {"hidden_dim": 11008, "vocab_size": 32000},
        False,
    ),
    "llama3_8b": (
        {**_LLAMA3, "dim": 4096, "n_layers": 32, "n_heads": 32, "hidden_dim": 14336},
        False,
    ),
    "llama3_1_8b": (
        {**_LLAMA3_1, "dim": 4096, "n_layers": 32, "n_heads": 32, "hidden_dim": 14336},
        False,
    ),
    "llama3_2_1b": (
        {**_LLAMA3_2, "dim": 2048, "n_layers": 16, "n_heads": 32, "hidden_dim": 8192},
        True,
    ),
    "llama3_2_3b": (
        {**_LLAMA3_2, "dim": 3072, "n_layers": 28, "n_heads": 24, "hidden_dim": 8192},
        True,
    ),
    "smollm2_135m": (
        {"dim": 576, "n_layers": 30, "n_heads": 9, "n_kv_heads": 3, "hidden_dim": 1536}
        | {"vocab_size": 49152, "rope_theta": 1e5},
        True,
    ),
    "qwen2_5_0_5b": (
        {**_QWEN, "dim": 896, "n_layers": 24, "n_heads": 14, "n_kv_heads": 2}
        | {"hidden_dim": 4864, "attention_qkv_bias": True},
        True,
    ),
    "qwen3_0_6b": (
        {**_QWEN, "dim": 1024, "n_layers": 28, "n_heads": 16, "n_kv_heads": 8, "head_dim": 128}
        | {"hidden_dim": 3072, "use_qk_norm": True, "qk_norm_before_rope": True},
        True,
    ),
}

NAMES = tuple(_FAMILIES)

#: Where a matrix may begin in the block of :func:`tiled`: groups of so many neighbours share a
#: scale at most, so that quantized numbers repeat as well.
_TILE_STEP = 256


def model_args(name: str, **overrides: Any) -> ModelArgs:
    """One of :data:`NAMES`, with ``overrides`` as of ``llama.model_args``. KeyError for others."""
    return llama.model_args(**{**_FAMILIES[name][0], **overrides})


def is_tied(name: str) -> bool:
    """Whether the embedding is the head, too."""
    return _FAMILIES[name][1]


def random_checkpoint(name: str, seed: int = 0, **overrides: Any) -> Checkpoint:
    """The model with random weights, of a size at which logits stay in the tens. ``overrides``:
    fields of ModelArgs, such as fewer layers. KeyError for an unknown name."""
    fields = {**_FAMILIES[name][0], **overrides}
    args = llama.model_args(**fields)
    weights = random_weights(args, seed, std=args.dim**-0.5)
    if is_tied(name):
        weights["output.weight"] = weights["tok_embeddings.weight"]
    return Checkpoint(name, fields, weights, torch.float32)


def tiled(checkpoint: Checkpoint, seed: int = 0, numbers: int = 1 << 24) -> Checkpoint:
    """The same model with matrices cut from one block of random ``numbers`` that repeats: its file
    is as large, and compresses to little more than the block.

    Every matrix begins at another place of the block, so that no two are equal: a file holds equal
    ones once, and a device's cache would, too. Vectors stay as they are. Raises ValueError where
    the block has fewer places than the model has matrices.
    """
    args = checkpoint.model_args()
    shapes = {name: parameter.shape for name, parameter in Llama(args).named_parameters()}
    matrices = [name for name in sorted(shapes) if len(shapes[name]) == 2]
    # Tied ones have one maker, and keep one.
    makers = list(dict.fromkeys(checkpoint.weights[name] for name in matrices))
    generator = torch.Generator().manual_seed(seed)
    block = torch.empty(numbers).normal_(0.0, args.dim**-0.5, generator=generator)
    places = torch.randperm(numbers // _TILE_STEP, generator=generator)[: len(makers)]
    if len(places) < len(makers):
        raise ValueError(f"{len(makers)} matrices and {len(places)} places in the block")

    def cut(shape: torch.Size, begin: int) -> Callable[[], torch.Tensor]:
        def make() -> torch.Tensor:
            first = block[begin : begin + shape.numel()]
            rest = shape.numel() - first.numel()
            again = block.repeat(-(-rest // numbers))[:rest]
            return torch.cat([first, again]).view(shape)

        return make

    cuts: dict[Callable[[], torch.Tensor], Callable[[], torch.Tensor]] = {}
    weights = dict(checkpoint.weights)
    for name in matrices:
        old = weights[name]
        if old not in cuts:
            cuts[old] = cut(shapes[name], int(places[len(cuts)]) * _TILE_STEP)
        weights[name] = cuts[old]
    return dataclasses.replace(checkpoint, weights=weights)
