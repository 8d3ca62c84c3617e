"""The kernels for one row, a step of decode: the row in registers, many rows of ``w`` past it.

``gemv_one.wgsl`` serves dense weights that are read along k, 16 bytes at a load, and packed ones
with one scale a load; what it cannot take goes the way of a few rows. ``quant/gemv_digits.wgsl`` is
for packed ones too, over integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from executorch_wgpu.ops.builder import Bind, Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.halves import is_half
from executorch_wgpu.ops.matmul.problem import (
    Operand,
    Problem,
    bind_out,
    describe_epilogue,
    is_vector,
)
from executorch_wgpu.ops.symbolic import Scalar, ceil_div, upper_bound
from executorch_wgpu.ops.tensor import touched_bytes
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS


@dataclass(frozen=True)
class OneRowConfig:
    """``lanes`` (a power of two) share a row of ``w``, ``unroll`` loads of each at a time, and walk
    ``rows`` rows together; ``slices`` such groups make a workgroup."""

    lanes: int
    rows: int
    slices: int
    unroll: int

    @staticmethod
    def choose(units: int, n: int, quads: int, group: int = 1) -> OneRowConfig:
        """``units``: loads a row of w takes. ``n``: rows of w. ``quads``: vec4 of the other factor
        that meet a load. ``group``: rows of w that have to stay together."""
        if units < 64:
            # Rows too short for a workgroup: several share it.
            lanes = max(8, 1 << max(units - 1, 0).bit_length())
            return OneRowConfig(lanes, max(2, group), max(1, 64 // lanes), 1)
        # A load of many elements is few loads a row, and work on each: more lanes share it, and
        # more rows share what they hold. Where there are many rows, workgroups take more of them.
        lanes = min(1 << units.bit_length() - 1, 128 if quads <= 2 else 256)
        rows = (2 if quads <= 2 else 4) * (2 if n >= 8192 else 1)
        return OneRowConfig(lanes, rows, 1, min(4 if quads <= 2 else 1, units // lanes))

    @staticmethod
    def of_digits(units: int, n: int, quads: int, group: int = 1) -> OneRowConfig:
        """As :meth:`choose`, for products over digits: slices share the work of making them, as far
        as there is memory to share them in, and rows pay for it, as long as there are workgroups
        for a large GPU."""
        lanes = min(256, max(8, 1 << max(units - 1, 0).bit_length()))
        if units > lanes:
            # The one that leaves fewer lanes without a unit in the last round.
            lanes = min((256, 128), key=lambda lanes: -units % lanes)
        slices = 1 if units > lanes else min(4, 256 // lanes)
        # With the sums of four rows, and the squares.
        while slices > 1 and (
            _words_of_digits(lanes, slices, quads) + _words_of_sums(lanes, slices, 5) > _MOST_WORDS
        ):
            slices //= 2
        rows = 8
        while n < 128 * rows * slices and slices > 1:
            slices //= 2
        while n < 128 * rows * slices and rows > max(2, group):
            rows //= 2
        return OneRowConfig(lanes, max(rows, group), slices, 1)


#: Words of workgroup memory that every device has.
_MOST_WORDS = DEFAULT_LIMITS["max-compute-workgroup-storage-size"] // 4


def _words_of_sums(lanes: int, slices: int, sums: int) -> int:
    """Workgroup memory that ``one_row_sums.wgsl`` takes for so many sums at a time."""
    return slices * sums * (lanes + 8)


def _words_of_digits(lanes: int, slices: int, quads: int) -> int:
    """Workgroup memory by which slices share digits in ``gemv_digits.wgsl``."""
    return lanes * (4 * slices + 3 * quads) if slices > 1 else 0


def dense_unit(problem: Problem) -> int | None:
    """Elements of a load of a dense ``w``; None where the kernel does not apply."""
    if problem.batch != 1 or not isinstance(problem.k, int) or problem.k == 0:
        return None
    if not is_vector(problem.a, 2) or not is_vector(problem.w, 2):
        return None
    return 8 if is_half(problem.w.dtype) and is_vector(problem.w, 2, 8) else 4


def one_row_dispatch(
    b: Builder,
    problem: Problem,
    unit: int,
    name: str,
    reads: dict[str, Bind],
    params: dict[str, Number],
    packed: dict[str, Any] | None,
    config: OneRowConfig | None = None,
    bytes: Scalar | None = None,
    digits: bool = False,
) -> DispatchSpec:
    """One dispatch for one row (or none) of ``a``.

    Args:
        unit: elements of ``w`` that a load brings.
        name: of the dispatch.
        reads, params: bindings and parameters of a packed ``w``, filled up here; empty otherwise.
        packed: Q of quant/weights.wgsl, None for a dense ``w``.
        digits: over integers (``quant/gemv_digits.wgsl``), for a packed ``w``.
    """
    k = problem.k
    assert isinstance(k, int)
    units, quads = -(-k // unit), unit // 4
    n = upper_bound(problem.n)
    if config is None and digits:
        config = OneRowConfig.of_digits(units, n, quads, problem.group)
    config = config or OneRowConfig.choose(units, n, quads, problem.group)
    lanes, per_chunk = config.lanes, config.lanes * config.unroll
    chunks = -(-units // per_chunk)
    # Slices share the digits of one chunk, which a loop would overwrite.
    assert not digits or config.slices == 1 or chunks == 1, config
    params |= {"N": problem.n, "K": k, "UNITS": units}
    a = Operand("a", problem.a, 2)
    reads["a"] = a.bind
    consts: dict[str, Any] = {"A": a.describe(params), "Q": packed}
    consts |= {"NORM": False, "NORM_WEIGHT": None}
    if packed is None:
        w = Operand("w", problem.w, 2, width=8 if unit == 8 else 4)
        reads["w"] = w.bind
        consts["W"] = w.describe(params)
    if problem.norm is not None:
        params["NORM_EPS"] = float(problem.norm.eps)
        consts["NORM"] = True
        if problem.norm.weight is not None:
            weight = Operand("norm_weight", problem.norm.weight.expand((1, 1, k)), 2)
            reads["norm_weight"] = weight.bind
            consts["NORM_WEIGHT"] = weight.describe(params)
    epilogue = describe_epilogue(problem, params, reads)
    if problem.norm is not None and problem.norm.weight is not None:
        epilogue["CODECS"] = epilogue["CODECS"] | {consts["NORM_WEIGHT"]["codec"]}
    rows, squares = config.rows, problem.norm is not None
    shared = _words_of_digits(lanes, config.slices, quads) if digits else 0
    words = shared + _words_of_sums(lanes, config.slices, rows + squares)
    while rows > problem.group and words > _MOST_WORDS:
        rows //= 2
        words = shared + _words_of_sums(lanes, config.slices, rows + squares)
    if bytes is None:
        operands = [problem.a, problem.w, problem.out, *problem.epilogue.operands]
        bytes = touched_bytes(operands)
    return b.dispatch(
        "quant/gemv_digits.wgsl" if digits else "matmul/gemv_one.wgsl",
        name,
        reads=reads,
        writes={"out": bind_out(problem)},
        params=params,
        consts={
            **consts,
            "LANES": lanes,
            "R": config.rows,
            "SLICES": config.slices,
            "U": config.unroll,
            "XQ": quads,
            "UNIT": unit,
            "SPLIT": digits,
            "ROUND": rows,
            "CHUNKS": chunks,
            "UNIT_EDGE": units % per_chunk != 0,
            "K_EDGE": k % unit != 0,
            **epilogue,
        },
        grid=linear_grid(ceil_div(problem.n, config.rows * config.slices) * problem.m),
        workgroup=(lanes * config.slices,),
        workgroup_bytes=4 * words,
        bytes=bytes,
        flops=problem.flops,
    )


def dense_one_row(b: Builder, problem: Problem, unit: int) -> DispatchSpec:
    """:func:`one_row_dispatch` for a dense ``w``."""
    return one_row_dispatch(b, problem, unit, f"{problem.name}_gemv1", {}, {}, None)
