"""int8 activations: the sums of a group are exact integers."""

from __future__ import annotations

import pytest
import torch
from weights import arguments, random_weight

from executorch_wgpu.backend.passes.make_linear import bias_arguments
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close


def product(device, weight, x, scales, zeros, zero_dtype=torch.int8):
    chain = Chain()
    rows = tuple(x.shape[:-1])
    args = {"x": chain.input("x", tuple(x.shape), torch.int8)}
    arrays = [x.numpy()]
    for name, value, dtype in (
        ("x_scales", scales, torch.float32),
        ("x_zeros", zeros, zero_dtype),
    ):
        args[name] = value
        if isinstance(value, torch.Tensor):
            args[name] = chain.input(name, tuple(value.shape), dtype)
            arrays.append(value.to(dtype).numpy())
    args |= {**arguments(chain, weight), **bias_arguments(None)}
    n = weight.packed.shape[0]
    chain.output(*chain.call("wgpu.linear_8da", args, [(DType.F32, (*rows, n))]))
    return chain.graph(device).execute(arrays)[0]


def unit_scales(weight):
    """With scales of 1 a result is an integer, below 2^24 exact in f32."""
    object.__setattr__(weight, "scales", torch.ones_like(weight.scales))
    return weight


@pytest.mark.parametrize("m", [1, 2, 8, 9, 129])
@pytest.mark.parametrize("k, n, group", [(64, 33, 32), (77, 5, 100), (96, 20, 4), (288, 70, 32)])
@pytest.mark.parametrize("bits, zeros", [(4, ""), (4, "bytes"), (8, "")])
def test_integers_are_exact(device, bits, zeros, k, n, group, m):
    weight = unit_scales(random_weight(n, k, bits, group, zeros))
    generator = torch.Generator().manual_seed(m)
    x = torch.randint(-128, 128, (m, k), generator=generator, dtype=torch.int8)
    points = torch.randint(-128, 128, (m, 1), generator=generator, dtype=torch.int8)
    want = (x.double() - points.double()) @ weight.dequantize().double().T
    got = product(device, weight, x, torch.ones(m), points[:, 0])
    assert torch.equal(torch.as_tensor(got).double(), want)


@pytest.mark.parametrize("zero_dtype", [torch.int32, torch.int64, torch.int8], ids=str)
@pytest.mark.parametrize("kind", ["numbers", "one", "rows"])
def test_scales_and_zeros(device, kind, zero_dtype):
    weight = random_weight(24, 128, 4, 32)
    x = torch.randint(-128, 128, (2, 3, 128), dtype=torch.int8)
    scales = {"numbers": 0.25, "one": torch.tensor([0.25]), "rows": torch.rand(2, 3)}[kind]
    zeros = {"numbers": 7, "one": torch.tensor([7]), "rows": torch.arange(6).reshape(2, 3)}[kind]
    scale = scales[..., None].double() if kind == "rows" else 0.25
    zero = zeros[..., None].double() if kind == "rows" else 7.0
    want = (x.double() - zero) * scale @ weight.dequantize().double().T
    assert_close(product(device, weight, x, scales, zeros, zero_dtype), want, 1e-3)
