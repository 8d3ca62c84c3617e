"""What stands behind a product with a packed weight: formulas, and pairs of rows."""

from __future__ import annotations

import pytest
import torch
from weights import arguments, random_weight

from executorch_wgpu.ops.elementwise.formula import Formula, Line
from executorch_wgpu.ops.matmul import pieces
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close

F32 = DType.F32
#: a * b + c of the sums of two rows and an operand, or of one and two operands
GATED = Formula((F32, F32, F32), (Line(F32, "({0} * {1} + {2})", (0, 1, 2)),))


def fused(device, weight, x, operands, *, pairs, activations=None, dtype=torch.float32):
    """``x`` f32, or int8 with ``activations`` (scale and zero point of a row)."""
    chain = Chain()
    args = {"x": chain.input("x", tuple(x.shape), x.dtype), **arguments(chain, weight)}
    arrays = [x]
    for name, value in zip(("x_scales", "x_zeros"), activations or (), strict=False):
        args[name] = chain.input(name, tuple(value.shape), value.dtype)
        arrays.append(value)
    args |= {"formula": GATED, "pairs": pairs, "operands": []}
    for i, operand in enumerate(operands):
        args["operands"].append(chain.input(f"o{i}", tuple(operand.shape), operand.dtype))
        arrays.append(operand)
    op = "wgpu.linear_8da" if activations else "wgpu.linear_q"
    shape = (*x.shape[:-1], weight.packed.shape[0] // (2 if pairs else 1))
    kind = {torch.float32: DType.F32, torch.float16: DType.F16}[dtype]
    chain.output(*chain.call(op, args, [(kind, shape)]))
    return chain.graph(device).execute(arrays)[0]


def wanted(sums, operands, pairs):
    if pairs:
        return sums[..., 0::2] * sums[..., 1::2] + operands[0].double()
    return sums * operands[0].double() + operands[1].double()


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


#: N, K, group
SHAPES = [(2, 1, 32), (6, 33, 32), (70, 288, 32), (130, 575, 128), (2050, 64, 64), (8, 2100, 4)]


@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (8, "offsets"), (4, "bytes")])
@pytest.mark.parametrize(
    ("shape", "m"),
    [
        *((s, 1 + 39 * (i % 2)) for i, s in enumerate(SHAPES)),
        (SHAPES[2], 3),
        (SHAPES[2], 16),
        (SHAPES[3], 1),
    ],
    ids=str,
)
def test_pairs(device, bits, zeros, shape, m):
    n, k, group = shape
    weight = random_weight(n, k, bits, group, zeros, torch.float16)
    x, operand = randn(m, k), randn(m, n // 2, seed=1)
    got = fused(device, weight, x, [operand], pairs=True)
    sums = x.double() @ weight.dequantize().double().T
    assert_close(got, wanted(sums, [operand], True), abs_tol=3e-3)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(("shape", "m"), [(s, 1 + 8 * (i % 2)) for i, s in enumerate(SHAPES)])
def test_integers(device, shape, m, pairs):
    n, k, group = shape
    weight = random_weight(n, k, 4, group)
    x = torch.randint(-128, 128, (m, k), dtype=torch.int8)
    scales, zeros = torch.rand(m) / 64, torch.randint(-128, 128, (m,), dtype=torch.int32)
    count = 1 if pairs else 2
    operands = [randn(m, n // 2 if pairs else n, seed=i) for i in range(count)]
    got = fused(device, weight, x, operands, pairs=pairs, activations=(scales, zeros))
    values = (x.double() - zeros[:, None]) * scales[:, None].double()
    sums = values @ weight.dequantize().double().T
    assert_close(got, wanted(sums, operands, pairs), abs_tol=3e-3)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("m", [1, 5, 40])
@pytest.mark.parametrize("k", [64, 77])
def test_half_operands(device, k, m, pairs):
    """Input, operands and result in 16 bits, read and written as they are."""
    weight = random_weight(34, k, 4, 32 if k == 64 else 100)
    count = 1 if pairs else 2
    x = randn(m, k).half()
    operands = [randn(m, 17 if pairs else 34, seed=i).half() for i in range(count)]
    got = fused(device, weight, x, operands, pairs=pairs, dtype=torch.float16)
    sums = x.double() @ weight.dequantize().double().T
    assert_close(got, wanted(sums, operands, pairs), abs_tol=1e-2, rel_tol=1e-2)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("m", [1, 40])
def test_a_weight_in_pieces(device, monkeypatch, m, pairs):
    """Where no binding takes it whole: rows that belong together stay so."""
    weight = random_weight(600, 64, 4, 32, "offsets", torch.float16)
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 300 * 32)
    x = randn(m, 64)
    operands = [randn(m, 300 if pairs else 600, seed=i) for i in range(1 if pairs else 2)]
    got = fused(device, weight, x, operands, pairs=pairs)
    sums = x.double() @ weight.dequantize().double().T
    assert_close(got, wanted(sums, operands, pairs), abs_tol=3e-3)
