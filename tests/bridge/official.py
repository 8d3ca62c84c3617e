"""Lowers small modules and runs them in ExecuTorch's own runtime, against eager."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime

from executorch_wgpu.backend import CompileOptions, WgpuPartitioner

import exports

#: cumsum stands for an operator that we do not have, whatever is added later; and everything that
#: can be delegated is.
SPLIT = CompileOptions(call_cost_us=0, operator_blocklist=["aten.cumsum.default"])


def lower(
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    dynamic_shapes: Any = None,
    partitioner: Sequence[Any] | None = None,
) -> Any:
    program = exports.export(module, inputs, dynamic_shapes)
    return to_edge_transform_and_lower(
        program,
        partitioner=[WgpuPartitioner(SPLIT)] if partitioner is None else list(partitioner),
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )


def load(lowered: Any, config: ExecutorchBackendConfig | None = None) -> Any:
    """Method ``forward`` in ExecuTorch's runtime."""
    program = lowered.to_executorch(config)
    return Runtime.get().load_program(bytes(program.buffer)).load_method("forward")


def flat(outputs: Any) -> list[Any]:
    return torch.utils._pytree.tree_flatten(outputs)[0]


def compare(got: Sequence[Any], want: Sequence[Any]) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        if isinstance(w, torch.Tensor):
            assert g.dtype == w.dtype and g.shape == w.shape, (g.dtype, g.shape, w.dtype, w.shape)
            torch.testing.assert_close(g, w, atol=1e-4, rtol=1e-3, equal_nan=True)
        else:
            assert g == w and type(g) is type(w), (g, w)


def check(
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    dynamic_shapes: Any = None,
    steps: Sequence[tuple[Any, ...]] = (),
    delegates: int | None = None,
) -> Any:
    """Lowers ``module`` and compares every step with eager. Returns what was lowered."""
    reference = copy.deepcopy(module).eval()
    lowered = lower(module, copy.deepcopy(inputs), dynamic_shapes)
    if delegates is not None:
        assert exports.delegates(lowered) == delegates, exports.cpu_operators(lowered)
    method = load(lowered)
    for step in steps or [inputs]:
        with torch.no_grad():
            want = flat(reference(*copy.deepcopy(step)))
        compare(method.execute(list(copy.deepcopy(step))), want)
    return lowered
