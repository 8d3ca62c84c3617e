"""The kernel for many rows: tiles in workgroup memory, register tiles in lanes; any factor.

Measured on an H200 at 1,980 MHz with stand-alone copies of the kernel, f32, K = 2,048, device time:
M = 128, N = 8,192 113 us (38 TFLOP/s; 140 before), N = 2,048 35 us with the sum (62 before; 4-bit
weights 38); M = 512, N = 8,192 446 us. What brought it, M = 128, N = 8,192:

* the order in workgroup memory that changes every four steps of k (lanes that write side by side
  met in one bank): 146 to 121 us;
* 8 x 8 results a lane and two slices of k, for 8 x 4: 118; every other lane along m: 113;
* workgroups that split k, N = 2,048: 68 to 35 us, in four parts, the sum's dispatch included.

Not taken: tiles of 64 x 128 and 128 x 64 along rows (154 to 210 us), 16 x 8 results a lane (154 and
more: 250 registers), two buffers in workgroup memory (194 to 205), vec4s along k (131 to 138: 251
registers), the steps of k in a loop (123 to 142), fma() and no bounds checks (the same within 1 us:
the driver fuses, and the clamps leave the loop), 8 of k at a time (170: too little to do while the
next tile comes) and 32 (208: registers), 128 x 64 results with 128 lanes (154). Without fetching
and writing tiles it would be 93: the 64 reads from workgroup memory for 1,024 multiply-adds of a
lane are what is left. By the driver's own code a lane has 1,240 instructions for these 1,024 with
f32 weights and 1,330 with packed ones, and integers go at half rate.

In a model, one product after the other on weights that no cache holds (us; two slices / one): f32,
N = 8,192 124 / 110, M = 512, N = 16,384 944 / 816 (42 TFLOP/s); 4-bit 127 / 127, 968 / 940; f16
117 / 119, 893 / 973. What a lane fetched must stay as it lies until it is written: a shift or a
conversion behind the load waits for it (f16 143 to 117, 4-bit 131 to 127)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from executorch_wgpu.ops.builder import Bind, Bindable, Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.halves import codec
from executorch_wgpu.ops.matmul.gemv import reads_along_k
from executorch_wgpu.ops.matmul.problem import (
    Operand,
    Problem,
    bind_out,
    describe_epilogue,
    effective_strides,
    is_vector,
)
from executorch_wgpu.ops.symbolic import (
    Scalar,
    bounds,
    ceil_div,
    less_equal,
    maximum,
    upper_bound,
)
from executorch_wgpu.ops.tensor import touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType


@dataclass(frozen=True)
class TileConfig:
    """``tx`` x ``ty`` lanes (multiples of 8), each with ``tm`` rows and ``tn`` columns (multiples
    of 4) of the result, ``bk`` of k at a time (a multiple of 4); ``slices`` times as many lanes
    split k."""

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
    def lanes(self) -> int:
        """Of a slice."""
        return self.tx * self.ty

    @property
    def step(self) -> int:
        """Of k, between two barriers."""
        return self.bk * self.slices

    @property
    def workgroup_bytes(self) -> int:
        return 4 * self.bk * (self.bm + self.bn) * self.slices

    def slots(self) -> list[list[dict[str, Any]]]:
        """Which lanes fetch which blocks of 4 x 4, as gemm.wgsl's SLOTS: first those of ``a``, then
        those of ``w``, as many at a time as there are lanes."""
        ends = {"a": self.bm * self.bk // 16, "w": (self.bm + self.bn) * self.bk // 16}
        found = []
        for start in range(0, ends["w"], self.lanes):
            parts = []
            for operand, first, end in (("a", 0, ends["a"]), ("w", ends["a"], ends["w"])):
                low, high = max(start, first), min(start + self.lanes, end)
                if low < high:
                    lanes = {"from": low - start, "to": high - start}
                    parts.append({"operand": operand, "first": low - first, **lanes})
            found.append(parts)
        return found


#: The general one. 128 lanes with 8 x 8 results each; two workgroups keep a core of an H200 busy.
TILE = TileConfig(tx=8, ty=8, tm=8, tn=8, bk=16, slices=2)
#: Without slices: for many tiles, of factors that lie in f32 or packed.
UNSLICED = TileConfig(tx=8, ty=8, tm=8, tn=8, bk=16)
#: For few rows.
SHORT = TileConfig(tx=8, ty=8, tm=4, tn=4, bk=32, slices=2)
SHORT_ROWS = 32

#: Workgroups of TILE that are at work at a time: 132 cores of an H200, two each.
AT_A_TIME = 264
#: Tiles from which on a device is full without slices.
FULL = 256
#: Results of more tiles than four rounds of these are not split.
MOST_TILES = 4 * AT_A_TIME
MAX_SPLITS = 8
#: Sums of so many tiles at most are left to add up, 16 KiB each: 33 MiB.
MOST_SUMS = 8 * AT_A_TIME
#: The least of k that a workgroup is given.
LEAST_K = 128


@dataclass(frozen=True)
class Variant:
    """A way to compute a product of many rows, and the guard under which it is the best. With
    ``split``, workgroups split k and a second dispatch adds up."""

    name: str
    guard: Scalar
    config: TileConfig
    split: bool = False


@dataclass(frozen=True)
class Factor:
    """``w`` in a format of its own. ``reads``: its bindings. ``params``, ``consts``: of the
    function of (row, k) that ``consts["W"]["quad"]`` names. ``label``: between the dispatch's name
    and the kernel's. ``bytes``: read of it."""

    reads: Mapping[str, Bindable]
    params: Mapping[str, Number]
    consts: Mapping[str, Any]
    label: str
    bytes: Scalar


def as_list(made: DispatchSpec | list[DispatchSpec]) -> list[DispatchSpec]:
    """What a kernel that takes one dispatch or several made."""
    return made if isinstance(made, list) else [made]


def variants(problem: Problem) -> list[Variant]:
    """In order of preference; the last always applies."""
    found = []
    least, most = bounds(problem.m)
    if least <= SHORT_ROWS:
        found.append(Variant("gemm_short", less_equal(problem.m, SHORT_ROWS), SHORT))
    if most <= SHORT_ROWS:
        return [Variant("gemm_short", 1, SHORT)]
    if can_split(problem) and max(_parts(problem)) > 1:
        guard = less_equal(2, splits_of(problem))
        found.append(Variant("gemm_split", guard, TILE, split=True))
    found.append(Variant("gemm", 1, UNSLICED if _fills_device(problem) else TILE))
    return found


def _fills_device(problem: Problem) -> bool:
    """Whether there are lanes enough without slices where k is not split, and that is faster."""
    count = upper_bound(tiles(problem, TILE))
    halves = any(tensor.dtype in (DType.F16, DType.BF16) for tensor in (problem.a, problem.w))
    return can_split(problem) and count >= FULL and not halves


def can_split(problem: Problem) -> bool:
    """Whether sums over parts of k are worth a dispatch of their own, and of a known size."""
    sizes = (problem.batch, problem.n, problem.k)
    known = all(isinstance(size, int) and size > 0 for size in sizes) and problem.batch == 1
    return known and upper_bound(problem.k) >= 4 * LEAST_K and problem.piece_of is None


def best_parts(count: int, k: int) -> int:
    """How many parts of k finish ``count`` tiles first: rounds that are full, against what writing
    and reading sums costs (measured on an H200) and a dispatch more. In rounds of whole tiles. No
    more than MOST_SUMS allows, which costs up to a tenth by this measure, and 2 % on the whole."""

    def cost(parts: int) -> float:
        rounds = -(-count * parts // AT_A_TIME) / parts
        return rounds + (36 * parts * count / AT_A_TIME + 60) / k if parts > 1 else rounds

    most = max(1, min(MAX_SPLITS, k // LEAST_K, MOST_SUMS // max(count, 1)))
    return min(range(1, most + 1), key=cost)


def _parts(problem: Problem) -> list[int]:
    """``best_parts`` where the result is 1, 2, 3 ... tiles high; 1 where it is higher."""
    wide = max(1, -(-upper_bound(problem.n) // TILE.bn))
    most = min(-(-upper_bound(problem.m) // TILE.bm), MOST_TILES // wide)
    return [best_parts(high * wide, upper_bound(problem.k)) for high in range(1, most + 1)] or [1]


def splits_of(problem: Problem) -> Scalar:
    """Parts of k, of a problem that :func:`can_split`."""
    high = ceil_div(problem.m, TILE.bm)
    parts = [*_parts(problem), 1]
    found: Scalar = 1
    for i, (here, above) in enumerate(pairwise(parts), 1):
        if here != above:
            found = found + (here - above) * less_equal(high, i)
    # What never is below 1 is known not to be.
    return maximum(1, found)


def tiles(problem: Problem, config: TileConfig) -> Scalar:
    """Workgroups that ``config`` takes where none split k."""
    return ceil_div(problem.m, config.bm) * ceil_div(problem.n, config.bn) * problem.batch


def gemm_dispatches(
    b: Builder, problem: Problem, variant: Variant, factor: Factor | None = None
) -> list[DispatchSpec]:
    """One dispatch, or two where workgroups split k, for any number of rows that ``variant`` takes.
    ``factor``: what to read in place of ``problem.w``."""
    config = variant.config
    a = _operand("a", problem.a)
    params: dict[str, Number] = {"M": problem.m, "N": problem.n, "K": problem.k}
    if problem.batch != 1:
        params["BATCH"] = problem.batch
    reads: dict[str, Bindable] = {a.variable: a.bind}
    consts: dict[str, Any] = {"A": a.describe(params), "A_COLUMNS": _columns(problem.a)}
    label, read = problem.name, touched_bytes([problem.a])
    if factor is None:
        w = _operand("w", problem.w, not reads_along_k(problem))
        reads[w.variable] = w.bind
        consts |= {"W": w.describe(params), "W_COLUMNS": not reads_along_k(problem)}
        read += touched_bytes([problem.w])
    else:
        reads |= factor.reads
        params |= factor.params
        consts |= {"W_COLUMNS": False, **factor.consts}
        label += factor.label
        read += factor.bytes
    consts |= {
        "K_EDGE": problem.k % config.step != 0,
        "TX": config.tx,
        "TY": config.ty,
        "TM": config.tm,
        "TN": config.tn,
        "BK": config.bk,
        "SLICES": config.slices,
        "SLOTS": config.slots(),
        "SPLIT": variant.split,
    }
    name = f"{label}_gemm_{config.bm}x{config.bn}"
    common = {
        "workgroup": (config.lanes * config.slices,),
        "workgroup_bytes": config.workgroup_bytes,
        "flops": problem.flops,
    }
    done = touched_bytes([problem.out, *problem.epilogue.operands])
    if not variant.split:
        epilogue = describe_epilogue(problem, params, reads)
        vector = vector_out(problem)
        return [
            b.dispatch(
                "matmul/gemm.wgsl",
                name,
                reads=reads,
                writes={"out": bind_out(problem, vector)},
                params=params,
                consts={**consts, "OUT_VECTOR": vector, **epilogue},
                grid=linear_grid(tiles(problem, config)),
                bytes=read + done,
                **common,
            )
        ]
    splits = splits_of(problem)
    params["SPLITS"] = splits
    quads = -(-upper_bound(problem.n) // 4)
    rows = upper_bound(problem.m)
    highs = enumerate(_parts(problem), 1)
    most = max(parts * min(rows, high * config.bm) for high, parts in highs) * 4 * quads
    partial = b.empty((most,), DType.F32, "matmul_partial")
    written = 16 * splits * problem.m * quads
    no_epilogue = {
        "OUT_VECTOR": True,
        "EPILOGUE": "acc",
        "EPILOGUE_OPERANDS": [],
        "EPILOGUE_HELPER": "",
        "OUT_CODEC": "",
        "CODECS": {codec(tensor.dtype) for tensor in (problem.a, problem.w)},
        "PAIRS": False,
        "BATCHED": False,
    }
    first = b.dispatch(
        "matmul/gemm.wgsl",
        f"{name}_split",
        reads=reads,
        writes={"partial": Bind(partial, "vec4<f32>")},
        params=params,
        consts={**consts, **no_epilogue},
        grid=linear_grid(tiles(problem, config) * splits),
        bytes=read + written,
        **common,
    )
    return [
        first,
        sum_dispatch(b, problem, f"{label}_gemm_sum", Bind(partial, "vec4<f32>"), splits),
    ]


def sum_dispatch(
    b: Builder, problem: Problem, name: str, partial: Bind, splits: Scalar
) -> DispatchSpec:
    """The dispatch that adds up parts of k and finishes."""
    params: dict[str, Number] = {"M": problem.m, "N": problem.n, "SPLITS": splits}
    reads: dict[str, Bind] = {"partial": partial}
    epilogue = describe_epilogue(problem, params, reads)
    vector = vector_out(problem)
    threads = 64
    quads = ceil_div(problem.n, 4)
    return b.dispatch(
        "matmul/gemm_sum.wgsl",
        name,
        reads=reads,
        writes={"out": bind_out(problem, vector)},
        params=params,
        consts={"OUT_VECTOR": vector, **epilogue},
        grid=linear_grid(ceil_div(problem.m * quads, threads)),
        workgroup=(threads,),
        bytes=16 * splits * problem.m * quads
        + touched_bytes([problem.out, *problem.epilogue.operands]),
        flops=splits * problem.m * problem.n,
    )


def _columns(tensor: Any) -> bool:
    """Whether rows of ``tensor`` lie side by side, rather than steps of k."""
    strides = effective_strides(tensor)
    return strides[2] != 1 and strides[1] == 1


def _operand(variable: str, tensor: Any, columns: bool | None = None) -> Operand:
    along = 1 if (_columns(tensor) if columns is None else columns) else 2
    return Operand(variable, tensor, along if is_vector(tensor, along) else None)


def vector_out(problem: Problem) -> bool:
    """Whether ``out`` can be written four columns at a time."""
    whole = all(value % 4 == 0 for value in (problem.n, problem.out_n))
    return whole and problem.out.storage.size_bytes >= 16 and not problem.epilogue.pairs
