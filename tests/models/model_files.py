"""Writes the models of model_reference.py in the formats that checkpoints come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

import model_reference as reference

#: Name in Hugging Face's files -> in Meta's and in llama.cpp's.
_NAMES = {
    "model.embed_tokens": ("tok_embeddings", "token_embd"),
    "model.norm": ("norm", "output_norm"),
    "lm_head": ("output", "output"),
    "input_layernorm": ("attention_norm", "attn_norm"),
    "post_attention_layernorm": ("ffn_norm", "ffn_norm"),
    "self_attn.q_proj": ("attention.wq", "attn_q"),
    "self_attn.k_proj": ("attention.wk", "attn_k"),
    "self_attn.v_proj": ("attention.wv", "attn_v"),
    "self_attn.o_proj": ("attention.wo", "attn_output"),
    "self_attn.q_norm": ("attention.q_norm_fn", "attn_q_norm"),
    "self_attn.k_norm": ("attention.k_norm_fn", "attn_k_norm"),
    "mlp.gate_proj": ("feed_forward.w1", "ffn_gate"),
    "mlp.up_proj": ("feed_forward.w3", "ffn_up"),
    "mlp.down_proj": ("feed_forward.w2", "ffn_down"),
}


def _renamed(name: str, column: int, prefix: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem][column]}.{kind}"
    _, _, number, part = stem.split(".", 3)
    return f"{prefix}.{number}.{_NAMES[part][column]}.{kind}"


def _in_pairs(name: str, tensor: Tensor, c: dict[str, Any]) -> Tensor:
    """q and k with the rows that rotate together as neighbours, as Meta and, for a llama,
    llama.cpp keep them."""
    if "q_proj" not in name and "k_proj" not in name:
        return tensor
    rows = torch.arange(tensor.shape[0]).view(-1, c["head_dim"])
    half = c["head_dim"] // 2
    order = torch.stack([rows[:, :half], rows[:, half:]], -1).reshape(-1)
    return tensor[order]


def write_hf(
    folder: Path, c: dict[str, Any], weights: dict[str, Tensor], *, shards: int = 1
) -> Path:
    """config.json and safetensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c))
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    index = {}
    for k in range(shards):
        name = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[k::shards]}
        save_file(part, folder / name)
        index |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def write_meta(
    folder: Path, c: dict[str, Any], weights: dict[str, Tensor], **params: Any
) -> tuple[Path, Path]:
    """consolidated.00.pth and params.json."""
    folder.mkdir(exist_ok=True)
    tensors = {
        _renamed(name, 0, "layers"): _in_pairs(name, tensor, c).contiguous()
        for name, tensor in weights.items()
    }
    tensors["rope.freqs"] = torch.zeros(2)
    torch.save(tensors, folder / "consolidated.00.pth")
    fields = {
        "dim": c["hidden_size"],
        "n_layers": c["num_hidden_layers"],
        "n_heads": c["num_attention_heads"],
        "n_kv_heads": c["num_key_value_heads"],
        "vocab_size": -1,
        "norm_eps": c["rms_norm_eps"],
        "rope_theta": c["rope_theta"],
        **params,
    }
    (folder / "params.json").write_text(json.dumps(fields))
    return folder / "consolidated.00.pth", folder / "params.json"


#: Kinds that the gguf package reads only: bytes of a block of 256 weights, and where the f16 are.
_K_KINDS = {"Q4_K": (144, (0, 2), 2.0**-11), "Q6_K": (210, (208,), 2.0**-15)}


def _blocks(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """A matrix [N, K] in blocks; random ones of the kinds that nothing here writes."""
    if kind.name not in _K_KINDS:
        return gguf.quants.quantize(array, kind)
    size, halves, scale = _K_KINDS[kind.name]
    rows, columns = array.shape
    generator = np.random.default_rng(array.size)
    data = generator.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    for at in halves:
        values = generator.uniform(scale / 2, scale, (rows, columns // 256, 1))
        data[..., at : at + 2] = values.astype(np.float16).view(np.uint8)
    return data.reshape(rows, -1)


def write_gguf(
    path: Path,
    c: dict[str, Any],
    weights: dict[str, Tensor],
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Any = None,
) -> Path:
    """A GGUF file. ``kind``: of its matrices. ``extra``: called with the writer."""
    architecture = c["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    for name, tensor in weights.items():
        if architecture == "llama":
            tensor = _in_pairs(name, tensor, c)
        new, array = _renamed(name, 1, "blk"), tensor.contiguous().numpy()
        if tensor.ndim == 2 and kind is not gguf.GGMLQuantizationType.F32:
            writer.add_tensor(new, _blocks(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(new, array)
    if c.get("rope_scaling"):
        plain = reference.frequencies({**c, "rope_scaling": None})
        factors = (plain / reference.frequencies(c)).float().numpy()
        writer.add_tensor("rope_freqs.weight", factors)
    if extra is not None:
        extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
