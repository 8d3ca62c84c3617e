"""GGUF's blocks in packed layouts, against the gguf package's own dequantization."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executorch_wgpu.scripts.recipes.gguf_blocks import can_pack, pack_blocks

gguf = pytest.importorskip("gguf")

SIZES = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34)}
K_SIZES = {"Q4_K": (256, 144), "Q6_K": (256, 210)}
#: Where each kind has its f16.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}


def blocks(kind, rows=5, count=3, exponent=0x3C00):
    """Random blocks whose f16 are below what ``exponent`` says."""
    block, size = (SIZES | K_SIZES)[kind]
    generator = np.random.default_rng(0)
    data = generator.integers(0, 256, (rows, count, size), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        bits = generator.integers(0, exponent, (rows, count)).astype(np.uint16)
        data[..., at : at + 2] = bits[..., None].view(np.uint8)
    return data.reshape(rows, -1), block * count


def reference(data, kind):
    return torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))


@pytest.mark.parametrize("exponent", [0x3C00, 0x400], ids=["normal", "subnormal"])
@pytest.mark.parametrize("kind", [*SIZES, "Q6_K"])
def test_these_are_exact(kind, exponent):
    data, k = blocks(kind, exponent=exponent)
    assert torch.equal(pack_blocks(data, kind, k).dequantize(), reference(data, kind))


def test_q4_k_is_rounded_to_half_scales():
    data, k = blocks("Q4_K")
    got, want = pack_blocks(data, "Q4_K", k).dequantize(), reference(data, "Q4_K")
    # 63 times the largest f16 below 1, times 15 codes, and the offset.
    assert (got - want).abs().max() <= 2**-11 * 63 * 16


def test_others_are_refused():
    assert not can_pack("Q2_K") and not can_pack("F16")
    with pytest.raises(ValueError, match="Q2_K"):
        pack_blocks(np.zeros((1, 84), np.uint8), "Q2_K", 256)
    with pytest.raises(ValueError, match="rows of 18 bytes for 64"):
        pack_blocks(np.zeros((1, 18), np.uint8), "Q4_0", 64)
