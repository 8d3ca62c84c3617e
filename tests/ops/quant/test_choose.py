"""choose_qparams: the scales and zero points that torchao and PyTorch compute."""

from __future__ import annotations

import pytest
import torch
import torchao.quantization.quant_primitives  # noqa: F401
from of_torch import run, same
from torch.ao.quantization.fx import _decomposed  # noqa: F401

from executorch_wgpu.ops.quant.choose import ALONE
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close

decomposed = torch.ops.quantized_decomposed


def test_rows_of_zeros_and_of_one_sign(device):
    x = torch.stack([torch.zeros(8), torch.ones(8), -torch.ones(8), torch.arange(8.0) - 100])
    args = (x, "ASYMMETRIC", [1, 8], torch.int8, -128, 127, None, None, torch.int8)
    got, want = run(device, "torchao.choose_qparams_affine.default", args)
    same(got, want)
    same(*run(device, "torchao.quantize_affine.default", (x, [1, 8], *want, torch.int8, -128, 127)))


def shifted(shape, by):
    """Random numbers around ``by``: of both signs, or of one."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator) + by


RANGES = {"int8": (-128, 127, torch.int8), "7 bits": (-64, 63, torch.int8)}
RANGES |= {"uint8": (0, 255, torch.uint8)}


@pytest.mark.parametrize("name", ["choose_qparams", "choose_qparams_symmetric"])
@pytest.mark.parametrize("form", RANGES)
@pytest.mark.parametrize("by", [0.3, 9, -9])
def test_one_scale_for_all(device, name, form, by):
    low, high, dtype = RANGES[form]
    args = (shifted((7, 33), by), low, high, 2**-12, dtype)
    same(*run(device, f"quantized_decomposed.{name}.tensor", args))


@pytest.mark.parametrize("name", ["choose_qparams", "choose_qparams_symmetric"])
@pytest.mark.parametrize("x", [torch.zeros(3, 5), torch.full((1,), -1e-6), torch.tensor(2.5)])
def test_what_has_hardly_a_range(device, name, x):
    args = (x, -128, 127, 2**-12, torch.int8)
    same(*run(device, f"quantized_decomposed.{name}.tensor", args))


@pytest.mark.parametrize("at", [0, ALONE, -1])
@pytest.mark.parametrize("count", [ALONE, ALONE + 1, 40 * ALONE + 77])
def test_extremes_are_found_anywhere(device, count, at):
    """By one workgroup, or in parts."""
    for extreme in (-50.0, 50.0):
        x = shifted((count,), 0)
        x[at if at < count else 1] = extreme
        args = (x, -128, 127, 2**-12, torch.int8)
        same(*run(device, "quantized_decomposed.choose_qparams.tensor", args))


def test_a_live_count_takes_either_route(device):
    chain = Chain()
    rows = chain.dim_of("S", 0, 1, 200)
    x = chain.input("x", (rows, 100))
    args = {"input": x, "quant_min": -128, "quant_max": 127, "eps": 2**-12, "dtype": torch.int8}
    outputs = [(DType.F32, (1,)), (DType.I64, (1,))]
    name = "quantized_decomposed.choose_qparams.tensor"
    chain.output(*chain.call(name, args, outputs))
    graph = chain.graph(device)
    for count in (1, 81, 82, 200, 7):
        x = shifted((count, 100), 0.2)
        scale, point = decomposed.choose_qparams(x, -128, 127, 2**-12, torch.int8)
        same(graph.execute([x.numpy()]), [scale.float(), point])


@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 64), (1, 1), (9,)], ids=str)
@pytest.mark.parametrize("by", [0, 5, -5])
def test_a_token_at_a_time(device, shape, by):
    """PyTorch says f64 and int64, and for one of them computes f32 and f32."""
    x = shifted(shape, by)
    for name in ("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"):
        got, want = run(device, f"quantized_decomposed.{name}.default", (x, torch.int8))
        same(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mapping", ["ASYMMETRIC", "SYMMETRIC"])
def test_16_bits(device, dtype, mapping):
    x = torch.cat([shifted((4, 33), 0.5), torch.zeros(1, 33)]).to(dtype)
    args = (x, mapping, [1, 33], torch.int8, -128, 127, None, None, torch.int8)
    (scales, points), want = run(device, "torchao.choose_qparams_affine.default", args)
    # PyTorch rounds on the way.
    assert_close(torch.as_tensor(scales), want[0], 1e-30, torch.finfo(dtype).eps)
    assert (torch.as_tensor(points).int() - want[1].int()).abs().max() <= 1
