"""Packed weights for tests, from random codes."""

from __future__ import annotations

from typing import Any

import torch

from executorch_wgpu.ops.quant.layout import PackedWeight, pack_bytes, pack_codes


def random_weight(
    n: int,
    k: int,
    bits: int,
    group: int,
    zeros: str = "",
    scale_dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> PackedWeight:
    """``zeros``: "" (symmetric), "bytes" or "offsets"."""
    generator = torch.Generator().manual_seed(seed)
    groups = -(-k // group)
    codes = torch.randint(0, 1 << bits, (n, k), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(n, groups, generator=generator) + 0.5) / (1 << bits)
    points = torch.randint(0, 1 << bits, (n, groups), generator=generator, dtype=torch.uint8)
    offsets = torch.randn(n, groups, generator=generator)
    padding: Any = points[:, -1:] if zeros == "bytes" else 1 << (bits - 1)
    return PackedWeight(
        packed=pack_codes(codes, bits, padding),
        scales=scales.to(scale_dtype),
        bits=bits,
        group=group,
        k=k,
        zero=1 << (bits - 1) if not zeros else 0,
        zeros=pack_bytes(points) if zeros == "bytes" else None,
        offsets=offsets.to(scale_dtype) if zeros == "offsets" else None,
    )


def arguments(chain: Any, weight: PackedWeight) -> dict[str, Any]:
    """The arguments of ``wgpu.linear_q`` and others that name a weight, as constants."""
    zeros = weight.zeros if weight.offsets is None else weight.offsets
    return {
        "weight": chain.constant(weight.packed, "weight"),
        "scales": chain.constant(weight.scales, "scales"),
        "zeros": None if zeros is None else chain.constant(zeros, "zeros"),
        "bits": weight.bits,
        "group": weight.group,
        "k": weight.k,
        "zero": weight.zero,
    }
