"""Packed weights in a model: linear layers and embeddings that hold nothing else.

    scheme = parse("4w:32")                        # 8w, 8w:64, 8da4w:128
    layer = PackedLinear(pack(weight, scheme), bias, scheme.dynamic)

Their forward is one of ``torch.ops.wgpu``'s operators (``ops/quant/torch_ops.py``), which the
partitioner takes as it is, and which eager PyTorch runs, too."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torchao.quantization.quant_primitives  # noqa: F401  (registers torchao's operators)
from torch import Tensor, nn

from executorch_wgpu.ops.quant import torch_ops  # noqa: F401
from executorch_wgpu.ops.quant.layout import PackedWeight, pack_affine

#: Rows that are quantized at once: what is made of them on the way is several times as large.
_ROWS = 4096


@dataclass(frozen=True)
class Scheme:
    """``bits`` of a weight (4 or 8), neighbours that share a scale (0: a whole row), and whether
    activations are quantized to int8 a token at a time."""

    bits: int
    group: int
    dynamic: bool = False

    def __str__(self) -> str:
        name = f"8da{self.bits}w" if self.dynamic else f"{self.bits}w"
        return f"{name}:{self.group}" if self.group else name


def parse(text: str) -> Scheme:
    """``4w:32``, ``8w``, ``8w:64``, ``8da4w:128`` or ``8da8w``; without a group a scale is a row's,
    for 4 bits 32 (weight only) or 128 neighbours'. Raises ValueError."""
    match = re.fullmatch(r"(8da)?([48])w?(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"quantization {text!r}: expected 4w:32, 8w or 8da4w:128, say")
    dynamic, bits = match[1] is not None, int(match[2])
    default = 0 if bits == 8 else 128 if dynamic else 32
    group = default if match[3] is None else int(match[3])
    if group % 4:
        raise ValueError(f"quantization {text!r}: a group is a multiple of 4")
    return Scheme(bits, group, dynamic)


def pack(weight: Tensor, scheme: Scheme) -> PackedWeight:
    """A float weight [N, K], quantized symmetrically: ``scale = max |w| / (2^(bits - 1) - 1/2)`` of
    each group, as torchao's ``choose_qparams_affine`` has it; scales are f16, f32 for ``dynamic``.
    Values are rounded to the stored scale, half to even."""
    k = weight.shape[1]
    group = scheme.group or k
    parts = [_pack_rows(rows, scheme, group) for rows in weight.split(_ROWS)]
    return PackedWeight(
        packed=torch.cat([part.packed for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        bits=scheme.bits,
        group=group,
        k=k,
        zero=1 << (scheme.bits - 1),
    )


def _pack_rows(weight: Tensor, scheme: Scheme, group: int) -> PackedWeight:
    n, k = weight.shape
    groups = -(-k // group)
    rows = torch.nn.functional.pad(weight.float(), (0, groups * group - k))
    rows = rows.reshape(n, groups, group)
    low, high = -(1 << (scheme.bits - 1)), (1 << (scheme.bits - 1)) - 1
    scales = rows.abs().amax(-1) / ((high - low) / 2)
    if scheme.dynamic:
        scales = scales.clamp(min=torch.finfo(torch.float32).smallest_normal)
    else:
        # No smaller than the least f16 that is not 0.
        scales = scales.clamp(2.0**-24, 65504.0).to(torch.float16)
    codes = (rows / scales.float()[..., None]).round_().clamp_(low, high)
    values = codes.to(torch.int8).reshape(n, -1)[:, :k]
    return pack_affine(values, scales, 0, low, high, group)


class Packer:
    """Packs the matrices of a model for ``whole.build``.

    Args:
        linear, embedding: "none", "keep" (what comes as quantized blocks stays that) or what
            :func:`parse` takes.

    Raises ValueError for anything else, and for an embedding with 8-bit activations.
    """

    def __init__(self, linear: str = "none", embedding: str = "none") -> None:
        self._keeps = {"linear": linear == "keep", "embedding": embedding == "keep"}
        self._schemes = {
            kind: None if text in ("none", "keep") else parse(text)
            for kind, text in (("linear", linear), ("embedding", embedding))
        }
        table, layers = self._schemes["embedding"], self._schemes["linear"]
        if table is not None and table.dynamic:
            raise ValueError(f"an embedding has no activations to quantize: {embedding!r}")
        #: Whether linear layers quantize their input.
        self.dynamic = layers is not None and layers.dynamic
        self._made: dict[Any, PackedWeight | None] = {}

    def __call__(self, name: str, maker: Callable[[], Tensor]) -> PackedWeight | None:
        """The packed form of the matrix ``name``, None where it is not quantized."""
        kind = "embedding" if name == "tok_embeddings.weight" else "linear"
        scheme = self._schemes[kind]
        key = (maker, scheme)
        if key not in self._made:
            made = self._pack(maker, scheme, self._keeps[kind])
            self._made[key] = _as_parameters(made)
        return self._made[key]

    def _pack(
        self, maker: Callable[[], Tensor], scheme: Scheme | None, keep: bool
    ) -> PackedWeight | None:
        if scheme is not None:
            return pack(maker(), scheme)
        packed = getattr(maker, "packed", None) if keep else None
        return None if packed is None else packed()


def _parameter(tensor: Tensor) -> nn.Parameter:
    """Tied tensors have to be one parameter: of two buffers over one tensor ExecuTorch writes the
    one that no operator uses into the file as well."""
    if isinstance(tensor, nn.Parameter):
        return tensor
    return nn.Parameter(tensor, requires_grad=False)


def _as_parameters(packed: PackedWeight | None) -> PackedWeight | None:
    if packed is None:
        return None
    tensors = {
        name: None if tensor is None else _parameter(tensor)
        for name in ("packed", "scales", "zeros", "offsets")
        for tensor in [getattr(packed, name)]
    }
    return replace(packed, **tensors)


class _Packed(nn.Module):
    def __init__(self, packed: PackedWeight) -> None:
        super().__init__()
        self.bits, self.group, self.k, self.zero = packed.bits, packed.group, packed.k, packed.zero
        zeros = packed.zeros if packed.offsets is None else packed.offsets
        self.weight, self.scales = _parameter(packed.packed), _parameter(packed.scales)
        self.zeros = None if zeros is None else _parameter(zeros)


class PackedLinear(_Packed):
    """A linear layer; input, bias and output are f32."""

    def __init__(self, packed: PackedWeight, bias: Tensor | None, dynamic: bool = False) -> None:
        super().__init__(packed)
        self.bias = bias
        self.dynamic = dynamic

    def forward(self, x: Tensor) -> Tensor:
        rest = (self.weight, self.scales, self.zeros, self.bias)
        numbers = (self.bits, self.group, self.k, self.zero)
        if not self.dynamic:
            return torch.ops.wgpu.packed_linear(x, *rest, *numbers)
        block = [1] * (x.dim() - 1) + [self.k]
        scale, zero = torch.ops.torchao.choose_qparams_affine(
            x, "ASYMMETRIC", block, torch.int8, -128, 127, None, None, torch.int8
        )
        values = torch.ops.torchao.quantize_affine(x, block, scale, zero, torch.int8, -128, 127)
        return torch.ops.wgpu.packed_linear_8da(values, scale, zero, *rest, *numbers)


class PackedEmbedding(_Packed):
    """An embedding table; its rows come out as f32."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.ops.wgpu.packed_embedding(
            tokens,
            self.weight,
            self.scales,
            self.zeros,
            self.bits,
            self.group,
            self.k,
            self.zero,
        )


def put(model: nn.Module, name: str, packed: PackedWeight, dynamic: bool = False) -> None:
    """Replace the layer whose weight is called ``name`` (``layers.0.attention.wq.weight``) by one
    over ``packed``. Raises ValueError for a layer that is neither linear nor an embedding."""
    path = name.rpartition(".")[0]
    owner, _, leaf = path.rpartition(".")
    layer = model.get_submodule(path)
    if isinstance(layer, nn.Embedding):
        made: nn.Module = PackedEmbedding(packed)
    elif isinstance(layer, nn.Linear):
        made = PackedLinear(packed, layer.bias, dynamic)
    else:
        raise ValueError(f"{name}: a {type(layer).__name__} cannot be packed")
    setattr(model.get_submodule(owner), leaf, made)
