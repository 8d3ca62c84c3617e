"""Checkpoints in Hugging Face's layout: ``config.json`` and safetensors, whole or in shards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint, UnsupportedModelError
from executorch_wgpu.scripts.text.files import from_folder

#: Name in the file -> name in ExecuTorch's transformer, without ``.weight`` or ``.bias``.
_TOP = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
_BLOCK = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm_fn",
    "self_attn.k_norm": "attention.k_norm_fn",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}

#: ``model_type`` -> fields of ModelArgs. A plain llama rotates neighbouring pairs, for which q and
#: k are put in Meta's order; the others use Hugging Face's rotation and their weights as they are.
_MODEL_TYPES: dict[str, dict[str, Any]] = {
    "llama": {"use_hf_rope": False},
    "mistral": {"use_hf_rope": False},
    "qwen2": {"use_hf_rope": True, "attention_qkv_bias": True},
    "qwen3": {"use_hf_rope": True, "use_qk_norm": True, "qk_norm_before_rope": True},
    "phi3": {"use_hf_rope": True},
}

#: Llama 3.1's and 3.2's scaling, with the numbers that ExecuTorch's definition has built in.
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "original_max_position_embeddings": 8192}


def open_hf(folder: str | Path) -> Checkpoint:
    """The checkpoint in a folder, with its tokenizer.

    Raises FileNotFoundError, UnsupportedModelError, and ValueError for malformed files.
    """
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    kind = config.get("model_type")
    if kind not in _MODEL_TYPES:
        known = ", ".join(_MODEL_TYPES)
        raise UnsupportedModelError(f"{folder}: model_type {kind!r}; supported: {known}")
    try:
        args = {**_MODEL_TYPES[kind], **_model_args(config)}
    except KeyError as error:
        raise ValueError(f"{folder}: config.json has no {error}") from error
    sources = _tensors(folder)
    dtypes: set[torch.dtype] = set()
    weights: dict[str, Callable[[], Tensor]] = {}
    for name, source in sources.items():
        if name.endswith("rotary_emb.inv_freq"):
            continue
        weights |= _place(name, source, args)
        if name.endswith("_proj.weight"):
            dtypes.add(source.dtype)
    if "tok_embeddings.weight" not in weights:
        raise ValueError(f"{folder}: no model.embed_tokens.weight in its safetensors")
    weights.setdefault("output.weight", weights["tok_embeddings.weight"])
    return Checkpoint(
        name=folder.resolve().name,
        args=args,
        weights=weights,
        dtype=dtypes.pop() if len(dtypes) == 1 else torch.float32,
        context=_context(config),
        text=from_folder(folder),
    )


# -- the configuration -----------------------------------------------------------------------


def _model_args(config: dict[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"activation {config['hidden_act']!r} is not supported")
    if config.get("mlp_bias") or (config.get("attention_bias") and config["model_type"] != "qwen2"):
        raise UnsupportedModelError("biases of the output projection or MLP are not supported")
    rope = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    return {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": heads,
        "n_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "hidden_dim": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
        "norm_eps": config["rms_norm_eps"],
        "rope_theta": float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        **_rope_scaling(rope, config),
    }


def _rope_scaling(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    partial = config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0))
    found: dict[str, Any] = {} if partial == 1.0 else {"partial_rotary_factor": partial}
    if kind == "default":
        return found
    if kind == "llama3" and all(rope.get(k) == v for k, v in _LLAMA3_SCALING.items()):
        factors = {
            "rope_scale_factor": rope["factor"],
            "high_freq_factor": rope["high_freq_factor"],
        }
        if all(value == int(value) for value in factors.values()):
            return found | {k: int(v) for k, v in factors.items()} | {"use_scaled_rope": True}
    if kind == "longrope":
        return found | {
            "rope_scaling_short_factor": rope["short_factor"],
            "rope_scaling_long_factor": rope["long_factor"],
            "rope_scaling_attention_factor": rope.get("attention_factor"),
            "original_max_position_embeddings": rope.get("original_max_position_embeddings")
            or config.get("original_max_position_embeddings"),
            "max_position_embeddings": config.get("max_position_embeddings"),
        }
    numbers = ", ".join(f"{k} {v}" for k, v in rope.items() if isinstance(v, (int, float)))
    raise UnsupportedModelError(f"rotary scaling {kind!r} ({numbers}) is not supported")


def _context(config: dict[str, Any]) -> int | None:
    """Positions, no more than where a sliding window would begin to matter."""
    limits = [config.get("max_position_embeddings")]
    if config.get("use_sliding_window", True):
        limits.append(config.get("sliding_window"))
    known = [limit for limit in limits if limit]
    return min(known) if known else None


# -- the weights -----------------------------------------------------------------------------


class _Source:
    """A tensor in a safetensors file; calling it reads it. Its bytes are mapped, not copied."""

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self._name = name

    @property
    def dtype(self) -> torch.dtype:
        name = self._file.get_slice(self._name).get_dtype()
        return {"F16": torch.float16, "BF16": torch.bfloat16}.get(name, torch.float32)

    def __call__(self) -> Tensor:
        return self._file.get_tensor(self._name)


def _tensors(folder: Path) -> dict[str, _Source]:
    """Every tensor of the folder's safetensors files, by name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text())["weight_map"]
        opened = {file: _open(folder / file) for file in sorted({*names.values()})}
        return {name: _Source(opened[file], name) for name, file in names.items()}
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: neither model.safetensors nor its index is there")
    file = _open(path)
    return {name: _Source(file, name) for name in list(file.keys())}


def _open(path: Path) -> Any:
    """Raises FileNotFoundError, and ValueError for a file of another format."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise ValueError(f"{path}: no safetensors file: {error}") from error


def _place(
    name: str, source: Callable[[], Tensor], args: dict[str, Any]
) -> dict[str, Callable[[], Tensor]]:
    """The parameters that a tensor of the file fills."""
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if kind in ("weight", "bias"):
        if stem in _TOP:
            return {f"{_TOP[stem]}.{kind}": source}
        if block and (parts := _fused(block[2], args)):
            prefix = f"layers.{block[1]}"
            return {
                f"{prefix}.{_BLOCK[part]}.{kind}": _rows(source, start, stop)
                for part, (start, stop) in parts.items()
            }
        if block and block[2] in _BLOCK:
            target = f"layers.{block[1]}.{_BLOCK[block[2]]}.{kind}"
            if block[2] in ("self_attn.q_proj", "self_attn.k_proj") and not args["use_hf_rope"]:
                return {target: _pairs(source, args["head_dim"])}
            return {target: source}
    raise UnsupportedModelError(f"tensor {name!r} has no place in a llama")


def _fused(part: str, args: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Rows of the projections that phi3 keeps in one tensor."""
    if part == "self_attn.qkv_proj":
        q, kv = args["n_heads"] * args["head_dim"], args["n_kv_heads"] * args["head_dim"]
        sizes = {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
    elif part == "mlp.gate_up_proj":
        sizes = {"mlp.gate_proj": args["hidden_dim"], "mlp.up_proj": args["hidden_dim"]}
    else:
        return {}
    rows, start = {}, 0
    for name, size in sizes.items():
        rows[name] = (start, start + size)
        start += size
    return rows


def _rows(source: Callable[[], Tensor], start: int, stop: int) -> Callable[[], Tensor]:
    def make() -> Tensor:
        return source()[start:stop]

    return make


def _pairs(source: Callable[[], Tensor], head_dim: int) -> Callable[[], Tensor]:
    """Rows of each head in Meta's order, where the two that rotate together are neighbours; in
    Hugging Face's they are half a head apart."""

    def make() -> Tensor:
        tensor = source()
        halves = tensor.reshape(-1, 2, head_dim // 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)

    return make
