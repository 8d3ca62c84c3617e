"""Routes of a matmul: few rows or many, with subgroups or without, w whole or in pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from executorch_wgpu.ops.builder import Builder, DispatchSpec, RouteSpec
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.matmul.gemm import ENOUGH_GROUPS, LARGE, SMALL, gemm_dispatch, tiles
from executorch_wgpu.ops.matmul.gemv import gemv_dispatch, gemv_features, reads_along_k
from executorch_wgpu.ops.matmul.pieces import row_pieces, whole_limits
from executorch_wgpu.ops.matmul.problem import Epilogue, Problem, is_vector
from executorch_wgpu.ops.symbolic import Scalar, bounds, less_equal
from executorch_wgpu.ops.tensor import Tensor

#: Up to this many rows go through the kernels that read w once.
GEMV_ROWS = 4

_PLAIN = Epilogue()


@dataclass(frozen=True)
class _Choice:
    """A kernel, when it applies and what it needs; ``make`` gives its dispatch for the problem
    or for one piece of it."""

    name: str
    guard: Scalar
    features: tuple[str, ...]
    make: Callable[[Problem], DispatchSpec]


def emit_matmul(
    b: Builder, name: str, a: Tensor, w: Tensor, out: Tensor, epilogue: Epilogue = _PLAIN
) -> None:
    """Append a step: ``out[b, m, n] = epilogue(sum over k of a[b, m, k] * w[b, n, k])``.

    ``a`` [B, M, K] and ``w`` [B, N, K]: f32, any strides, sizes may be live. ``out``: f32,
    contiguous from offset 0, B * M * N elements, in a storage of its own. ``name`` opens the
    labels of the dispatches.
    """
    a, w = _fold_batch(a, w, epilogue)
    if reads_along_k(Problem(name, a, w, out)) and is_vector(w, 2) and not is_vector(a, 2):
        # A copy of the small factor, so that the large one can be read four elements at a time.
        a = materialize(b, a, f"{name}_rows")
    problem = Problem(name, a, w, out, epilogue)
    choices = _choices(b, problem)
    pieces = row_pieces(w, 1)
    routes = []
    if pieces is None:
        routes = [RouteSpec(c.name, [c.make(problem)], c.guard, c.features) for c in choices]
    else:
        whole = whole_limits(w)
        for c in choices:
            routes.append(RouteSpec(c.name, [c.make(problem)], c.guard, c.features, whole))
        for c in choices:
            parts = [c.make(problem.of_piece(piece)) for piece in pieces]
            routes.append(RouteSpec(f"{c.name}_pieces", parts, c.guard, c.features))
    b.step(*routes)


def _choices(b: Builder, problem: Problem) -> list[_Choice]:
    """Every kernel for the problem, in order of preference; the last always applies."""
    found: list[_Choice] = []
    least, most = bounds(problem.m)
    for limit in (1, GEMV_ROWS):
        if least > limit or (limit > 1 and most <= 1):
            continue
        guard = less_equal(problem.m, limit)
        tile = max(1, min(limit, most))
        for feature in gemv_features(problem, tile):
            make = partial(gemv_dispatch, b, m_tile=tile, feature=feature)
            label = f"gemv{tile}_{feature}" if feature else f"gemv{tile}"
            found.append(_Choice(label, guard, (feature,) if feature else (), make))
    if most > GEMV_ROWS:
        enough = less_equal(ENOUGH_GROUPS, tiles(problem, LARGE))
        for label, guard, config in (("gemm_large", enough, LARGE), ("gemm_small", 1, SMALL)):
            found.append(_Choice(label, guard, (), partial(gemm_dispatch, b, config=config)))
    return found


def _fold_batch(a: Tensor, w: Tensor, epilogue: Epilogue) -> tuple[Tensor, Tensor]:
    """One larger matrix in place of a batch of them that all meet the same ``w``."""
    if a.shape[0] == 1 or w.strides[0] != 0 or epilogue.operands:
        return a, w
    flat = a.try_view((1, a.shape[0] * a.shape[1], a.shape[2]))
    return (a, w) if flat is None else (flat, w.slice(0, 0, 1))
