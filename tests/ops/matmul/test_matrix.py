"""Matrix units: routes that ask for them, other devices' plain ones, and what rounding does.

What the kernels compute is seen where there are such units, see test_matrix_hardware.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from matrix_products import KINDS, product

from executorch_wgpu.ops.matmul import gemm_matrix
from executorch_wgpu.ops.matmul.problem import Problem
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType, Program
from executorch_wgpu.serialization.limits import MATRIX_UNITS
from executorch_wgpu.serialization.verify import verify

import tint
from harness import assert_close

MODES = gemm_matrix.MODES


def matrix_routes(program: Program) -> list[str]:
    return [
        route.name
        for step in program.steps
        for route in step.routes
        if MATRIX_UNITS in route.features
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_who_asks_for_them_gets_them(kind: str) -> None:
    for mode in MODES:
        case = product(kind, mode, 300, 256, 512, live=True)
        program = case.chain.lower().program
        verify(program)
        flat = ["matrix_flat_split", "matrix_flat"] if mode == "precise" else []
        assert matrix_routes(program) == [*flat, "matrix_split", "matrix"]
        # What the program needs of a device stays what it was.
        assert program.features == () and program.limits == ()
    assert not matrix_routes(product(kind, "", 300, 256, 512, live=True).chain.lower().program)


def test_what_they_do_not_take() -> None:
    """Few rows, a k that is no multiple of a tile's, factors that are no constants or not finite,
    groups that loads would straddle."""
    for kind, m, k, change in (
        ("f16", 32, 512, None),
        ("f16", 64, 520, None),
        ("f32", 64, 512, float("inf")),
        ("bf16", 64, 512, float("nan")),
        ("q4g4", 64, 512, None),
    ):
        case = product(kind, "precise", m, 64, k, fill=change)
        assert not matrix_routes(case.chain.lower().program), (kind, m, k)


@pytest.mark.parametrize("kind", ["q4", "f16"])
def test_other_devices_take_the_plain_route(device: Any, kind: str) -> None:
    """Bit for bit: nothing of the other route is compiled or run."""
    results = []
    for mode in ("", *MODES):
        case = product(kind, mode, 70, 40, 128, live=True)
        results.append(np.asarray(case.chain.graph(device).execute([case.x.numpy()])[0]))
        assert_close(results[-1], case.want, 1e-4, 1e-3)
    assert all((result == results[0]).all() for result in results)


def programs(kinds: Sequence[str]) -> list[Program]:
    cases = [product(kind, mode, 300, 256, 512, live=True) for kind in kinds for mode in MODES]
    for more in ({"pairs": True}, {"residual": True, "norm": True}, {"out": DType.F16}):
        cases.append(product("q4", "precise", 300, 254, 512, **more))
    return [case.chain.lower().program for case in cases]


def errors_of(found: Sequence[Program]) -> list[str]:
    """What Tint says of the kernels for matrix units."""
    sources = [s for s in tint.sources_of(*found) if "f16" in s.extensions]
    assert len(sources) > 10
    return [error for error in tint.validate(sources) if error]


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
@pytest.mark.parametrize("kinds", [KINDS[::4], pytest.param(KINDS, marks=pytest.mark.slow)])
def test_tint_compiles_every_variant(monkeypatch: pytest.MonkeyPatch, kinds: list[str]) -> None:
    """In tiles for which the null device has the workgroup memory."""
    small = gemm_matrix.MatrixConfig(bm=32, bn=64, sm=16, sn=32, bk=32)
    direct = dataclasses.replace(small, direct=True)
    monkeypatch.setattr(gemm_matrix, "TILES", dict.fromkeys(MODES, (small, direct)))
    assert errors_of(programs(kinds)) == []


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
def test_tint_compiles_them_as_they_are() -> None:
    """The null device has too little workgroup memory, which is found last."""
    for error in errors_of(programs(["q4g32", "f16"])):
        assert "total use of workgroup storage" in error


def parts_of(x: np.ndarray, exponent: np.ndarray, count: int) -> np.ndarray:
    """As the kernels make them: the sum, in f64, of ``count`` f16 parts of x times 2^exponent."""
    scaled = np.ldexp(x, exponent).astype(np.float32)
    if count == 1:
        return np.ldexp(scaled.astype(np.float16).astype(np.float64), -exponent)
    high = (scaled.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    low = (scaled - high).astype(np.float16)
    assert (high.astype(np.float16).astype(np.float32) == high)[np.abs(high) >= 2.0**-14].all()
    return np.ldexp(high.astype(np.float16).astype(np.float64) + low.astype(np.float64), -exponent)


@pytest.mark.parametrize("spread", [0, 6, 25])
def test_what_parts_keep(spread: int) -> None:
    """22 bits of an element, or 38 below the row's largest: whatever the row's range is."""
    generator = np.random.default_rng(spread)
    x = generator.standard_normal((50, 256)).astype(np.float32)
    x *= np.exp2(generator.integers(-spread, spread + 1, x.shape)).astype(np.float32)
    x *= np.exp2(generator.integers(-90, 90, (50, 1))).astype(np.float32)
    most = np.abs(x).max(1, keepdims=True).astype(np.float64)
    exponent = 14 - (np.frexp(most)[1] - 1)
    assert (np.ldexp(most, exponent) < 2.0**15).all()
    for count, bits in ((2, 21), (1, 11)):
        error = np.abs(parts_of(x, exponent, count) - x)
        assert (error <= np.maximum(np.abs(x) * 2.0**-bits, most * 2.0**-38)).all(), count


def test_codes_and_scales_in_halves_are_exact() -> None:
    """A code less its zero, times either part of an f16 scale: f16 holds both."""
    generator = np.random.default_rng(1)
    scales = np.exp(generator.uniform(-6, 2, 500)).astype(np.float16).astype(np.float32)
    scales = np.ldexp(scales, gemm_matrix.exponent_of(float(scales.max()) * 16))
    seven = (scales.view(np.uint32) & np.uint32(0xFFFE0000)).view(np.float32)
    codes = np.arange(-15, 16, dtype=np.float32)[:, None]
    total = np.zeros((31, 500))
    for part in (seven, scales - seven):
        product = codes * part
        assert (product.astype(np.float16).astype(np.float32) == product).all()
        total += product
    assert (total == codes.astype(np.float64) * scales).all()


def test_parts_of_k_keep_a_device_busy() -> None:
    for m, n, k, expected in ((128, 2048, 2048, 8), (128, 16384, 2048, 1), (512, 16384, 2048, 1)):
        shape = [Tensor(DType.F32, (1, r, k), (0, k, 1), 0, None) for r in (m, n)]
        problem = Problem("p", *shape, out=shape[0])
        flat, high = gemm_matrix.TILES["precise"]
        config = flat if m <= flat.bm else high
        assert gemm_matrix.splits_of(problem, config) == expected


def test_scales_that_bring_weights_to_range() -> None:
    for most in (1e-30, 1e-3, 0.7, 1.0, 3e4, 1e30):
        scaled = most * 2.0 ** gemm_matrix.exponent_of(most)
        assert 2.0**14 <= scaled < 2.0**15 or abs(gemm_matrix.exponent_of(most)) == 100
    assert gemm_matrix.exponent_of(0.0) == 0
    assert gemm_matrix.largest(None) is None
