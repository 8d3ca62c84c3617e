"""Routes of a matmul: few rows or many, w whole or in pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from executorch_wgpu.ops.builder import Builder, DispatchSpec, RouteSpec
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.matmul import gemm_matrix
from executorch_wgpu.ops.matmul.after_norm import AfterNorm
from executorch_wgpu.ops.matmul.gemm import as_list, gemm_dispatches, variants
from executorch_wgpu.ops.matmul.gemv import gemv_dispatch, gemv_limits, reads_along_k
from executorch_wgpu.ops.matmul.one_row import dense_one_row, dense_unit
from executorch_wgpu.ops.matmul.pieces import row_pieces, whole_limits
from executorch_wgpu.ops.matmul.problem import MAX_BINDINGS, Epilogue, Norm, Problem, is_vector
from executorch_wgpu.ops.symbolic import Scalar, bounds, less_equal
from executorch_wgpu.ops.tensor import Tensor

_PLAIN = Epilogue()


@dataclass(frozen=True)
class _Choice:
    """A kernel and when it applies; ``make`` gives its dispatch or dispatches for the problem or,
    with ``pieces``, for one piece of it. ``norms``: it takes ``a`` before the problem's norm."""

    name: str
    guard: Scalar
    make: Callable[[Problem], DispatchSpec | list[DispatchSpec]]
    norms: bool = False
    pieces: bool = True
    features: tuple[str, ...] = ()


def emit_matmul(
    b: Builder,
    name: str,
    a: Tensor,
    w: Tensor,
    out: Tensor,
    epilogue: Epilogue = _PLAIN,
    norm: Norm | None = None,
) -> None:
    """Append a step: ``out[b, m, n] = epilogue(sum over k of a[b, m, k] * w[b, n, k])``.

    ``a`` [B, M, K] and ``w`` [B, N, K]: any strides, sizes may be live. ``out``: contiguous from
    offset 0, B * M * N elements, in a storage of its own. Each has a float dtype of its own; the
    arithmetic is f32. ``name`` opens the labels of the dispatches. With ``epilogue.pairs``: ``w``
    contiguous along k, B * M * N / 2 elements; raises ValueError for another ``w``.
    ``norm``: an RMS norm that ``a`` [1, M, K] goes through first, in the same dispatch where M
    is 1.
    """
    a, w = _fold_batch(a, w, epilogue)
    if reads_along_k(Problem(name, a, w, out)) and is_vector(w, 2) and not is_vector(a, 2):
        # A copy of the small factor, so that the large one can be read four elements at a time.
        a = materialize(b, a, f"{name}_rows")
    problem = Problem(name, a, w, out, epilogue, norm=norm)
    choices = _choices(b, problem)
    pieces = row_pieces(b, w, 1, problem.group)
    limits = () if pieces is None else whole_limits(w)
    after = AfterNorm(b, problem)
    routes = []
    for c in choices:
        first, whole = after.of(c.norms)
        made = as_list(c.make(whole))
        routes.append(RouteSpec(c.name, [*first, *made], c.guard, c.features, limits))
    for c in choices if pieces else ():
        if not c.pieces:
            continue
        first, whole = after.of(c.norms)
        parts = [d for piece in pieces or () for d in as_list(c.make(whole.of_piece(piece)))]
        routes.append(RouteSpec(f"{c.name}_pieces", [*first, *parts], c.guard, c.features))
    b.step(*routes)


def _choices(b: Builder, problem: Problem) -> list[_Choice]:
    """Every kernel for the problem, in order of preference; the last always applies."""
    found: list[_Choice] = []
    least, most = bounds(problem.m)
    unit = dense_unit(problem)
    if least <= 1 and unit is not None and problem.bindings <= MAX_BINDINGS:
        make = partial(dense_one_row, b, unit=unit)
        found.append(_Choice("one_row", less_equal(problem.m, 1), make, norms=True))
        if most <= 1:
            return found
    for limit, tile in gemv_limits(problem):
        if least > limit or (limit <= 1 and found):
            continue
        if most <= limit:
            # Tiles of one size, as few as there can be: 12 rows are two tiles of 6.
            count = max(1, -(-most // tile))
            tile = max(1, -(-most // count))
        guard = less_equal(problem.m, limit)
        make = partial(gemv_dispatch, b, m_tile=tile)
        found.append(_Choice(f"gemv{tile}", guard, make))
        if most <= limit:
            return found
    found += _matrix(b, problem)
    for variant in variants(problem):
        many = partial(gemm_dispatches, b, variant=variant)
        found.append(_Choice(variant.name, variant.guard, many, pieces=not variant.split))
    return found


def _matrix(b: Builder, problem: Problem) -> list[_Choice]:
    """The kernels for matrix units, where they are asked for and take the weight."""
    if not gemm_matrix.fits(b, problem, 1):
        return []
    weight = gemm_matrix.dense_weight(problem)
    if weight is None:
        return []

    choices = []
    for variant in gemm_matrix.matrix_variants(b.matrix_units, problem):
        make = partial(gemm_matrix.matrix_dispatches, b, weight=weight, variant=variant)
        features = gemm_matrix.FEATURES
        choices.append(_Choice(variant.name, variant.guard, make, pieces=False, features=features))
    return choices


def _fold_batch(a: Tensor, w: Tensor, epilogue: Epilogue) -> tuple[Tensor, Tensor]:
    """One larger matrix in place of a batch of them that all meet the same ``w``."""
    if a.shape[0] == 1 or w.strides[0] != 0 or epilogue.operands:
        return a, w
    flat = a.try_view((1, a.shape[0] * a.shape[1], a.shape[2]))
    return (a, w) if flat is None else (flat, w.slice(0, 0, 1))
