"""The kernel for one row against fp64: norms in it, pairs of rows, and every way to divide work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from executorch_wgpu.ops.elementwise.formula import Formula, Line
from executorch_wgpu.ops.matmul.one_row import (
    OneRowConfig,
    _words_of_digits,
    _words_of_sums,
)
from executorch_wgpu.ops.quant.layout import (
    PackedWeight,
    pack_bytes,
    pack_codes,
    unpack_bytes,
    unpack_codes,
)
from executorch_wgpu.serialization.dispatch_list import DType

import tint
from harness import Chain, assert_close

F32 = DType.F32
EPS = 1e-2
#: a * b of the sums of two rows
PAIRS = Formula((F32, F32), (Line(F32, "({0} * {1})", (0, 1)),))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def packed(n: int, k: int, bits: int, group: int, zeros: str, dtype: torch.dtype) -> PackedWeight:
    generator = torch.Generator().manual_seed(n + k)
    groups = -(-k // group)
    codes = torch.randint(0, 1 << bits, (n, k), generator=generator, dtype=torch.uint8)
    points = torch.randint(0, 1 << bits, (n, groups), generator=generator, dtype=torch.uint8)
    middle = 1 << (bits - 1)
    return PackedWeight(
        packed=pack_codes(codes, bits, points[:, -1:] if zeros == "bytes" else middle),
        scales=((torch.rand(n, groups, generator=generator) + 0.5) / (1 << bits)).to(dtype),
        bits=bits,
        group=group,
        k=k,
        zero=0 if zeros else middle,
        zeros=pack_bytes(points) if zeros == "bytes" else None,
        offsets=randn(n, groups).to(dtype) if zeros == "offsets" else None,
    )


def chain_of(weight, m, *, pairs=False, norm=None):
    """``m`` rows (live) of K through a norm ("weight", "plain" or None) and a linear layer."""
    c = Chain()
    k = weight.k if isinstance(weight, PackedWeight) else weight.shape[1]
    rows = c.dim_of("M", 0, 0, m)
    x = c.input("x", (rows, k))
    args = {"x": x, "formula": PAIRS if pairs else None, "operands": [], "pairs": pairs}
    if isinstance(weight, PackedWeight):
        zeros = weight.zeros if weight.offsets is None else weight.offsets
        args |= {
            "weight": c.constant(weight.packed),
            "scales": c.constant(weight.scales),
            "zeros": None if zeros is None else c.constant(zeros),
            **{name: getattr(weight, name) for name in ("bits", "group", "k", "zero")},
        }
        n = weight.packed.shape[0]
    else:
        args["weight"] = c.constant(weight)
        n = weight.shape[0]
    if norm is not None:
        scale = c.constant(norm_weight(k)) if norm == "weight" else None
        args |= {"norm_weight": scale, "norm_eps": EPS}
    op = "wgpu.linear_q" if isinstance(weight, PackedWeight) else "wgpu.linear"
    c.output(*c.call(op, args, [(F32, (rows, n // 2 if pairs else n))]))
    return c


def norm_weight(k: int) -> torch.Tensor:
    return randn(k, seed=7) + 1


def wanted(x, weight, *, pairs=False, norm=None):
    dense = (weight.dequantize() if isinstance(weight, PackedWeight) else weight).double()
    x = x.double()
    if norm is not None:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        x = x * norm_weight(x.shape[1]).double() if norm == "weight" else x
    y = x @ dense.T
    return y[:, 0::2] * y[:, 1::2] if pairs else y


def check(device, weight, *, rows=(1,), most=1, **form) -> None:
    graph = chain_of(weight, most, **form).graph(device)
    k = weight.k if isinstance(weight, PackedWeight) else weight.shape[1]
    for m in rows:
        x = randn(m, k, seed=m)
        (y,) = graph.execute([x.numpy()])
        assert_close(y, wanted(x, weight, **form), abs_tol=1e-3)


@pytest.mark.parametrize(
    "form", [{}, {"norm": "weight"}, {"norm": "plain", "pairs": True}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "k"), [(2, 4), (70, 36), (34, 1000), (6, 4104)])
def test_dense(device, n, k, dtype, form):
    check(device, (randn(n, k) / k**0.5).to(dtype), **form)


@pytest.fixture(params=["digits", "one_row"])
def way(request, monkeypatch):
    """Packed weights over integers, and over floats as where dot4I8Packed does not pay."""
    monkeypatch.setenv("EXECUTORCH_WGPU_INTEGER_DOT", str(int(request.param == "digits")))
    return request.param


@pytest.mark.parametrize("form", [{"norm": "weight"}, {"norm": "plain", "pairs": True}], ids=str)
@pytest.mark.parametrize(
    ("bits", "group", "zeros"),
    [(4, 32, ""), (4, 64, "bytes"), (4, 32, "offsets"), (8, 32, ""), (8, 16, "bytes")],
)
@pytest.mark.parametrize(("n", "k"), [(70, 100), (10, 2080), (6, 9000)])
def test_packed(device, way, n, k, bits, group, zeros, form):
    weight = packed(n, k, bits, group, zeros, torch.float16)
    assert [route.name for route in chain_of(weight, 1).lower().program.steps[0].routes[:2]] == [
        "digits",
        "one_row",
    ]
    check(device, weight, **form)


SIZES = {
    "zeros": lambda x: x * 0,
    "tiny": lambda x: x * 1e-37,
    "huge": lambda x: x * 1e36,
    "integers": lambda x: (x * 1000).round(),
    "one large": lambda x: torch.where(x == x.max(), 1e6, x),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("zeros", ["", "bytes", "offsets"])
def test_sizes_of_activations(device, way, size, zeros):
    """Error in units of the sum of the products' sizes, which is what f32 can promise."""
    weight = packed(24, 516, 4, 64, zeros, torch.float16)
    for part in (weight.scales, weight.offsets):
        if part is not None:
            part.mul_(0.01)
    x = SIZES[size](randn(1, 516))
    (y,) = chain_of(weight, 1).graph(device).execute([x.numpy()])
    dense = weight.dequantize().double()
    scale = x.double().abs() @ dense.abs().T
    error = (torch.as_tensor(y).double() - x.double() @ dense.T).abs()
    assert (error <= 1e-6 * scale + 1e-37 * 516).all(), (error / scale).max()


@pytest.mark.parametrize("slices", [1, 2, 4])
@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (4, "bytes"), (4, "offsets"), (8, "bytes")])
def test_what_large_activations_hide(device, monkeypatch, bits, zeros, slices):
    """Where codes that stand for zero meet the large ones, of the others all bits count."""
    monkeypatch.setenv("EXECUTORCH_WGPU_INTEGER_DOT", "1")
    # With one slice, two units a lane.
    config = OneRowConfig(32 if slices > 1 else 8, 4, slices, 1)
    monkeypatch.setattr(OneRowConfig, "of_digits", staticmethod(lambda *_: config))
    k, large = 252, [32, 37, 42, 251]
    weight = packed(24, k, bits, 32, zeros, torch.float32)
    codes = unpack_codes(weight.packed, bits, k).clone()
    points = torch.full((24, 8), weight.zero, dtype=torch.uint8)
    if weight.zeros is not None:
        points = unpack_bytes(weight.zeros)
    codes[:, large] = points[:, [i // 32 for i in large]]
    weight = replace(weight, packed=pack_codes(codes, bits))
    if weight.offsets is not None:
        weight.offsets.zero_()
    graph, dense = chain_of(weight, 1).graph(device), weight.dequantize().double()
    for size in (1e3, 1e6, 1e20):
        for some in (large[:1], large[:2], large):
            x = randn(1, k)
            x[0, some] = size * torch.arange(1, len(some) + 1)
            (y,) = graph.execute([x.numpy()])
            error = (torch.as_tensor(y).double() - x.double() @ dense.T).abs()
            assert (error <= 2e-6 * (x.double().abs() @ dense.abs().T)).all(), (size, some)


@pytest.mark.parametrize("bits", [4, 8])
def test_memory_that_every_device_has(bits):
    """Also for the sums of as many rows at a time as there are, but for a half or a quarter."""
    unit = 128 // bits
    for k in range(unit, 20000, unit):
        for n in (1, 300, 2048, 128256):
            c = OneRowConfig.of_digits(k // unit, n, unit // 4, 2)
            words = _words_of_digits(c.lanes, c.slices, unit // 4)
            assert words + _words_of_sums(c.lanes, c.slices, min(4, c.rows) + 1) <= 4096, (k, n, c)


def test_activations_that_are_not_finite(device, way):
    """They are not lost: what they touch is not finite."""
    weight = packed(12, 96, 4, 32, "", torch.float16)
    for value in (float("nan"), float("inf"), -float("inf")):
        x = randn(1, 96)
        x[0, 40] = value
        (y,) = chain_of(weight, 1).graph(device).execute([x.numpy()])
        assert not torch.isfinite(torch.as_tensor(y)).any()


def test_same_bits_every_time(device, way):
    weight = packed(70, 1000, 4, 32, "", torch.float16)
    x = randn(1, 1000).numpy()
    found = {chain_of(weight, 1).graph(device).execute([x])[0].tobytes() for _ in range(3)}
    assert len(found) == 1


@pytest.mark.parametrize("quantized", [False, True])
def test_any_number_of_rows(device, quantized):
    """One row norms itself; the routes for more of them find it done."""
    weight = packed(40, 64, 4, 32, "", torch.float32) if quantized else randn(40, 64)
    check(device, weight, rows=(1, 0, 3, 17, 90), most=90, norm="weight")


def test_subnormal_scales(device):
    """f16 below 2^-14 are no zeros."""
    weight = packed(8, 64, 4, 32, "", torch.float16)
    weight.scales[::2] = 3e-7
    x = randn(1, 64) * 1e6
    (y,) = chain_of(weight, 1).graph(device).execute([x.numpy()])
    assert_close(y, wanted(x, weight))


CONFIGS = [
    OneRowConfig(8, 2, 8, 1),
    OneRowConfig(16, 4, 4, 2),
    OneRowConfig(64, 2, 1, 4),
    OneRowConfig(128, 8, 1, 1),
    OneRowConfig(256, 2, 1, 2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("quantized", [False, True])
def test_every_way_to_divide_it(device, config, quantized, monkeypatch):
    monkeypatch.setenv("EXECUTORCH_WGPU_INTEGER_DOT", "0")
    monkeypatch.setattr(OneRowConfig, "choose", staticmethod(lambda *_: config))
    n, k = 38, 2080
    weight = packed(n, k, 4, 32, "bytes", torch.float32) if quantized else randn(n, k) / 50
    check(device, weight, norm="weight")
    check(device, weight, pairs=True)


@pytest.mark.parametrize(
    ("bits", "k", "config"),
    [
        (4, 996, OneRowConfig(32, 2, 1, 1)),
        (4, 996, OneRowConfig(32, 4, 2, 1)),
        (4, 2048, OneRowConfig(64, 16, 4, 1)),
        (4, 2048, OneRowConfig(64, 8, 1, 1)),
        (4, 9000, OneRowConfig(128, 2, 1, 1)),
        (4, 9000, OneRowConfig(256, 4, 1, 1)),
        (8, 500, OneRowConfig(32, 2, 4, 1)),
        (8, 2048, OneRowConfig(128, 4, 2, 1)),
        (8, 9000, OneRowConfig(256, 2, 1, 1)),
    ],
    ids=str,
)
def test_every_way_to_divide_digits(device, bits, k, config, monkeypatch):
    monkeypatch.setenv("EXECUTORCH_WGPU_INTEGER_DOT", "1")
    monkeypatch.setattr(OneRowConfig, "of_digits", staticmethod(lambda *_: config))
    weight = packed(38, k, bits, 32, "bytes", torch.float32)
    check(device, weight, norm="weight")
    check(device, weight, pairs=True)


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
def test_tint_compiles_it() -> None:
    programs = []
    for weight in (
        randn(70, 36),
        randn(34, 1000).half(),
        packed(70, 36, 4, 32, "bytes", torch.float16),
        packed(70, 100, 4, 32, "bytes", torch.float16),
        packed(70, 2048, 4, 32, "offsets", torch.float16),
        packed(2100, 4160, 8, 64, "offsets", torch.float32),
    ):
        for norm in (None, "weight", "plain"):
            programs.append(chain_of(weight, 90, norm=norm, pairs=True).lower().program)
    errors = tint.validate(tint.sources_of(*programs))
    assert not any(errors), [error for error in errors if error]
