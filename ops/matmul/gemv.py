"""The kernels for few rows: bound by reading ``w`` once, so they read it as wide as they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executorch_wgpu.ops.builder import Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.matmul.problem import (
    Operand,
    Problem,
    bind_out,
    describe_epilogue,
    effective_strides,
    is_vector,
    weight_operand,
)
from executorch_wgpu.ops.symbolic import Scalar, ceil_div, upper_bound

#: Lanes that walk a row of w together, where a row has at least this many loads: a workgroup's.
_WHOLE_WORKGROUP = 64


@dataclass(frozen=True)
class RowsConfig:
    """How ``gemv_rows.wgsl`` divides the work: ``lanes`` walk ``rows`` rows of w together,
    ``slices`` such groups make a workgroup."""

    lanes: int
    rows: int
    slices: int
    unroll: int = 1

    @property
    def workgroup(self) -> int:
        return self.lanes * self.slices

    @staticmethod
    def choose(units: int, n: int, m_tile: int) -> RowsConfig:
        """``units``: loads a row of w takes. ``n``: rows of w. A lane should have a few loads to
        wait for at once, and the device enough workgroups to be full."""
        rows = 1 if n < 4096 else 2 if n < 16384 else 4
        rows = max(1, min(rows, 8 // m_tile))
        if units < _WHOLE_WORKGROUP:
            lanes = max(4, 1 << max(units - 1, 0).bit_length())
            return RowsConfig(lanes, 1, max(1, 64 // lanes))
        lanes = 64 if units < 256 else 128 if units < 1024 else 256
        return RowsConfig(lanes, rows, 1)


def reads_along_k(problem: Problem) -> bool:
    """Whether ``w`` is better read along k than along n."""
    strides = effective_strides(problem.w)
    return strides[2] == 1 or strides[1] != 1


def gemv_features(problem: Problem, m_tile: int) -> list[str]:
    """The optional features of WebGPU that a kernel exists for, best first; the last is "" for
    the kernel that needs none."""
    if reads_along_k(problem) and _rows_config(problem, m_tile).lanes >= _WHOLE_WORKGROUP:
        return ["subgroups", ""]
    return [""]


def gemv_dispatch(b: Builder, problem: Problem, m_tile: int, feature: str = "") -> DispatchSpec:
    """One dispatch for at most ``m_tile`` rows of ``a`` (1 to 4). ``feature``: one of
    :func:`gemv_features`."""
    if reads_along_k(problem):
        return _rows(b, problem, m_tile, feature == "subgroups")
    return _columns(b, problem, m_tile)


def _vector(problem: Problem) -> int | None:
    """2 where both factors can be read four elements of k at a time."""
    return 2 if is_vector(problem.a, 2) and is_vector(problem.w, 2) else None


def _rows_config(problem: Problem, m_tile: int) -> RowsConfig:
    units = problem.k if _vector(problem) is None else problem.k // 4
    return RowsConfig.choose(upper_bound(units), upper_bound(problem.n), m_tile)


def _rows(
    b: Builder,
    problem: Problem,
    m_tile: int,
    subgroups: bool,
    config: RowsConfig | None = None,
) -> DispatchSpec:
    vector, config = _vector(problem), config or _rows_config(problem, m_tile)
    params: dict[str, Number] = {"UNITS": problem.k if vector is None else problem.k // 4}
    return _dispatch(
        b,
        problem,
        "rows",
        (Operand("a", problem.a, vector), weight_operand(problem, vector)),
        params,
        blocks=ceil_div(problem.n, config.rows * config.slices),
        m_tile=m_tile,
        consts={
            "LANES": config.lanes,
            "R": config.rows,
            "SLICES": config.slices,
            "UNROLL": config.unroll,
            "SUBGROUPS": subgroups,
        },
        workgroup=(config.workgroup,),
        workgroup_bytes=4 * config.workgroup * m_tile * config.rows,
        extensions=("subgroups",) if subgroups else (),
    )


def _columns(b: Builder, problem: Problem, m_tile: int) -> DispatchSpec:
    vector = 1 if is_vector(problem.w, 1) else None
    units = problem.n if vector is None else problem.n // 4
    lanes, slices = 16, 8
    while lanes > 4 and upper_bound(units) <= lanes // 2:
        lanes, slices = lanes // 2, slices * 2
    params: dict[str, Number] = {"UNITS": units, "K": problem.k}
    return _dispatch(
        b,
        problem,
        "columns",
        (Operand("a", problem.a), weight_operand(problem, vector)),
        params,
        blocks=ceil_div(units, lanes),
        m_tile=m_tile,
        consts={},
        workgroup=(lanes, slices),
        workgroup_bytes=(4 if vector is None else 16) * lanes * slices * m_tile,
        extensions=(),
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
    extensions: Sequence[str],
) -> DispatchSpec:
    groups = blocks * problem.batch
    params |= {"M": problem.m, "N": problem.n, "BLOCKS": blocks, "GROUPS": groups}
    reads = {operand.variable: operand.bind for operand in operands}
    a, w = (operand.describe(params) for operand in operands)
    epilogue = describe_epilogue(problem, params, reads)
    return b.dispatch(
        f"matmul/gemv_{kind}.wgsl",
        f"{problem.name}_gemv_{kind}",
        reads=reads,
        writes={"out": bind_out(problem)},
        params=params,
        consts={"A": a, "W": w, "M_TILE": m_tile, **consts, **epilogue},
        grid=linear_grid(groups),
        workgroup=workgroup,
        workgroup_bytes=workgroup_bytes,
        extensions=extensions,
    )
