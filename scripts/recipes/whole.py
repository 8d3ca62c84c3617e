"""Whole llama models on ExecuTorch's own definitions: Llama, SmolLM2, Qwen2.5, Qwen3 and others.

    model = build(args, weights)                     # weights: parameter name -> tensor
    logits = model(tokens, input_pos)                # eager, with the KV cache that it keeps
    exported = export_methods(model)                 # name -> ExportedProgram

``forward(tokens [1, S], input_pos [1]) -> logits [1, 1, V]``: S tokens from a position on, S from 1
to ``max_seq_len``; the logits are those of the last token, of all S with ``generate_full_logits``.

``generate(tokens, input_pos, temperature [1], top_p [1], top_k [1], seed [1]) -> token [1, 1]``:
the same, and the next token, chosen of the last one's logits as ``wgpu::sample`` says. Both methods
have the same weights and caches.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from executorch.examples.models.llama.llama_transformer import Transformer, construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from executorch.examples.models.llama.rope import Rope
from executorch.examples.models.llama.source_transformation.sdpa import (
    replace_sdpa_with_custom_op,
)
from torch import Tensor, nn

from executorch_wgpu.ops.quant.layout import PackedWeight
from executorch_wgpu.ops.sampling.operator import sample
from executorch_wgpu.scripts.recipes.packed import put as put_packed
from executorch_wgpu.scripts.recipes.storage import StoredKVCache, store_weights

#: The methods of a file.
METHODS = ("forward", "generate")

#: The largest top_k and seed.
MOST_INT = (1 << 31) - 1

#: Calls what makes a tensor: weights are read one at a time.
Weights = Mapping[str, Callable[[], Tensor]]


class _NoMask:
    """In the place of the causal mask that ExecuTorch's attention holds for each layer, which
    takes max_context_len squared bytes and which the custom attention does not look at."""

    def narrow(self, dim: int, start: Any, length: Any) -> None:
        """Rows of the mask: there are none."""


class Llama(Transformer):
    """ExecuTorch's transformer with KV caches and attention as its llama exporter sets them up.

    Its parameters are on the meta device until they are assigned, see :func:`build`. Module paths
    and cache names are those of the transformer (``layers.3.attention.kv_cache.k_cache``).
    """

    def __init__(self, args: ModelArgs, kv_dtype: torch.dtype = torch.float32) -> None:
        # Built for one position, so that no mask is as large as the context.
        with torch.device("meta"):
            small = construct_transformer(
                dataclasses.replace(args, max_context_len=1, max_seq_len=1)
            )
            super().__init__(args, small.layers, Rope(args))
        for layer in self.layers:
            attention = layer.attention
            attention.rope = self.rope
            attention.max_context_len = args.max_context_len
            del attention.mask
            attention.mask = _NoMask()
            attention.kv_cache = StoredKVCache(
                args.max_context_len, attention.n_kv_heads, attention.head_dim, kv_dtype
            )
        replace_sdpa_with_custom_op(self)
        self.eval().requires_grad_(False)

    def forward(self, tokens: Tensor, input_pos: Tensor) -> Tensor:
        logits = super().forward(tokens, {"input_pos": input_pos})
        return logits.view(1, -1, self.vocab_size)

    def reset(self) -> None:
        """Empty the KV caches, as if the model had just been built."""
        for layer in self.layers:
            layer.attention.kv_cache.reset()


class _Generating(Llama):
    """A model as ``generate`` runs it: the same modules, so that names are the same."""

    @staticmethod
    def of(model: Llama) -> _Generating:
        """``model`` in its other form; weights and caches are shared."""
        twin = copy.copy(model)
        twin.__class__ = _Generating
        twin.generate_full_logits = False
        return twin

    def forward(
        self,
        tokens: Tensor,
        input_pos: Tensor,
        temperature: Tensor,
        top_p: Tensor,
        top_k: Tensor,
        seed: Tensor,
    ) -> Tensor:
        logits = super().forward(tokens, input_pos)
        most, draw = top_k[0].item(), seed[0].item()
        for value, least in ((most, 1), (draw, 0)):
            torch._check(value >= least)
            torch._check(value <= MOST_INT)
        position = input_pos[0].item() + tokens.shape[1]
        return sample(logits, temperature, top_p, most, draw, position)


def build(
    args: ModelArgs,
    weights: Weights,
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype = torch.float32,
    pack: Callable[[str, Callable[[], Tensor]], PackedWeight | None] | None = None,
    dynamic: bool = False,
    track: Callable[[list[str]], Iterable[str]] = iter,
) -> Llama:
    """A model with its weights.

    Args:
        args: with ``use_kv_cache`` and ``enable_dynamic_shape``, see ``llama.model_args``.
        weights: by parameter name; each is read once, when its turn comes.
        dtype: how matrices are stored; what has one dimension is f32.
        kv_dtype: how KV caches are stored.
        pack: the packed form of a matrix by its name and what makes it, None to keep it as it is;
            see ``packed.Packer``.
        dynamic: linear layers over packed weights quantize their input to int8.
        track: goes through the names, to show progress.

    Raises ValueError for a weight that is missing, has no place or is of another shape. Layers
    beyond ``args.n_layers`` may be there.
    """
    model = Llama(args, kv_dtype)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    missing = shapes.keys() - weights.keys()
    if missing:
        raise ValueError(f"{len(missing)} weights are missing, such as {min(missing)!r}")
    unknown = [n for n in weights if n not in shapes and not _is_beyond(n, args.n_layers)]
    if unknown:
        raise ValueError(f"{len(unknown)} weights have no place, such as {min(unknown)!r}")
    #: What makes it -> the parameter: tied weights have one maker.
    made: dict[Callable[[], Tensor], nn.Parameter] = {}
    for name in track(list(shapes)):
        maker = weights[name]
        if pack is not None and len(shapes[name]) == 2:
            found = pack(name, maker)
            if found is not None:
                if (found.packed.shape[0], found.k) != tuple(shapes[name]):
                    raise ValueError(
                        f"weight {name!r} is {[found.packed.shape[0], found.k]}, "
                        f"expected {list(shapes[name])}"
                    )
                put_packed(model, name, found, dynamic)
                continue
        if maker not in made:
            tensor = maker()
            if tensor.shape != shapes[name]:
                raise ValueError(
                    f"weight {name!r} is {list(tensor.shape)}, expected {list(shapes[name])}"
                )
            tensor = tensor.to(torch.float32 if tensor.ndim == 1 else dtype).contiguous()
            made[maker] = nn.Parameter(tensor, requires_grad=False)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, made[maker])
    store_weights(model)
    return model


def _is_beyond(name: str, layers: int) -> bool:
    """Whether a parameter is of a layer past the first ``layers``."""
    found = re.match(r"layers\.(\d+)\.", name)
    return found is not None and int(found[1]) >= layers


def random_weights(args: ModelArgs, seed: int = 0, std: float = 0.05) -> dict[str, Any]:
    """Weights for :func:`build`, the same for the same arguments: normal with deviation ``std``,
    norm weights around 1."""
    shapes = {name: parameter.shape for name, parameter in Llama(args).named_parameters()}

    def maker(name: str, number: int) -> Callable[[], Tensor]:
        def make() -> Tensor:
            generator = torch.Generator().manual_seed(seed * 100_003 + number)
            values = torch.empty(shapes[name]).normal_(0.0, std, generator=generator)
            return values.add_(1.0) if "norm" in name else values

        return make

    return {name: maker(name, number) for number, name in enumerate(sorted(shapes))}


def export_methods(
    model: Llama, names: Sequence[str] = METHODS
) -> dict[str, torch.export.ExportedProgram]:
    """The methods of these ``names``, each exported with a live S and a live ``input_pos[0]``.

    An ExportedProgram can be lowered once only.
    """
    # Sizes of 0 and 1 would become constants: S is 3, or 2 where no more fits.
    count = min(3, model.max_seq_len)
    if count < 2:
        raise ValueError(f"max_seq_len {model.max_seq_len} is too small: at least 2")
    inputs = [torch.zeros(1, count, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)]
    shapes = [{1: torch.export.Dim("S", min=1, max=model.max_seq_len)}, None]
    # Tensors of their own: one that is given twice is taken for one input.
    settings = [torch.zeros(1), torch.ones(1), torch.zeros(1).long(), torch.ones(1).long()]
    forms: dict[str, tuple[Llama, list[Tensor]]] = {
        "forward": (model, inputs),
        "generate": (_Generating.of(model), [*inputs, *settings]),
    }
    found = {}
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        for name in names:
            module, examples = forms[name]
            live = tuple(shapes + [None] * (len(examples) - 2))
            found[name] = torch.export.export(module, tuple(examples), dynamic_shapes=live)
    return found
