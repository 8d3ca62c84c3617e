"""Llama models written down anew in double precision, by Hugging Face's conventions and names, and
tiny random ones to try them on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def config(kind: str, **overrides: Any) -> dict[str, Any]:
    """The config.json of a tiny model."""
    return {
        "model_type": kind,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8 if kind == "qwen3" else 4,
        "intermediate_size": 40,
        "vocab_size": 40,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        **overrides,
    }


def random_weights(c: dict[str, Any]) -> dict[str, Tensor]:
    """Weights of such a model, by their names in its safetensors."""
    generator = torch.Generator().manual_seed(1)
    dim, inner, size = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * size, c["num_key_value_heads"] * size

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def vector(count: int, middle: float) -> Tensor:
        return middle + 0.2 * torch.randn(count, generator=generator)

    weights = {"model.embed_tokens.weight": matrix(c["vocab_size"], dim) * 4}
    weights["model.norm.weight"] = vector(dim, 1)
    if not c["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(c["vocab_size"], dim) * 2
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        weights[p + "input_layernorm.weight"] = vector(dim, 1)
        weights[p + "post_attention_layernorm.weight"] = vector(dim, 1)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            weights[f"{p}self_attn.{name}_proj.weight"] = matrix(rows, dim) * 2
            if c["model_type"] == "qwen2":
                weights[f"{p}self_attn.{name}_proj.bias"] = vector(rows, 0)
        if c["model_type"] == "qwen3":
            weights[p + "self_attn.q_norm.weight"] = vector(size, 1)
            weights[p + "self_attn.k_norm.weight"] = vector(size, 1)
        weights[p + "self_attn.o_proj.weight"] = matrix(dim, q)
        weights[p + "mlp.gate_proj.weight"] = matrix(inner, dim)
        weights[p + "mlp.up_proj.weight"] = matrix(inner, dim)
        weights[p + "mlp.down_proj.weight"] = matrix(dim, inner)
    return weights


def frequencies(c: dict[str, Any]) -> Tensor:
    """Radians a position of each rotated pair."""
    size = int(c["head_dim"] * c.get("partial_rotary_factor", 1.0))
    found = c["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
    scaling = c.get("rope_scaling")
    if scaling is None:
        return found
    assert scaling["rope_type"] == "llama3"
    turns = scaling["original_max_position_embeddings"] * found / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return found * (smooth + (1 - smooth) / scaling["factor"])


def logits(weights: dict[str, Tensor], c: dict[str, Any], tokens: Tensor) -> Tensor:
    """``[S, V]`` for the S ``tokens`` of a text, from its start."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    angles = torch.arange(len(tokens)).double()[:, None] * frequencies(c)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]).sqrt() * w[name]

    def rotate(x: Tensor) -> Tensor:
        half = angles.shape[1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (
            (
                h @ w[f"{p}self_attn.{n}_proj.weight"].T + w.get(f"{p}self_attn.{n}_proj.bias", 0)
            ).view(len(tokens), -1, size)
            for n in "qkv"
        )
        if c["model_type"] == "qwen3":
            q = norm(q, p + "self_attn.q_norm.weight")
            k = norm(k, p + "self_attn.k_norm.weight")
        q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
        scores += torch.full(scores.shape[1:], -math.inf).triu(1)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(tokens), -1)
        x = x + mixed @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(h @ w[p + "mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm.weight") @ head.T


#: As Hugging Face's config.json has it for Llama 3.2.
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
