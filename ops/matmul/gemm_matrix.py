"""Products of many rows by matrix units, where a device has them and the export asks for it.

Matrix units multiply f16 and add up in f32. Two ways to use them (``Builder.matrix_units``):

* ``precise``: each factor is written as one or two f16 numbers whose sum it is to 22 bits, and the
  products of these parts are added up: three for f32 and packed weights, two for f16 and bf16
  weights, which are f16 numbers already. Results are as near as f32's own.
* ``fast``: each factor is rounded to one f16 number, with 11 bits.

Rows of ``a`` are brought to f16's range by a power of two each, the weight by one for all of it, so
that nothing overflows and nothing of weight is lost below f16's smallest number. A dispatch before
the product (matrix_rows.wgsl) makes the parts of ``a``: once, not in each workgroup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from executorch_wgpu.ops.builder import Bind, Bindable, Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.halves import codec
from executorch_wgpu.ops.joined import JoinedRows
from executorch_wgpu.ops.matmul.gemm import sum_dispatch, vector_out
from executorch_wgpu.ops.matmul.problem import (
    MAX_BINDINGS,
    Operand,
    Problem,
    bind_out,
    describe_epilogue,
    is_vector,
)
from executorch_wgpu.ops.symbolic import Scalar, ceil_div, less_equal, maximum, upper_bound
from executorch_wgpu.ops.tensor import Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType
from executorch_wgpu.serialization.limits import MATRIX_UNITS

#: What a route of these kernels requires of the device.
FEATURES = (MATRIX_UNITS, "shader-f16", "subgroups")
EXTENSIONS = ("chromium_experimental_subgroup_matrix", "f16", "subgroups")

#: How results are to be: see the module's docstring.
MODES = ("precise", "fast")

#: From so many rows on.
LEAST_ROWS = 33

#: The exponent that the largest element of a factor is brought to, at the most.
_TOP = 14


@dataclass(frozen=True)
class MatrixConfig:
    """A workgroup's ``bm`` x ``bn`` of the result, a subgroup's ``sm`` x ``sn`` (multiples of 16),
    ``bk`` of k at a time (a multiple of 16). ``direct``: subgroups read ``a`` from its buffer, not
    by way of workgroup memory. ``at_a_time``: workgroups that a device is given at the least."""

    bm: int
    bn: int
    sm: int
    sn: int
    bk: int
    direct: bool = False
    at_a_time: int = 132

    @property
    def lanes(self) -> int:
        return 32 * (self.bm // self.sm) * (self.bn // self.sn)

    def words(self, bits: int) -> int:
        """Words of packed codes to a load: four where that leaves no lane without."""
        return 4 if self.bn * self.bk * bits >= 128 * self.lanes else 2

    def workgroup_bytes(self, a_parts: int, w_parts: int) -> int:
        rows = w_parts * self.bn + (0 if self.direct else a_parts * self.bm)
        return 16 * rows * (self.bk // 8 + 1)


#: For results one tile high, and higher ones. An H200 has 132 cores; of the second of "precise"
#: each has two at work.
TILES = {
    "precise": (
        MatrixConfig(bm=128, bn=128, sm=64, sn=32, bk=32),
        MatrixConfig(bm=128, bn=128, sm=64, sn=64, bk=32, direct=True, at_a_time=264),
    ),
    "fast": (MatrixConfig(bm=128, bn=128, sm=64, sn=32, bk=64),) * 2,
}
#: What k has to be a multiple of, and the most of it.
K_STEP = 64
MOST_K = 32768

MAX_SPLITS = 8
#: The least of k that a workgroup is given.
LEAST_K = 256


@dataclass(frozen=True)
class MatrixWeight:
    """What the kernel reads of ``w``. ``kind``: as gemm_matrix.wgsl's KIND. ``parts``: f16 numbers
    whose sum an element is, to 22 bits, where all are taken. ``exponent``: of the power of two that
    all of it is multiplied by. ``params``, ``consts``: of its format. ``label``: as Factor's.
    ``in_halves``: codes of 4 bits with f16 scales, on which f16's own arithmetic is exact."""

    kind: str
    parts: int
    exponent: int
    reads: Mapping[str, Bindable]
    params: Mapping[str, Number]
    consts: Mapping[str, Any]
    label: str
    bytes: Scalar
    in_halves: bool = False


def fits(b: Builder, problem: Problem, bindings: int) -> bool:
    """Whether matrix units are asked for and take the problem, whose weight takes ``bindings``."""
    sizes = (problem.batch, problem.n, problem.k)
    known = all(isinstance(size, int) and size > 0 for size in sizes) and problem.batch == 1
    return bool(
        b.matrix_units
        and known
        and upper_bound(problem.m) >= LEAST_ROWS
        and problem.k % K_STEP == 0
        and problem.k <= MOST_K
        and problem.piece_of is None
        and is_vector(problem.a, 2)
        and 3 + bindings + len(problem.epilogue.operands) <= MAX_BINDINGS
    )


@dataclass(frozen=True)
class MatrixVariant:
    """A way to compute a product of many rows, and when it is the best. With ``split``, workgroups
    split k and a third dispatch adds up."""

    name: str
    guard: Scalar
    config: MatrixConfig
    split: bool = False


def matrix_variants(mode: str, problem: Problem) -> list[MatrixVariant]:
    """In order of preference, of a problem that :func:`fits`."""
    low, high = TILES[mode]
    cases: list[tuple[str, Scalar, MatrixConfig]] = [
        ("matrix", less_equal(LEAST_ROWS, problem.m), high)
    ]
    if low != high:
        flat = less_equal(LEAST_ROWS, problem.m) * less_equal(problem.m, low.bm)
        cases.insert(0, ("matrix_flat", flat, low))
    found = []
    for name, guard, config in cases:
        splits = splits_of(problem, config)
        if not isinstance(splits, int) or splits > 1:
            split = guard * less_equal(2, splits)
            found.append(MatrixVariant(f"{name}_split", split, config, split=True))
        found.append(MatrixVariant(name, guard, config))
    # What can never be is not made, nor what comes after what always is.
    found = [variant for variant in found if upper_bound(variant.guard) > 0]
    always = [i for i, variant in enumerate(found) if isinstance(variant.guard, int)]
    return found[: always[0] + 1] if always else found


def largest(tensor: Tensor | None) -> float | None:
    """The largest size of an element of a constant; None where it is none, or not finite."""
    data = None if tensor is None else tensor.storage.data
    if data is None:
        return None
    parts = data.parts if isinstance(data, JoinedRows) else [data]
    most = max((float(part.abs().max()) for part in parts if part.numel()), default=0.0)
    return most if math.isfinite(most) else None


def exponent_of(most: float) -> int:
    """Of the power of two that brings ``most`` to between 2^14 and 2^15, within what f32 holds
    both ways."""
    return max(-100, min(100, _TOP - (math.frexp(most)[1] - 1))) if most > 0 else 0


def dense_weight(problem: Problem) -> MatrixWeight | None:
    """``problem.w`` where it is a constant of finite numbers that lies along k, else None."""
    w = problem.w
    if w.dtype not in (DType.F32, DType.F16, DType.BF16):
        return None
    width = 4 if w.dtype is DType.F32 else 8
    most = largest(w)
    if most is None or not is_vector(w, 2, width):
        return None
    operand = Operand("w", w, 2, width=width)
    params: dict[str, Number] = {}
    described = operand.describe(params)
    kind = w.dtype.name.lower()
    exponent = 0 if kind == "f16" else exponent_of(most)
    return MatrixWeight(
        kind,
        2 if kind == "f32" else 1,
        exponent,
        {"w": operand.bind},
        {**params, **({} if kind == "f16" else {"W_SCALE": 2.0**exponent})},
        {"W": described},
        "",
        touched_bytes([w]),
    )


def products(mode: str, w_parts: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Parts of a and of w, and the pairs of them that are multiplied, small ones first."""
    if mode == "fast":
        return 1, 1, [(0, 0)]
    return 2, w_parts, [(1, 0), (0, 0)] if w_parts == 1 else [(0, 1), (1, 0), (0, 0)]


def _parts(problem: Problem, config: MatrixConfig) -> list[int]:
    """Parts of k where the result is 1, 2, 3 ... tiles high, for ``at_a_time`` workgroups."""
    wide = -(-upper_bound(problem.n) // config.bn)
    most = max(1, min(MAX_SPLITS, upper_bound(problem.k) // LEAST_K))
    heights = range(1, 1 - (-upper_bound(problem.m) // config.bm))
    return [max(1, min(most, config.at_a_time // (high * wide))) for high in heights] or [1]


def splits_of(problem: Problem, config: MatrixConfig) -> Scalar:
    """Parts of k, so that results of few tiles keep the device busy, too."""
    parts = _parts(problem, config)
    high = ceil_div(problem.m, config.bm)
    found: Scalar = parts[-1]
    for i, (here, above) in enumerate(pairwise(parts), 1):
        if here != above:
            found = found + (here - above) * less_equal(high, i)
    # What never is below 1 is known not to be.
    return maximum(1, found)


def matrix_dispatches(
    b: Builder,
    problem: Problem,
    weight: MatrixWeight,
    variant: MatrixVariant,
) -> list[DispatchSpec]:
    """The parts of ``a``, the product and, where workgroups split k, the sum."""
    config = variant.config
    a_parts, w_parts, pairs = products(b.matrix_units, weight.parts)
    m, k = problem.m, problem.k
    assert isinstance(k, int)
    rows = ceil_div(m, 16) * 16 if config.direct else m
    a_rows = b.empty((a_parts, rows, k), DType.F16, f"{problem.name}_parts")
    scales = b.empty((m,), DType.F32, f"{problem.name}_row_scales")
    bound = Bind(a_rows, "vec4<u32>")
    label = f"{problem.name}{weight.label}"
    first = _rows(
        b,
        problem,
        f"{label}_matrix_rows",
        bound,
        scales,
        {"PARTS": a_parts, "SWAPPED": weight.in_halves, "BLOCKS": config.direct},
    )
    params: dict[str, Number] = {
        "M": m,
        "N": problem.n,
        "K": k,
        "W_BACK": 2.0**-weight.exponent,
        **weight.params,
    }
    reads: dict[str, Bindable] = {"a_parts": bound, "row_scales": scales, **weight.reads}
    consts: dict[str, Any] = {
        "BM": config.bm,
        "BN": config.bn,
        "SM": config.sm,
        "SN": config.sn,
        "BK": config.bk,
        "A_PARTS": a_parts,
        "W_PARTS": w_parts,
        "PRODUCTS": pairs,
        "KIND": weight.kind,
        "DIRECT": config.direct,
        "IN_HALVES": weight.in_halves,
        "C": 0,
        "Q": None,
        "W": None,
        **weight.consts,
    }
    name = f"{label}_matrix_{config.bm}x{config.bn}"
    tiles = ceil_div(m, config.bm) * ceil_div(problem.n, config.bn)
    common: dict[str, Any] = {
        "workgroup": (config.lanes,),
        "workgroup_bytes": config.workgroup_bytes(a_parts, w_parts),
        "flops": problem.flops,
        "extensions": EXTENSIONS,
    }
    read = touched_bytes([a_rows, scales]) + weight.bytes
    done = touched_bytes([problem.out, *problem.epilogue.operands])
    if not variant.split:
        epilogue = describe_epilogue(problem, params, reads)
        vector = vector_out(problem)
        product = b.dispatch(
            "matmul/gemm_matrix.wgsl",
            name,
            reads=reads,
            writes={"out": bind_out(problem, vector)},
            params=params,
            consts={**consts, "SPLIT": False, "OUT_VECTOR": vector, **epilogue},
            grid=linear_grid(tiles),
            bytes=read + done,
            **common,
        )
        return [first, product]
    splits = splits_of(problem, config)
    quads = -(-upper_bound(problem.n) // 4)
    rows = upper_bound(m)
    most = max(
        parts * min(rows, high * config.bm) for high, parts in enumerate(_parts(problem, config), 1)
    )
    partial = b.empty((most * 4 * quads,), DType.F32, "matmul_partial")
    bound_sums = Bind(partial, "vec4<f32>")
    product = b.dispatch(
        "matmul/gemm_matrix.wgsl",
        f"{name}_split",
        reads=reads,
        writes={"partial": bound_sums},
        params={**params, "SPLITS": splits},
        consts={
            **consts,
            "SPLIT": True,
            "OUT_VECTOR": True,
            "EPILOGUE": "acc",
            "EPILOGUE_OPERANDS": [],
            "EPILOGUE_HELPER": "",
            "OUT_CODEC": "",
            "CODECS": {weight.kind} & {"bf16"},
            "PAIRS": False,
            "BATCHED": False,
        },
        grid=linear_grid(tiles * splits),
        bytes=read + 16 * splits * m * quads,
        **common,
    )
    return [first, product, sum_dispatch(b, problem, f"{label}_matrix_sum", bound_sums, splits)]


def _rows(
    b: Builder, problem: Problem, name: str, parts: Bind, scales: Tensor, layout: Mapping[str, Any]
) -> DispatchSpec:
    """The dispatch that makes the parts of ``a``."""
    k = problem.k
    assert isinstance(k, int)
    lanes = 256
    a = Operand("a", problem.a, 2)
    params: dict[str, Number] = {"M": problem.m, "K": k}
    described = a.describe(params)
    return b.dispatch(
        "matmul/matrix_rows.wgsl",
        name,
        reads={a.variable: a.bind},
        writes={"a_parts": parts, "row_scales": scales},
        params=params,
        consts={
            "A": described,
            **layout,
            "UNITS": -(-k // (8 * lanes)),
            "CODECS": {codec(problem.a.dtype)},
        },
        grid=linear_grid(problem.m),
        workgroup=(lanes,),
        workgroup_bytes=4,
        extensions=("subgroups",),
    )
