"""The kernel for many rows: tiles in workgroup memory, register tiles in lanes.

Measured on an H200 (f32): M = 128 by [2048, 2048] 59 us, by [8192, 2048] 140 us (31 TFLOP/s),
M = 2048 by [2048, 2048] 554 us (31 TFLOP/s of 67). Reading the next tile ahead took a quarter off,
splitting k a third off what leaves the device half empty (M = 64: 52 to 35 us). Weights in f16 are
2 to 5 % faster; taken apart as they arrive rather than when they are needed, they were 10 to 30 %
slower."""

from __future__ import annotations

from dataclasses import dataclass

from executorch_wgpu.ops.builder import Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.matmul.gemv import reads_along_k
from executorch_wgpu.ops.matmul.problem import (
    Operand,
    Problem,
    bind_out,
    describe_epilogue,
    effective_strides,
    is_vector,
)
from executorch_wgpu.ops.symbolic import Scalar, ceil_div


@dataclass(frozen=True)
class TileConfig:
    """``tx`` x ``ty`` lanes, each with ``tm`` rows and ``tn`` columns (a multiple of 4) of the
    result, ``bk`` of k at a time (a multiple of 4); ``slices`` times as many lanes split k. The
    lanes of a slice divide bm * bk / 4 and bn * bk / 16."""

    tx: int
    ty: int
    tm: int
    tn: int
    bk: int
    slices: int = 1

    @property
    def bm(self) -> int:
        return self.ty * self.tm

    @property
    def bn(self) -> int:
        return self.tx * self.tn

    @property
    def workgroup_bytes(self) -> int:
        return 4 * self.bk * (self.bm + self.bn) * self.slices


#: Both fill 16 KiB of workgroup memory. Tiles of 64 x 64 use the arithmetic units best; tiles of
#: 32 x 32 with k split in two keep a device busy with a small result.
LARGE = TileConfig(tx=16, ty=8, tm=8, tn=4, bk=32)
SMALL = TileConfig(tx=8, ty=8, tm=4, tn=4, bk=32, slices=2)

#: Large tiles from this many workgroups on. On an H200 (132 cores) 64 of them are a quarter slower
#: than small tiles, 72 a third faster: the small ones then no longer fit at once.
ENOUGH_GROUPS = 70


def tiles(problem: Problem, config: TileConfig) -> Scalar:
    """Workgroups that ``config`` takes."""
    return ceil_div(problem.m, config.bm) * ceil_div(problem.n, config.bn) * problem.batch


def gemm_dispatch(b: Builder, problem: Problem, config: TileConfig) -> DispatchSpec:
    """One dispatch for any number of rows."""
    columns = not reads_along_k(problem)
    a = Operand("a", problem.a, 2 if is_vector(problem.a, 2) else None)
    along = 1 if columns else 2
    w = Operand("w", problem.w, along if is_vector(problem.w, along) else None)
    params: dict[str, Number] = {"M": problem.m, "N": problem.n, "K": problem.k}
    if problem.batch != 1:
        params["BATCH"] = problem.batch
    reads = {operand.variable: operand.bind for operand in (a, w)}
    described_a, described_w = a.describe(params), w.describe(params)
    epilogue = describe_epilogue(problem, params, reads)
    vector_out = all(value % 4 == 0 for value in (problem.n, problem.out_n))
    vector_out = vector_out and problem.out.storage.size_bytes >= 16
    vector_out = vector_out and not problem.epilogue.pairs
    return b.dispatch(
        "matmul/gemm.wgsl",
        f"{problem.name}_gemm_{config.bm}x{config.bn}",
        reads=reads,
        writes={"out": bind_out(problem, vector_out)},
        params=params,
        consts={
            "A": described_a,
            "W": described_w,
            "A_ALONG_K": effective_strides(problem.a)[2] == 1,
            "W_COLUMNS": columns,
            "K_EDGE": problem.k % (config.bk * config.slices) != 0,
            "OUT_VECTOR": vector_out,
            "TX": config.tx,
            "TY": config.ty,
            "TM": config.tm,
            "TN": config.tn,
            "BK": config.bk,
            "SLICES": config.slices,
            **epilogue,
        },
        grid=linear_grid(tiles(problem, config)),
        workgroup=(config.tx * config.ty * config.slices,),
        workgroup_bytes=config.workgroup_bytes,
        flops=problem.flops,
    )
