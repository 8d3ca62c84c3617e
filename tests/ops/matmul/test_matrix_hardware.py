"""What matrix units compute, where there are any:

    EXECUTORCH_WGPU_HARDWARE=1 EXECUTORCH_WGPU_API=wgpudawn EXECUTORCH_WGPU_MATRIX_UNITS=1 \\
        python -m pytest tests/ops/matmul/test_matrix_hardware.py

Against f64. Their sums are f32 that rounds toward zero, so that errors grow with k: allowed are
2^-19 ("precise") or 2^-11 ("fast") of the sum of the products' sizes, and 2^-21 for each 16 of k.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from matrix_products import KINDS, Case, product

from executorch_wgpu.runtime import matrix_units
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import DType
from executorch_wgpu.serialization.limits import MATRIX_UNITS

pytestmark = pytest.mark.skipif(
    os.environ.get("EXECUTORCH_WGPU_HARDWARE", "") in ("", "0") or not matrix_units.asked_for(),
    reason="needs matrix units: EXECUTORCH_WGPU_HARDWARE=1 and EXECUTORCH_WGPU_MATRIX_UNITS=1",
)

MODES = ("precise", "fast")


def check(device: Any, case: Case, mode: str, rows: int | None = None, half: bool = False) -> None:
    """Run the case and compare every result with what it may be off by."""
    lowered = case.chain.lower()
    graph = WebGPUGraph(device, lowered.program, lowered.data, "matrix", poison=True)
    routes = [r for step in lowered.program.steps for r in step.routes]
    assert any(MATRIX_UNITS in route.features for route in routes)
    x = case.x[:rows]
    more = [array[:rows] for array in case.more]
    got = torch.from_numpy(np.asarray(graph.execute([x.numpy(), *more])[0])).double()
    k = case.x.shape[1]
    allowed = (2.0**-19 if mode == "precise" else 2.0**-11) + k / 16 * 2.0**-21
    error = (got - case.want[:rows]).abs()
    limit = allowed * case.size[:rows] * (4 if half else 1) + 1e-30
    if half:
        limit = limit + 2.0**-11 * case.want[:rows].abs()
    bad = ~(error <= limit)
    assert not bad.any(), (int(bad.sum()), float((error / limit).nan_to_num(9e9).max()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight(device: Any, kind: str, mode: str) -> None:
    for m, n, k in ((77, 200, 512), (300, 130, 1024)):
        check(device, product(kind, mode, m, n, k), mode)


@pytest.mark.parametrize("mode", MODES)
def test_live_rows(device: Any, mode: str) -> None:
    case = product("q4g32", mode, 400, 260, 2048, live=True)
    for rows in (1, 16, 33, 64, 128, 129, 257, 400):
        check(device, case, mode, rows)


@pytest.mark.parametrize("mode", MODES)
def test_what_follows(device: Any, mode: str) -> None:
    for kind in ("q4g32", "f16"):
        check(device, product(kind, mode, 100, 254, 512, residual=True), mode)
        check(device, product(kind, mode, 150, 256, 512, norm=True, residual=True), mode)
        check(device, product(kind, mode, 140, 131, 512, out=DType.F16), mode, half=True)
        case = product(kind, mode, 90, 256, 512, pairs=True)
        case.size *= 2
        check(device, case, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_range_that_f16_lacks(device: Any, mode: str) -> None:
    """Rows of large and of small elements, of zeros, and with one element above all others."""
    torch.manual_seed(1)
    x = torch.randn(64, 512)
    x[::8] *= 1e30
    x[1::8] *= 1e-30
    x[2::8] = 0
    x[3::8, 77] = 3e4
    x[4::8] *= 1e35
    for kind in ("q4g32", "f16", "f32"):
        check(device, product(kind, mode, 64, 130, 512, x=x), mode)


@pytest.mark.parametrize("mode", MODES)
def test_infinity_and_nan_stay_in_their_rows(device: Any, mode: str) -> None:
    x = torch.randn(64, 512)
    x[3, 5], x[9, 7] = float("inf"), float("nan")
    case = product("f16", mode, 64, 130, 512, x=x)
    graph = case.chain.graph(device)
    got = np.asarray(graph.execute([x.numpy()])[0])
    wrong = ~np.isfinite(got).all(1)
    assert list(np.flatnonzero(wrong)) == [3, 9]


def test_sums_of_one_sign(device: Any) -> None:
    """The worst case of sums that round toward zero."""
    x = torch.rand(128, 8192)
    case = product("f32", "precise", 128, 64, 8192, x=x, positive=True)
    check(device, case, "precise")
