"""wgpu.rms_norm over rows and weights of 16 bits."""

from __future__ import annotations

import pytest
import torch
from test_rms_norm import reference

from harness import DTYPES, Chain, assert_close

F32 = torch.float32


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 3, 64, 130, 1023])
def test_dtypes(device, half, dim):
    for x_dtype, weight_dtype, out in (
        (half, half, half),
        (half, F32, F32),
        (F32, half, F32),
        (F32, F32, half),
        (half, None, half),
    ):
        x = torch.randn(3, 5, dim).to(x_dtype)
        weight = None if weight_dtype is None else torch.randn(dim).to(weight_dtype)
        chain = Chain()
        value = chain.input("x", x.shape, x_dtype)
        args = {"x": value, "weight": None if weight is None else chain.constant(weight)}
        args["eps"] = 1e-5
        chain.output(*chain.call("wgpu.rms_norm", args, [(DTYPES[out], x.shape)]))
        (y,) = chain.graph(device).execute([x])
        assert y.dtype == out
        tolerance = () if out == F32 else (2e-3, 1e-2)
        assert_close(y, reference(x, weight, 1e-5), *tolerance)


def test_the_largest_numbers(device):
    """Squares of 65504 are far beyond f16 and well inside f32."""
    x = torch.tensor([[65504.0, -65504.0, 65504.0, 1.0], [2.0**-24, 0.0, 2.0**-14, 0.0]])
    x = x.to(torch.float16)
    chain = Chain()
    value = chain.input("x", x.shape, x.dtype)
    args = {"x": value, "weight": None, "eps": 1e-12}
    chain.output(*chain.call("wgpu.rms_norm", args, [(value.dtype, x.shape)]))
    (y,) = chain.graph(device).execute([x])
    assert_close(y, reference(x, None, 1e-12), 2e-3, 1e-2)
