"""The kernel for many rows: shapes of its tiles, and workgroups that split k."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.ops.elementwise.formula import Formula, Line
from executorch_wgpu.ops.matmul import gemm
from executorch_wgpu.ops.matmul.gemm import (
    MOST_SUMS,
    SHORT,
    TILE,
    UNSLICED,
    TileConfig,
    best_parts,
)
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain, assert_close

F32, F16 = DType.F32, DType.F16
#: a * b + c, of the sums of two rows and an operand
GATED = Formula((F32, F32, F32), (Line(F32, "({0} * {1} + {2})", (0, 1, 2)),))
#: As many lanes as both factors have blocks, twice as many, a slot of both factors, idle lanes.
CONFIGS = [
    UNSLICED,
    TileConfig(16, 16, 8, 8, 16),
    TileConfig(16, 8, 8, 8, 16),
    TileConfig(8, 16, 8, 8, 16),
    TileConfig(16, 8, 8, 4, 32),
    TileConfig(8, 8, 4, 8, 8, 2),
    TileConfig(8, 8, 12, 4, 8, 4),
]


@pytest.mark.parametrize("config", [TILE, SHORT, *CONFIGS], ids=str)
def test_every_block_is_fetched_once(config: TileConfig) -> None:
    assert config.workgroup_bytes <= 16384 and config.lanes * config.slices <= 256
    found: dict[str, list[int]] = {"a": [], "w": []}
    for slot in config.slots():
        taken: set[int] = set()
        for part in slot:
            lanes = range(part["from"], part["to"])
            assert lanes and not taken & set(lanes) and max(lanes) < config.lanes
            taken |= set(lanes)
            found[part["operand"]] += [part["first"] + i for i in range(len(lanes))]
    assert found["a"] == list(range(config.bm * config.bk // 16))
    assert found["w"] == list(range(config.bn * config.bk // 16))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("columns", [False, True])
def test_shapes_of_tiles(
    device: Any, monkeypatch: pytest.MonkeyPatch, config: TileConfig, columns: bool
) -> None:
    monkeypatch.setattr(gemm, "TILE", config)
    m, n, k = 139, 132, 72
    x, w = torch.randn(m, k), torch.randn(n, k) / k**0.5
    c = Chain()
    a = c.input("x", (m, k))
    weight = c.constant(w.T.contiguous() if columns else w)
    if columns:
        y = c.call("aten.mm.default", {"self": a, "mat2": weight}, [(F32, (m, n))])
    else:
        args = {"input": a, "weight": weight, "bias": None}
        y = c.call("aten.linear.default", args, [(F32, (m, n))])
    c.output(*y)
    assert_close(c.graph(device).execute([x.numpy()])[0], x.double() @ w.double().T)


def labels(graph: Any, route: str) -> list[str]:
    steps = graph.program.steps
    (found,) = [r for step in steps for r in step.routes if r.name == route]
    return [dispatch.label for dispatch in found.dispatches]


@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    [(1, 512, F32), (35, 515, F32), (36, 520, F32), (132, 1030, F16), (35, 516, F16)],
)
def test_workgroups_split_k(device: Any, n: int, k: int, dtype: DType) -> None:
    """Few tiles, much of k: two dispatches for a live number of rows, with a bias."""
    c = Chain()
    m = c.int_input("M", 1, 150)
    kind = torch.float16 if dtype is F16 else torch.float32
    x = c.input("x", (m, k), kind)
    w, bias = (torch.randn(n, k) / k**0.5).to(kind), torch.randn(n).to(kind)
    args = {"input": x, "weight": c.constant(w), "bias": c.constant(bias)}
    c.output(*c.call("aten.linear.default", args, [(dtype, (m, n))]))
    graph = c.graph(device)
    assert len(labels(graph, "gemm_split")) == 2
    for rows in (33, 64, 65, 150):
        a = torch.randn(rows, k).to(kind)
        (y,) = graph.execute([rows, a.numpy()])
        tolerance = {"abs_tol": 2e-3, "rel_tol": 1e-2} if dtype is F16 else {}
        assert_close(y, a.double() @ w.double().T + bias.double(), **tolerance)


def test_parts_of_k_by_the_number_of_rows(device: Any) -> None:
    """More rows are more tiles: k is split as it is best for each, down to not at all."""
    n, k, most = 4100, 512, 300
    tall = [best_parts(high * 65, k) for high in (1, 2, 3, 4, 5)]
    assert tall == [4, 2, 1, 1, 3]
    c = Chain()
    m = c.dim_of("M", 0, 1, most)
    weight = torch.randn(n, k) / k**0.5
    args = {"input": c.input("x", (m, k)), "weight": c.constant(weight), "bias": None}
    c.output(*c.call("aten.linear.default", args, [(F32, (m, n))]))
    graph = c.graph(device)
    for rows in (40, 65, 129, 256, 257, 300):
        a = torch.randn(rows, k)
        (y,) = graph.execute([a.numpy()])
        assert_close(y, a.double() @ weight.double().T)


def test_sums_that_are_left_to_add_up_are_bounded() -> None:
    for k in (512, 2048, 16384):
        for count in range(1, 1200):
            parts = best_parts(count, k)
            assert parts == 1 or parts * count <= MOST_SUMS


@pytest.mark.parametrize(("n", "k"), [(2, 512), (70, 515), (72, 640)])
def test_pairs_of_split_sums(device: Any, n: int, k: int) -> None:
    c = Chain()
    m, x, w, bias = 67, torch.randn(67, k), torch.randn(n, k) / k**0.5, torch.randn(n // 2)
    args = {"x": c.input("x", (m, k)), "weight": c.constant(w), "formula": GATED, "pairs": True}
    args["operands"] = [c.constant(bias)]
    c.output(*c.call("wgpu.linear", args, [(F32, (m, n // 2))]))
    graph = c.graph(device)
    assert len(graph.program.steps[0].routes[0].dispatches) == 2
    sums = x.double() @ w.double().T
    (y,) = graph.execute([x.numpy()])
    assert_close(y, sums[:, 0::2] * sums[:, 1::2] + bias)


def test_no_part_of_k_is_left_out(device: Any) -> None:
    """More parts than there are steps for: the last have nothing to add."""
    c = Chain()
    x = c.input("x", (40, 1056))  # 33 steps, in 8 parts of 5: 5 are left for seven
    w = torch.ones(8, 1056)
    args = {"input": x, "weight": c.constant(w), "bias": None}
    c.output(*c.call("aten.linear.default", args, [(F32, (40, 8))]))
    a = np.arange(40 * 1056, dtype=np.float32).reshape(40, 1056) % 7
    np.testing.assert_array_equal(c.graph(device).execute([a])[0], a @ np.ones((1056, 8)))
