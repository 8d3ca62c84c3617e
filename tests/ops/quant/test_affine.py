"""quantize and dequantize: the integers that torchao and PyTorch compute."""

from __future__ import annotations

import pytest
import torch
import torchao.quantization.quant_primitives  # noqa: F401
from of_torch import run, same
from torch.ao.quantization.fx import _decomposed  # noqa: F401

generator = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(*shape, generator=generator)


def integers(low, high, shape, dtype):
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("shape", [(1, 5, 33), (7, 64), (3, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("mapping", ["ASYMMETRIC", "SYMMETRIC"])
def test_a_token_at_a_time(device, shape, mapping):
    x = randn(*shape) * 3 + 1
    block = [1] * (len(shape) - 1) + [shape[-1]]
    args = (x, mapping, block, torch.int8, -128, 127, None, None, torch.int8)
    got, want = run(device, "torchao.choose_qparams_affine.default", args)
    same(got, want)
    scale, zero = want
    got, codes = run(
        device, "torchao.quantize_affine.default", (x, block, scale, zero, torch.int8, -128, 127)
    )
    same(got, codes)
    same(*run(device, "torchao.dequantize_affine.default", (codes, block, scale, zero, torch.int8)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("block", [[1, 4], [1, 12], [1, 24], [5, 24]], ids=str)
def test_groups(device, dtype, block):
    low, high = (-128, 127) if dtype is torch.int8 else (0, 255)
    x = randn(5, 24)
    count = (5 // block[0], 24 // block[1])
    scale = torch.rand(count, generator=generator) / 50 + 0.01
    zero = integers(low // 4, high // 4, count, dtype)
    got, codes = run(
        device, "torchao.quantize_affine.default", (x, block, scale, zero, dtype, low, high)
    )
    same(got, codes)
    same(
        *run(
            device,
            "torchao.dequantize_affine.default",
            (codes, block, scale, zero, dtype, low, high),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_inputs_scales_and_results_in_16_bits(device, dtype):
    """Steps so far from a middle that rounding x / scale, as PyTorch does, changes none."""
    codes = integers(-128, 127, (3, 7), torch.int8)
    scales, zeros = (
        torch.tensor([[0.5], [0.25], [2.0]]).to(dtype),
        integers(-9, 9, (3, 1), torch.int8),
    )
    x = ((codes.float() - zeros) * scales).to(dtype)
    block = [1, 7]
    args = (x, block, scales, zeros, torch.int8, -128, 127)
    same(*run(device, "torchao.quantize_affine.default", args))
    args = (codes, block, scales, zeros, torch.int8, -128, 127, dtype)
    got, want = run(device, "torchao.dequantize_affine.default", args)
    assert torch.equal(torch.as_tensor(got[0]), want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_channels(device, axis):
    x = randn(3, 5, 7)
    count = x.shape[axis]
    scale = torch.rand(count, generator=generator) / 50 + 0.01
    zero = integers(-20, 20, (count,), torch.int64)
    args = (scale, zero, axis, -128, 127, torch.int8)
    got, codes = run(device, "quantized_decomposed.quantize_per_channel.default", (x, *args))
    same(got, codes)
    same(*run(device, "quantized_decomposed.dequantize_per_channel.default", (codes, *args)))


def test_one_scale_for_all(device):
    x = randn(3, 7)
    got, codes = run(
        device,
        "quantized_decomposed.quantize_per_tensor.default",
        (x, 0.02, 5, -128, 127, torch.int8),
    )
    same(got, codes)
    same(
        *run(
            device,
            "quantized_decomposed.dequantize_per_tensor.default",
            (codes, 0.02, 5, -128, 127, torch.int8),
        )
    )
    scale, zero = torch.tensor([0.03]), torch.tensor([-4])
    args = (x, scale, zero, -128, 127, torch.int8)
    got, codes = run(device, "quantized_decomposed.quantize_per_tensor.tensor", args)
    same(got, codes)
    same(*run(device, "quantized_decomposed.dequantize_per_tensor.tensor", (codes, *args[1:])))


def test_per_channel_group_and_token(device):
    codes = integers(-8, 7, (6, 64), torch.int8)
    scales = torch.rand(6, 2, generator=generator) + 0.1
    zeros = integers(-8, 7, (6, 2), torch.int32)
    args = (codes, scales, zeros, -8, 7, torch.int8, 32, torch.float32)
    same(*run(device, "quantized_decomposed.dequantize_per_channel_group.default", args))
    args = (randn(6, 64), scales, zeros, -8, 7, torch.int8, 32)
    same(*run(device, "quantized_decomposed.quantize_per_channel_group.default", args))
    x = randn(6, 10)
    scales, zeros = torch.rand(6, 1, generator=generator) / 20 + 0.01, torch.zeros(6, 1).long() + 3
    got, codes = run(
        device,
        "quantized_decomposed.quantize_per_token.default",
        (x, scales, zeros, -128, 127, torch.int8),
    )
    same(got, codes)
    args = (codes, scales, zeros, -128, 127, torch.int8, torch.float32)
    same(*run(device, "quantized_decomposed.dequantize_per_token.default", args))
