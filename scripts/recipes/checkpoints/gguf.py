"""Checkpoints in llama.cpp's GGUF format: the architectures llama, qwen2 and qwen3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from executorch_wgpu.ops.quant.layout import PackedWeight
from executorch_wgpu.scripts.recipes import gguf_blocks
from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint, UnsupportedModelError
from executorch_wgpu.scripts.text import gguf as gguf_text

#: Name in the file -> name in ExecuTorch's transformer, without ``.weight`` or ``.bias``.
_TOP = {"token_embd": "tok_embeddings", "output_norm": "norm", "output": "output"}
_BLOCK = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.wq",
    "attn_k": "attention.wk",
    "attn_v": "attention.wv",
    "attn_output": "attention.wo",
    "attn_q_norm": "attention.q_norm_fn",
    "attn_k_norm": "attention.k_norm_fn",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2",
    "ffn_up": "feed_forward.w3",
}

#: How each architecture differs from a plain llama. llama.cpp stores q and k of a llama for the
#: rotation of neighbouring pairs, which is ``use_hf_rope=False``; those of the others as they are
#: in Hugging Face's files.
_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"use_hf_rope": False},
    "qwen2": {"use_hf_rope": True, "attention_qkv_bias": True},
    "qwen3": {"use_hf_rope": True, "use_qk_norm": True, "qk_norm_before_rope": True},
}

#: Divisors of the rotary frequencies, as llama.cpp writes Llama 3.1's scaling into a file.
_ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(path: str | Path) -> Checkpoint:
    """The checkpoint in a GGUF file, its quantized weights to be read as f32.

    Raises FileNotFoundError, ValueError for a file of another format, and UnsupportedModelError.
    """
    from gguf import GGUFReader

    reader = GGUFReader(str(path))
    fields = _Fields(reader)
    architecture = fields.require("general.architecture")
    if architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UnsupportedModelError(
            f"{path}: architecture {architecture!r}; supported in a GGUF file: {known}"
        )
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    factors = tensors.pop(_ROPE_FACTORS, None)
    weights = {}
    for name, tensor in tensors.items():
        weights[_target(name, str(path))] = _Maker(tensor)
    weights.setdefault("output.weight", weights["tok_embeddings.weight"])  # tied
    args = _model_args(fields, architecture, int(tensors["token_embd.weight"].shape[1]))
    if factors is not None:
        args |= _rope_scaling(torch.from_numpy(factors.data.copy()).float(), args)
    context = fields.get(f"{architecture}.context_length")
    return Checkpoint(
        name=str(fields.get("general.name") or Path(path).stem),
        args=args,
        weights=weights,
        dtype=_dtype(tensors.values()),
        context=None if context is None else int(context),
        text=gguf_text.bundle(fields.get),
    )


class _Fields:
    """The metadata of a file by key."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def get(self, key: str) -> Any:
        """The value, None where there is none."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def require(self, key: str) -> Any:
        """The value. Raises ValueError where there is none."""
        value = self.get(key)
        if value is None:
            raise ValueError(f"the GGUF file has no {key}")
        return value


def _target(name: str, path: str) -> str:
    """Parameter name of a tensor."""
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
    if kind in ("weight", "bias"):
        if block and block[2] in _BLOCK:
            return f"layers.{block[1]}.{_BLOCK[block[2]]}.{kind}"
        if stem in _TOP:
            return f"{_TOP[stem]}.{kind}"
    raise UnsupportedModelError(f"{path}: tensor {name!r} has no place in a llama")


class _Maker:
    """What reads a tensor: f32, f16, bf16 as they are, all else dequantized to f32, or packed."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def packed(self) -> PackedWeight | None:
        """A matrix of quantized blocks in a packed layout, None where it has none."""
        kind, shape = self._tensor.tensor_type.name, self._tensor.shape
        if len(shape) != 2 or not gguf_blocks.can_pack(kind):
            return None
        return gguf_blocks.pack_blocks(self._tensor.data, kind, int(shape[0]))

    def __call__(self) -> Tensor:
        tensor = self._tensor
        from gguf import GGMLQuantizationType as Kind
        from gguf import quants

        shape = [int(size) for size in reversed(tensor.shape)]
        if tensor.tensor_type in (Kind.F32, Kind.F16):
            values = torch.from_numpy(np.array(tensor.data))
        elif tensor.tensor_type == Kind.BF16:
            values = torch.from_numpy(np.array(tensor.data).view(np.int16)).view(torch.bfloat16)
        else:
            values = torch.from_numpy(quants.dequantize(tensor.data, tensor.tensor_type))
        return values.reshape(shape)


def _dtype(tensors: Any) -> torch.dtype:
    """The dtype that all matrices have, f32 where they differ or are quantized."""
    dtypes = {"F16": torch.float16, "BF16": torch.bfloat16}
    kinds = {tensor.tensor_type.name for tensor in tensors if len(tensor.shape) > 1}
    return dtypes.get(kinds.pop(), torch.float32) if len(kinds) == 1 else torch.float32


def _model_args(fields: _Fields, architecture: str, vocab_size: int) -> dict[str, Any]:
    def require(key: str) -> Any:
        return fields.require(f"{architecture}.{key}")

    def get(key: str, default: Any) -> Any:
        value = fields.get(f"{architecture}.{key}")
        return default if value is None else value

    scaling = get("rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError(f"rotary scaling {scaling!r} is not supported")
    if get("expert_count", 0):
        raise UnsupportedModelError("mixtures of experts are not supported")
    dim, heads = int(require("embedding_length")), int(require("attention.head_count"))
    head_dim = int(get("attention.key_length", dim // heads))
    if int(get("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedModelError("rotation of a part of each head is not supported")
    return {
        "dim": dim,
        "n_layers": int(require("block_count")),
        "n_heads": heads,
        "n_kv_heads": int(get("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_dim": int(require("feed_forward_length")),
        "vocab_size": vocab_size,
        # Stored as f32: 9.99999975e-06 means 1e-5.
        "norm_eps": float(f"{require('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(get("rope.freq_base", 10000.0)),
        **_ARCHITECTURES[architecture],
    }


def _rope_scaling(factors: Tensor, args: dict[str, Any]) -> dict[str, Any]:
    """The scaling of Llama 3.1 and 3.2 that gives these divisors of the frequencies."""
    from executorch.examples.models.llama.rope import apply_scaling

    count = args["head_dim"] // 2
    frequencies = args["rope_theta"] ** (-torch.arange(count).float() / count)
    scale = round(float(factors.max()))
    expected = frequencies / apply_scaling(frequencies, scale, 4)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-4):
        raise UnsupportedModelError(
            f"{_ROPE_FACTORS} is not the scaling of Llama 3.1 or 3.2 by any factor"
        )
    return {"use_scaled_rope": True, "rope_scale_factor": scale, "high_freq_factor": 4}
