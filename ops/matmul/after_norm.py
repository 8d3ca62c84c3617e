"""A norm in front of a matrix product: in the kernel for one row, else a dispatch before it."""

from __future__ import annotations

from dataclasses import replace

from executorch_wgpu.ops.builder import Builder, DispatchSpec
from executorch_wgpu.ops.matmul.problem import Problem
from executorch_wgpu.ops.norm.rms_norm import norm_dispatch, rows_of
from executorch_wgpu.serialization.dispatch_list import DType


class AfterNorm:
    """A problem for kernels that norm ``a`` themselves, and for those that find it normed."""

    def __init__(self, b: Builder, problem: Problem) -> None:
        self._problem = self._plain = problem
        self._first: list[DispatchSpec] = []
        if problem.norm is not None:
            normed = b.empty(problem.a.shape, DType.F32, f"{problem.name}_normed")
            rows = rows_of(b, problem.a)
            self._first = [norm_dispatch(b, rows, problem.norm.weight, problem.norm.eps, normed)]
            self._plain = replace(problem, a=normed, norm=None)

    def of(self, norms: bool) -> tuple[list[DispatchSpec], Problem]:
        """What runs first, and the problem that is left."""
        return ([], self._problem) if norms else (self._first, self._plain)
