"""The products with a packed weight: which kernel for how many rows, and its dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from executorch_wgpu.ops.builder import Builder, DispatchSpec, Number, RouteSpec, linear_grid
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.matmul import gemm_matrix
from executorch_wgpu.ops.matmul.after_norm import AfterNorm
from executorch_wgpu.ops.matmul.gemm import Factor, Variant, as_list, gemm_dispatches, variants
from executorch_wgpu.ops.matmul.gemm_matrix import (
    MatrixVariant,
    MatrixWeight,
    matrix_dispatches,
)
from executorch_wgpu.ops.matmul.one_row import one_row_dispatch
from executorch_wgpu.ops.matmul.pieces import whole_limits
from executorch_wgpu.ops.matmul.problem import (
    MAX_BINDINGS,
    Epilogue,
    Norm,
    Operand,
    Problem,
    bind_out,
    describe_epilogue,
    effective_strides,
    is_vector,
)
from executorch_wgpu.ops.quant.weights import QuantWeight
from executorch_wgpu.ops.symbolic import Scalar, bounds, ceil_div, less_equal
from executorch_wgpu.ops.tensor import Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType
from executorch_wgpu.serialization.limits import INTEGER_DOT

_PLAIN = Epilogue()

#: (rows, rows at a time) of the kernel that reads the weight once for each tile of rows.
_GEMV_LIMITS = ((1, 1), (4, 4), (16, 4))

#: Words that the kernel for one row loads at once.
_UNIT = 4

#: Elements of a row that make digits worth their while. Fewer are little work, and may be so uneven
#: that floats keep more (see gemv_digits.wgsl).
_LEAST_DIGITS = 64

_ELEMENTS = {1: "u32", 2: "vec2<u32>", 4: "vec4<u32>"}


@dataclass(frozen=True)
class RowsConfig:
    """How ``gemv.wgsl`` and ``integer.wgsl`` divide the work: ``lanes`` (a power of two, 8 to 128)
    walk ``rows`` rows together, ``words`` at a load; ``slices`` such groups make a workgroup."""

    lanes: int
    rows: int
    slices: int
    words: int

    @staticmethod
    def choose(words: int, n: int, m_tile: int, group: int = 1) -> RowsConfig:
        """``words``: of a row. ``n``: rows. ``m_tile``: rows of the other factor. ``group``: rows
        that have to stay together."""
        width = 2 if words >= 128 else 1
        loads = words // width
        if loads < 64:
            lanes = max(8, 1 << max(loads - 1, 0).bit_length())
            return RowsConfig(lanes, group, max(1, 64 // lanes), width)
        rows = 2 if m_tile <= 4 and n >= 2048 else 1
        return RowsConfig(64 if loads < 256 else 128, max(rows, group), 1, width)


@dataclass(frozen=True)
class _Rows:
    """A problem: ``problem.w`` stands for the weight's rows, one element each."""

    problem: Problem
    weight: QuantWeight


@dataclass(frozen=True)
class _Choice:
    """A kernel, when it applies and what makes its dispatch or dispatches, with ``pieces`` for a
    piece of the weight too. ``norms``: it takes ``a`` before the problem's norm. ``features``: that
    the device has to have."""

    name: str
    guard: Scalar
    make: Callable[[_Rows], DispatchSpec | list[DispatchSpec]]
    norms: bool = False
    pieces: bool = True
    features: tuple[str, ...] = ()


def emit_product(
    b: Builder,
    name: str,
    a: Tensor,
    weight: QuantWeight,
    out: Tensor,
    epilogue: Epilogue = _PLAIN,
    norm: Norm | None = None,
) -> None:
    """Append a step: ``out[m, n] = epilogue(sum over k of a[m, k] * weight[n, k])``, ``a`` after
    ``norm`` where there is one.

    ``a`` [1, M, K] and ``out``: any float dtype; ``out`` contiguous from offset 0, in a storage of
    its own. ``epilogue.pairs`` as of ``emit_matmul``.
    """
    if effective_strides(a)[2] not in (0, 1) or (weight.k % 4 == 0 and not is_vector(a, 2)):
        a = materialize(b, a, f"{name}_rows")
    least, most = bounds(a.shape[1])
    choices: list[_Choice] = []
    problem = Problem(name, a, _rows_of(weight), out, epilogue, norm=norm)
    whole = _Rows(problem, weight)
    if least <= 1 and _fits_one_row(whole):
        guard = less_equal(a.shape[1], 1)
        if weight.k >= _LEAST_DIGITS:
            digits = partial(_one_row, b, digits=True)
            choices.append(_Choice("digits", guard, digits, norms=True, features=(INTEGER_DOT,)))
        choices.append(_Choice("one_row", guard, partial(_one_row, b), norms=True))
    for limit, tile in _GEMV_LIMITS:
        if least > limit or (limit <= 1 and choices):
            continue
        if most <= 1 and choices:
            break
        if most <= limit:
            tile = -(-most // max(1, -(-most // tile)))
        guard = less_equal(a.shape[1], limit)
        choices.append(_Choice(f"gemv{tile}", guard, partial(_gemv, b, m_tile=max(1, tile))))
        if most <= limit:
            break
    if most > _GEMV_LIMITS[-1][0]:
        choices += _matrix(b, whole)
        for variant in variants(problem):
            many = partial(_gemm, b, variant=variant)
            choices.append(_Choice(variant.name, variant.guard, many, pieces=not variant.split))
    _emit_routes(b, whole, choices)


def _emit_routes(b: Builder, whole: _Rows, choices: Sequence[_Choice]) -> None:
    """A step of these kernels, each with the weight bound whole and, where it is too large for
    that, in pieces."""
    weight = whole.weight
    pieces = weight.pieces(b, whole.problem.group)
    limits = () if pieces is None else whole_limits(weight.packed)
    after = AfterNorm(b, whole.problem)
    routes = []
    for c in choices:
        first, problem = after.of(c.norms)
        made = as_list(c.make(_Rows(problem, weight)))
        routes.append(RouteSpec(c.name, [*first, *made], c.guard, c.features, limits))
    for c in choices if pieces else ():
        if not c.pieces:
            continue
        first, problem = after.of(c.norms)
        parts: list[DispatchSpec] = []
        for piece in pieces or ():
            part = weight.of_piece(piece)
            rows = _rows_of(part)
            of_piece = replace(problem, w=rows, first=piece.first, piece_of=problem.w)
            parts += as_list(c.make(_Rows(of_piece, part)))
        routes.append(RouteSpec(f"{c.name}_pieces", [*first, *parts], c.guard, c.features))
    b.step(*routes)


def _rows_of(weight: QuantWeight) -> Tensor:
    """The weight as kernels address it: [1, N, K], row n at n."""
    return weight.packed.with_layout((1, weight.n, weight.k), (0, 1, 0), 0)


def _fits_one_row(rows: _Rows) -> bool:
    problem, weight = rows.problem, rows.weight
    if not is_vector(problem.a, 2) or weight.k % 4:
        return False
    return weight.granularity(_UNIT * 32 // weight.bits) == "unit" and (
        problem.bindings + len(weight.reads()) - 1 <= MAX_BINDINGS
    )


def _one_row(b: Builder, rows: _Rows, digits: bool = False) -> DispatchSpec:
    problem, weight = rows.problem, rows.weight
    params: dict[str, Number] = {}
    described = weight.describe(params)
    return one_row_dispatch(
        b,
        problem,
        _UNIT * 32 // weight.bits,
        f"{problem.name}_{weight.kind}_{'digits' if digits else 'gemv1'}",
        weight.reads(_ELEMENTS[_UNIT]),
        params,
        described,
        bytes=weight.bytes + touched_bytes([problem.a, problem.out, *problem.epilogue.operands]),
        digits=digits,
    )


def _gemv(b: Builder, rows: _Rows, m_tile: int) -> DispatchSpec:
    problem, weight = rows.problem, rows.weight
    config = RowsConfig.choose(weight.words, weight.n, m_tile, problem.group)
    a = Operand("a", problem.a, 2 if is_vector(problem.a, 2) else None)
    unit = config.words * 32 // weight.bits
    count = ceil_div(problem.m, m_tile)
    params: dict[str, Number] = {
        "M": problem.m,
        "N": problem.n,
        "K": weight.k,
        "UNITS": -(-weight.k // unit),
    }
    reads = {**weight.reads(_ELEMENTS[config.words]), "a": a.bind}
    described, quant = a.describe(params), weight.describe(params)
    epilogue = describe_epilogue(problem, params, reads)
    workgroup = config.lanes * config.slices
    return b.dispatch(
        "quant/gemv.wgsl",
        f"{problem.name}_{weight.kind}_gemv{m_tile}",
        reads=reads,
        writes={"out": bind_out(problem)},
        params=params,
        consts={
            "A": described,
            "Q": quant,
            "M_TILE": m_tile,
            "TILED": count != 1,
            "LANES": config.lanes,
            "R": config.rows,
            "SLICES": config.slices,
            "U": config.words,
            "EDGE": weight.k % unit != 0,
            "PER": weight.granularity(unit),
            **epilogue,
        },
        grid=linear_grid(ceil_div(problem.n, config.rows * config.slices) * count),
        workgroup=(workgroup,),
        workgroup_bytes=4 * workgroup * m_tile * config.rows,
        bytes=weight.bytes + touched_bytes([problem.a, problem.out, *problem.epilogue.operands]),
        flops=problem.flops,
    )


def _gemm(b: Builder, rows: _Rows, variant: Variant) -> list[DispatchSpec]:
    problem, weight = rows.problem, rows.weight
    params: dict[str, Number] = {}
    w = {"name": "", "at": "", "strides": [None, "", None], "vector": False, "quad": "weight_quad"}
    consts = {"W": w, "Q": weight.describe(params)}
    factor = Factor(weight.reads(), params, consts, f"_{weight.kind}", weight.bytes)
    return gemm_dispatches(b, problem, variant, factor)


def _matrix(b: Builder, rows: _Rows) -> list[_Choice]:
    """The kernels for matrix units, where they are asked for and take the weight."""
    problem, weight = rows.problem, rows.weight
    if not gemm_matrix.fits(b, problem, len(weight.reads())):
        return []
    scale, offset = gemm_matrix.largest(weight.scales), 0.0
    if weight.zeros_kind == "offsets":
        offset = gemm_matrix.largest(weight.zeros)
    if scale is None or offset is None:
        return []
    exponent = gemm_matrix.exponent_of(scale * (1 << weight.bits) + offset)
    choices = []
    for variant in gemm_matrix.matrix_variants(b.matrix_units, problem):
        words = variant.config.words(weight.bits)
        if weight.granularity(words * 32 // weight.bits) != "unit":
            return []
        factor = _matrix_weight(weight, words, exponent)

        def make(
            rows: _Rows, factor: MatrixWeight = factor, variant: MatrixVariant = variant
        ) -> list[DispatchSpec]:
            return matrix_dispatches(b, rows.problem, factor, variant)

        features = gemm_matrix.FEATURES
        choices.append(_Choice(variant.name, variant.guard, make, pieces=False, features=features))
    return choices


def _matrix_weight(weight: QuantWeight, words: int, exponent: int) -> MatrixWeight:
    """A packed weight for matrix units: ``words`` to a load."""
    params: dict[str, Number] = {}
    described = weight.describe(params)
    in_halves = (
        weight.bits == 4 and weight.zeros_kind != "offsets" and weight.scales.dtype is DType.F16
    )
    # Otherwise a code is a float's mantissa bits, as in weights.wgsl.
    params["W_SCALE"] = 2.0**exponent * (1 if in_halves else 1 << weight.bits)
    if weight.zeros_kind == "offsets":
        params["W_UNIT"] = 2.0**exponent
    return MatrixWeight(
        kind="codes",
        parts=2,
        exponent=exponent,
        reads=weight.reads(_ELEMENTS[words]),
        params=params,
        consts={"Q": described, "C": words},
        label=f"_{weight.kind}",
        bytes=weight.bytes,
        in_halves=in_halves,
    )


# -- 8-bit activations ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Activations:
    """int8 [1, M, K] contiguous: ``scale * (values - zero)``. ``scales`` and ``zeros``: one for
    all (a number, or a tensor of one element) or one a row (tensors of M elements)."""

    values: Tensor
    scales: Tensor | float
    zeros: Tensor | int


def emit_integer_product(
    b: Builder,
    name: str,
    x: Activations,
    weight: QuantWeight,
    out: Tensor,
    epilogue: Epilogue = _PLAIN,
) -> None:
    """As :func:`emit_product`, over integers: within a group the sum of
    ``(values - zero) * (codes - zero)`` is an exact int32."""
    problem = Problem(name, x.values, _rows_of(weight), out, epilogue)
    least, most = bounds(problem.m)
    choices: list[_Choice] = []
    if least <= 1:
        make = partial(_integer, b, x, m_tile=1)
        choices.append(_Choice("integer1", less_equal(problem.m, 1), make))
    if most > 1:
        choices.append(_Choice("integer8", 1, partial(_integer, b, x, m_tile=min(8, most))))
    _emit_routes(b, _Rows(problem, weight), choices)


def _integer(b: Builder, x: Activations, rows: _Rows, m_tile: int) -> DispatchSpec:
    problem, weight = rows.problem, rows.weight
    config = RowsConfig.choose(weight.words, weight.n, m_tile, problem.group)
    unit = config.words * 32 // weight.bits
    count = ceil_div(problem.m, m_tile)
    params: dict[str, Number] = {
        "M": problem.m,
        "N": problem.n,
        "K": weight.k,
        "UNITS": -(-weight.k // unit),
    }
    reads = {**weight.reads(_ELEMENTS[config.words]), "a": x.values}
    for key, value in (("x_scales", x.scales), ("x_zeros", x.zeros)):
        if isinstance(value, Tensor):
            reads[key] = value
        else:
            params[key.upper()] = value if isinstance(value, int) else float(value)
    quant = weight.describe(params)
    epilogue = describe_epilogue(problem, params, reads)
    workgroup = config.lanes * config.slices
    return b.dispatch(
        "quant/integer.wgsl",
        f"{problem.name}_a8{weight.kind}_{m_tile}",
        reads=reads,
        writes={"out": bind_out(problem)},
        params=params,
        consts={
            "Q": quant,
            "M_TILE": m_tile,
            "TILED": count != 1,
            "LANES": config.lanes,
            "R": config.rows,
            "SLICES": config.slices,
            "U": config.words,
            "PER": weight.granularity(unit),
            "WHOLE_WORDS": weight.k % 4 == 0,
            "X_SCALE": _kind(x.scales),
            "X_ZERO": _kind(x.zeros),
            "ZERO_DTYPE": x.zeros.dtype.name if isinstance(x.zeros, Tensor) else "",
            **epilogue,
        },
        grid=linear_grid(ceil_div(problem.n, config.rows * config.slices) * count),
        workgroup=(workgroup,),
        workgroup_bytes=4 * workgroup * m_tile * config.rows,
        bytes=weight.bytes + touched_bytes([problem.a, problem.out, *problem.epilogue.operands]),
        flops=problem.flops,
    )


def _kind(value: Tensor | float) -> str:
    """ "number", "one" (a tensor of one element) or "rows"."""
    if not isinstance(value, Tensor):
        return "number"
    return "one" if value.numel == 1 else "rows"


__all__ = ["Activations", "RowsConfig", "emit_integer_product", "emit_product"]
