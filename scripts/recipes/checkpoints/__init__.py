"""Where weights come from: one file a format, each with a function that opens a checkpoint.

    checkpoint = gguf.open_gguf(path) | meta.open_meta(weights, params) | hf.open_hf(folder)
    model = whole.build(checkpoint.model_args(max_seq_len=128, max_context_len=2048),
                        checkpoint.weights, dtype=checkpoint.dtype)

Nothing but tables is read before a weight is asked for.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from executorch.examples.models.llama.model_args import ModelArgs

from executorch_wgpu.scripts.recipes import llama
from executorch_wgpu.scripts.recipes.whole import Weights

if TYPE_CHECKING:
    from executorch_wgpu.scripts.text.bundle import TextBundle


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model that can be built.

    Attributes:
        name: for people.
        args: fields of ModelArgs: what the model is, without how it is exported.
        weights: by parameter name of ExecuTorch's transformer.
        dtype: of its matrices in the file; f32 where they are quantized.
        context: positions that it was trained for, None where the file does not say.
        text: its tokenizer and chat template, None where there are none.
    """

    name: str
    args: dict[str, Any]
    weights: Weights
    dtype: torch.dtype
    context: int | None = None
    text: TextBundle | None = None

    def model_args(self, **overrides: Any) -> ModelArgs:
        """With ``overrides`` such as ``max_seq_len``, see ``llama.model_args``."""
        return llama.model_args(**{**self.args, **overrides})


class UnsupportedModelError(ValueError):
    """ExecuTorch's llama definitions cannot express the model, and why."""
