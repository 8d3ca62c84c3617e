"""The operators of modules with packed weights: in eager, and before any pass renames them."""

from __future__ import annotations

import pytest
import torch
from weights import arguments, random_weight

from executorch_wgpu.ops.quant import torch_ops
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close


def numbers(weight):
    return weight.bits, weight.group, weight.k, weight.zero


def tensors(weight):
    zeros = weight.zeros if weight.offsets is None else weight.offsets
    return weight.packed, weight.scales, zeros


def run(device, op, weight, inputs, **others):
    chain = Chain()
    args = {name: chain.input(name, tuple(x.shape), x.dtype) for name, x in inputs.items()}
    args |= {**arguments(chain, weight), **others}
    if isinstance(args["bias"], torch.Tensor):
        args["bias"] = chain.constant(args["bias"], "bias")
    shape = (*next(iter(inputs.values())).shape[:-1], weight.packed.shape[0])
    chain.output(*chain.call(op, args, [(DType.F32, shape)]))
    return chain.graph(device).execute(list(inputs.values()))[0]


@pytest.mark.parametrize("zeros", ["", "bytes", "offsets"])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_linear(device, zeros, bias):
    weight = random_weight(9, 64, 4, 32, zeros)
    x, added = torch.randn(2, 3, 64), torch.randn(9) if bias else None
    want = torch_ops.packed_linear(x, *tensors(weight), added, *numbers(weight))
    exact = x.double() @ weight.dequantize().double().T
    assert_close(want, exact if added is None else exact + added.double())
    assert_close(run(device, "wgpu.packed_linear.default", weight, {"x": x}, bias=added), want)


def test_eager_takes_rows_in_turns(monkeypatch):
    monkeypatch.setattr(torch_ops, "_ROWS", 4)
    for zeros in ("", "bytes", "offsets"):
        weight, x = random_weight(9, 64, 4, 32, zeros), torch.randn(3, 64)
        got = torch_ops.packed_linear(x, *tensors(weight), None, *numbers(weight))
        assert_close(got, x.double() @ weight.dequantize().double().T)


def test_packed_linear_8da(device):
    weight = random_weight(9, 64, 4, 32)
    x = torch.randint(-128, 128, (2, 3, 64), dtype=torch.int8)
    scales, points = torch.rand(2, 3), torch.randint(-128, 128, (2, 3), dtype=torch.int8)
    added = torch.randn(9)
    want = torch_ops.packed_linear_8da(x, scales, points, *tensors(weight), added, *numbers(weight))
    inputs = {"x": x, "x_scales": scales, "x_zeros": points}
    got = run(device, "wgpu.packed_linear_8da.default", weight, inputs, bias=added)
    assert_close(got, want, abs_tol=1e-3)


def test_packed_embedding():
    for zeros in ("", "bytes", "offsets"):
        weight, indices = random_weight(9, 64, 4, 32, zeros), torch.tensor([[8, 0, 3]])
        got = torch_ops.packed_embedding(indices, *tensors(weight), *numbers(weight))
        assert torch.equal(got, weight.dequantize()[indices])
