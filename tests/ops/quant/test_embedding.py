"""Look-ups in packed tables."""

from __future__ import annotations

import pytest
import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
from weights import arguments, random_weight

from executorch_wgpu.ops.matmul import pieces
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close, run_op


def pick(device, weight, indices, op="wgpu.embedding_q"):
    chain = Chain()
    args = {"indices": chain.input("i", tuple(indices.shape), indices.dtype)}
    args |= arguments(chain, weight)
    shape = (*indices.shape, weight.k)
    chain.output(*chain.call(op, args, [(DType.F32, shape)]))
    return chain.graph(device).execute([indices.numpy()])[0]


@pytest.mark.parametrize("zeros", ["", "bytes", "offsets"])
@pytest.mark.parametrize("k, group", [(64, 32), (77, 100), (96, 8), (33, 16)])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows(device, bits, k, group, zeros):
    weight = random_weight(50, k, bits, group, zeros, torch.float16)
    indices = torch.tensor([[0, 49, 7], [7, 1, 2]])
    assert_close(pick(device, weight, indices), weight.dequantize()[indices], 1e-6, 1e-5)


def test_the_operator_of_packed_modules(device):
    weight, indices = random_weight(50, 64, 4, 32), torch.tensor([0, 49])
    got = pick(device, weight, indices, "wgpu.packed_embedding.default")
    assert_close(got, weight.dequantize()[indices])


def test_out_of_range_is_nan(device):
    weight = random_weight(5, 32, 4, 32)
    got = torch.as_tensor(pick(device, weight, torch.tensor([-1, 5, 4])))
    assert got[:2].isnan().all()
    assert_close(got[2], weight.dequantize()[4])


def test_a_table_in_pieces(device, monkeypatch):
    weight = random_weight(300, 64, 4, 32, "bytes")
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 64 * 32)
    indices = torch.tensor([0, 63, 64, 299, 128, -1, 300])
    got = torch.as_tensor(pick(device, weight, indices))
    assert got[-2:].isnan().all()
    assert_close(got[:-2], weight.dequantize()[indices[:-2]])


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    "op",
    [
        "quantized_decomposed.embedding_2bit.default",
        "quantized_decomposed.embedding_2bit.dtype",
        "quantized_decomposed.embedding_4bit.default",
        "quantized_decomposed.embedding_4bit.dtype",
        "quantized_decomposed.embedding_byte.default",
        "quantized_decomposed.embedding_byte.dtype",
    ],
)
def test_executorchs_operators(device, op, zeros, groups):
    import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401

    weight = torch.randint(0, 256, (20, 32), dtype=torch.uint8)
    weight = weight.view(torch.int8) if "byte" in op else weight
    limits = {"2": (-2, 1), "4": (-8, 7), "b": (-128, 127)}[op.split("embedding_")[1][0]]
    scales = torch.rand((20,) if groups == 1 else (20, groups))
    points = torch.randint(*limits, scales.shape).to(scales.dtype) if zeros else None
    indices = torch.tensor([3, 19, 0])
    name = op.split(".")[1]
    overload = getattr(getattr(torch.ops.quantized_decomposed, name), op.split(".")[2])
    kwargs = {"dtype": torch.float32} if op.endswith("dtype") else {}
    want = overload(weight, scales, points, *limits, indices, **kwargs)
    args = {
        "weight": weight,
        "weight_scales": scales,
        "weight_zero_points": points,
        "weight_quant_min": limits[0],
        "weight_quant_max": limits[1],
        "indices": indices,
        **kwargs,
    }
    constants = ("weight", "weight_scales", "weight_zero_points")
    assert_close(run_op(device, op, args, want, constants)[0], want, 1e-6, 1e-5)
