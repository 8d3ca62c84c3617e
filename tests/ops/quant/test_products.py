"""Products straight from packed weights, against the dequantized weight in double precision."""

from __future__ import annotations

import pytest
import torch
from weights import arguments, random_weight

from executorch_wgpu.backend.passes.make_linear import bias_arguments
from executorch_wgpu.ops.matmul import gemm
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close


def product(device, weight, x, bias=None):
    chain = Chain()
    args = {"x": chain.input("x", tuple(x.shape)), **arguments(chain, weight)}
    args |= bias_arguments(None if bias is None else chain.constant(bias, "bias"))
    n = weight.packed.shape[0]
    chain.output(*chain.call("wgpu.linear_q", args, [(DType.F32, (*x.shape[:-1], n))]))
    return chain.graph(device).execute([x.numpy()])[0]


def check(device, weight, m, with_bias=False):
    generator = torch.Generator().manual_seed(m)
    x = torch.randn(m, weight.k, generator=generator)
    bias = torch.randn(weight.packed.shape[0], generator=generator) if with_bias else None
    want = x.double() @ weight.dequantize().double().T
    want = want if bias is None else want + bias.double()
    assert_close(product(device, weight, x, bias), want, abs_tol=1e-3)


@pytest.mark.parametrize("zeros", ["", "bytes", "offsets"])
@pytest.mark.parametrize("half", [False, True], ids=["f32", "f16"])
@pytest.mark.parametrize("group", [32, 64, 128, 256, 1000])
@pytest.mark.parametrize("bits", [4, 8])
def test_formats(device, bits, group, half, zeros):
    dtype = torch.float16 if half else torch.float32
    weight = random_weight(48, 512, bits, group, zeros, dtype)
    for m in (1, 40):
        check(device, weight, m)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 128, 129])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows(device, bits, m):
    check(device, random_weight(70, 288, bits, 32, "bytes"), m, with_bias=True)


#: K, N, group: odd ones, groups that do not divide K, groups shorter than a load or a word.
SHAPES = [
    (1, 1, 32),
    (7, 5, 7),
    (33, 3, 32),
    (100, 65, 32),
    (101, 31, 64),
    (96, 20, 4),
    (96, 20, 8),
    (100, 20, 12),
    (40, 9, 24),
    (575, 130, 128),
    (2048, 33, 64),
    (4100, 17, 256),
    (64, 2050, 32),
]


@pytest.mark.parametrize("zeros", ["", "bytes", "offsets"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_shapes(device, bits, shape, zeros):
    k, n, group = shape
    weight = random_weight(n, k, bits, group, zeros, torch.float16)
    for m in (1, 3, 18):
        check(device, weight, m)


def test_subnormal_half_scales_are_exact(device):
    weight = random_weight(16, 64, 4, 32, "", torch.float16)
    tiny = torch.arange(32, dtype=torch.int16).reshape(16, 2).view(torch.float16)
    object.__setattr__(weight, "scales", tiny)
    x = torch.ones(1, 64) * 2.0**20
    want = x.double() @ weight.dequantize().double().T
    assert want.abs().max() > 1
    assert_close(product(device, weight, x), want, abs_tol=1e-6, rel_tol=1e-6)


@pytest.mark.parametrize("config", [gemm.TILE, gemm.UNSLICED], ids=["sliced", "unsliced"])
@pytest.mark.parametrize("zeros", ["", "bytes", "offsets"])
@pytest.mark.parametrize(("bits", "k", "group"), [(4, 101, 32), (4, 57, 1000), (8, 575, 128)])
def test_many_rows_of_odd_sizes(device, monkeypatch, config, zeros, bits, k, group):
    """Tiles past the last row, column and k."""
    monkeypatch.setattr(gemm, "TILE", config)
    monkeypatch.setattr(gemm, "MAX_SPLITS", 1)
    check(device, random_weight(65, k, bits, group, zeros, torch.float16), 67)
