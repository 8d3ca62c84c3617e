"""The kernels for few rows: bound by reading ``w`` once, so they read it as wide as they can.

Measured on an H200 (f32, M = 1, w [N, K] read along k): [2048, 2048] 6.8 us, [8192, 2048] 17.8 us
(3.8 TB/s), [128256, 2048] 232 us (4.5 TB/s, what a copy reaches); M = 16 by [2048, 2048] 15 us.
Read along n: [2048, 2048] 9.2 us. Adding up through subgroups instead of workgroup memory was
tried and was 2-5 % slower there, so there is one route for all devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executorch_wgpu.ops.builder import Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.halves import is_half
from executorch_wgpu.ops.matmul.problem import (
    Operand,
    Problem,
    bind_out,
    describe_epilogue,
    effective_strides,
    is_vector,
)
from executorch_wgpu.ops.symbolic import Scalar, ceil_div, upper_bound


@dataclass(frozen=True)
class RowsConfig:
    """How ``gemv_rows.wgsl`` divides the work: ``lanes`` (a power of two) walk ``rows`` rows of w
    together, ``slices`` such groups make a workgroup, ``unroll`` loads of a row are in flight."""

    lanes: int
    rows: int
    slices: int
    unroll: int

    @staticmethod
    def choose(units: int, n: int, m_tile: int, group: int = 1) -> RowsConfig:
        """``units``: loads a row of w takes. ``n``: rows of w. ``m_tile``: rows of a. ``group``:
        rows of w that have to stay together. Chosen by sweeps on an H200; there the neighbours
        are within some percent."""
        if units < 64:
            # Rows too short for a workgroup: several share it. Each result has a lane to store it.
            lanes = max(8, 1 << max(units - 1, 0).bit_length())
            return RowsConfig(lanes, group, 64 // lanes, 1)
        lanes = 64 if units < 256 or (m_tile > 1 and n >= 2048) else 128
        rows = 2 if m_tile > 4 or (lanes == 64 and m_tile == 1 and n >= 16384) else 1
        most = 4 if m_tile == 1 else 2 if m_tile <= 4 else 1
        return RowsConfig(lanes, max(rows, group), 1, max(1, min(most, units // lanes)))


@dataclass(frozen=True)
class ColumnsConfig:
    """How ``gemv_columns.wgsl`` divides the work: ``lanes`` hold columns, each ``slices`` times
    with a share of k; ``unroll`` loads of a column are in flight."""

    lanes: int
    slices: int
    unroll: int

    @staticmethod
    def choose(units: int) -> ColumnsConfig:
        """``units``: loads a row of k takes. Few columns are read in narrow strips, so that there
        are enough workgroups."""
        return ColumnsConfig(4, 64, 8) if units < 2048 else ColumnsConfig(8, 32, 8)


def reads_along_k(problem: Problem) -> bool:
    """Whether ``w`` is better read along k than along n."""
    strides = effective_strides(problem.w)
    return strides[2] == 1 or strides[1] != 1


def gemv_limits(problem: Problem) -> list[tuple[int, int]]:
    """(rows, rows at a time): how many rows these kernels take at most, and how many of them with
    one reading of ``w``, a kernel for each entry. Beyond the last one tiles are faster, sooner
    where the result is wide enough to keep a device busy with them."""
    n = upper_bound(problem.n)
    most = 24 if n <= 4096 else 16 if n <= 16384 else 8
    return [(1, 1), (4, 4), (most, 8 if reads_along_k(problem) else 4)]


def gemv_dispatch(b: Builder, problem: Problem, m_tile: int) -> DispatchSpec:
    """One dispatch, right for any number of rows, good for few. ``m_tile``: rows of ``a`` that
    are multiplied with one reading of ``w``, 1 to 8."""
    if reads_along_k(problem):
        return _rows(b, problem, m_tile)
    if problem.epilogue.pairs:
        raise ValueError(f"{problem.name}: pairs of rows of a w that is not read along k")
    return _columns(b, problem, m_tile)


def _rows(
    b: Builder, problem: Problem, m_tile: int, config: RowsConfig | None = None
) -> DispatchSpec:
    width = _width(problem)
    a, w = (
        Operand(name, tensor, None if width == 1 else 2, width=8 if width == 8 and half else 4)
        for name, tensor in (("a", problem.a), ("w", problem.w))
        for half in [is_half(tensor.dtype)]
    )
    units = problem.k // width
    config = config or RowsConfig.choose(
        upper_bound(units), upper_bound(problem.n), m_tile, problem.group
    )
    workgroup = config.lanes * config.slices
    return _dispatch(
        b,
        problem,
        "rows",
        (a, w),
        {"UNITS": units},
        blocks=ceil_div(problem.n, config.rows * config.slices),
        m_tile=m_tile,
        consts={
            "LANES": config.lanes,
            "R": config.rows,
            "SLICES": config.slices,
            "UNROLL": config.unroll,
            "WIDTH": width,
        },
        workgroup=(workgroup,),
        workgroup_bytes=4 * workgroup * m_tile * config.rows,
    )


def _width(problem: Problem) -> int:
    """Elements of k that one load of ``w`` brings: 16 bytes where the layout of both allows it."""
    both = (problem.a, problem.w)
    if is_half(problem.w.dtype) and all(is_vector(tensor, 2, 8) for tensor in both):
        return 8
    return 4 if all(is_vector(tensor, 2) for tensor in both) else 1


def _columns(
    b: Builder, problem: Problem, m_tile: int, config: ColumnsConfig | None = None
) -> DispatchSpec:
    vector = 1 if is_vector(problem.w, 1) else None
    units = problem.n if vector is None else problem.n // 4
    config = config or ColumnsConfig.choose(upper_bound(units))
    return _dispatch(
        b,
        problem,
        "columns",
        (Operand("a", problem.a), Operand("w", problem.w, vector)),
        {"UNITS": units, "K": problem.k},
        blocks=ceil_div(units, config.lanes),
        m_tile=m_tile,
        consts={"LEFT": max(1, config.slices // 8), "UNROLL": config.unroll},
        workgroup=(config.lanes, config.slices),
        workgroup_bytes=(4 if vector is None else 16) * config.lanes * config.slices * m_tile,
    )


def _dispatch(
    b: Builder,
    problem: Problem,
    kind: str,
    operands: tuple[Operand, Operand],
    params: dict[str, Number],
    *,
    blocks: Scalar,
    m_tile: int,
    consts: dict[str, object],
    workgroup: Sequence[int],
    workgroup_bytes: int,
) -> DispatchSpec:
    tiles = ceil_div(problem.m, m_tile)
    params |= {"M": problem.m, "N": problem.n}
    if problem.batch != 1:
        params["BATCH"] = problem.batch
    reads = {operand.variable: operand.bind for operand in operands}
    a, w = (operand.describe(params) for operand in operands)
    epilogue = describe_epilogue(problem, params, reads)
    return b.dispatch(
        f"matmul/gemv_{kind}.wgsl",
        f"{problem.name}_gemv{m_tile}_{kind}",
        reads=reads,
        writes={"out": bind_out(problem)},
        params=params,
        consts={"A": a, "W": w, "M_TILE": m_tile, "TILED": tiles != 1, **consts, **epilogue},
        grid=linear_grid(blocks * tiles * problem.batch),
        workgroup=workgroup,
        workgroup_bytes=workgroup_bytes,
        flops=problem.flops,
    )
