"""Checkpoints in Meta's layout: ``consolidated.00.pth`` and ``params.json``, as Llama 2 and 3 are
published and as ExecuTorch's own exporter takes them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import torch
from executorch.examples.models.llama.model_args import ModelArgs
from torch import Tensor

from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint, UnsupportedModelError
from executorch_wgpu.scripts.text.files import from_folder

#: Fields of params.json that say how the model was run or trained, not what it is.
_IGNORED = {"max_batch_size", "max_seq_len", "max_context_len", "use_kv_cache", "model"}


def open_meta(
    checkpoint: str | Path, params: str | Path, *, rope_scale_factor: int | None = None
) -> Checkpoint:
    """The model of a ``.pth`` file and its ``params.json``. A tokenizer is looked for beside them.

    Args:
        checkpoint: the weights, as torch.save wrote them; they are mapped, not read.
        params: what the model is, with the field names of ModelArgs.
        rope_scale_factor: the scaling of a model with ``use_scaled_rope`` where params.json does
            not say: 8 for Llama 3.1, 32 for Llama 3.2. None: 32 below 8 billion weights, as 3.2
            has them, else 8.

    Raises FileNotFoundError, ValueError for malformed files, UnsupportedModelError.
    """
    fields = {k: v for k, v in json.loads(Path(params).read_text()).items() if k not in _IGNORED}
    unknown = sorted(fields.keys() - {field.name for field in dataclasses.fields(ModelArgs)})
    if unknown:
        raise ValueError(f"{params}: fields that ModelArgs does not have: {', '.join(unknown)}")
    if fields.get("moe") or fields.get("quantization_args") or fields.get("lora_args"):
        raise UnsupportedModelError(
            f"{params}: mixtures of experts, quantized and LoRA checkpoints are not supported"
        )
    lost = sorted({"dim", "n_layers", "n_heads"} - fields.keys())
    if lost:
        raise ValueError(f"{params}: it does not say {', '.join(lost)}")
    folder = Path(checkpoint).parent
    if (folder / "consolidated.01.pth").exists():
        raise UnsupportedModelError(f"{folder}: weights that are split over several files")
    tensors = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True)
    tensors = tensors.get("model", tensors)
    # Llama 2 was saved with its table of rotary frequencies.
    weights = {name: _maker(tensor) for name, tensor in tensors.items() if name != "rope.freqs"}
    if "tok_embeddings.weight" not in weights:
        raise ValueError(f"{checkpoint}: no tok_embeddings.weight: not in Meta's layout")
    weights.setdefault("output.weight", weights["tok_embeddings.weight"])
    embeddings = tensors["tok_embeddings.weight"]
    fields["vocab_size"] = embeddings.shape[0]  # Llama 2's params.json says -1
    if fields.get("use_scaled_rope") and "rope_scale_factor" not in fields:
        size = sum(tensor.numel() for tensor in tensors.values())
        fields["rope_scale_factor"] = rope_scale_factor or (32 if size < 7.5e9 else 8)
    first = tensors.get("layers.0.feed_forward.w1.weight")
    if "hidden_dim" not in fields and first is not None:
        fields["hidden_dim"] = first.shape[0]
    return Checkpoint(
        name=folder.resolve().name,
        args={"n_kv_heads": fields.get("n_heads"), **fields},
        weights=weights,
        dtype=embeddings.dtype,
        text=from_folder(folder),
    )


def _maker(tensor: Tensor) -> Callable[[], Tensor]:
    def make() -> Tensor:
        return tensor

    return make
