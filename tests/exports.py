"""Exports small modules for tests, in the ways that users do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)

from executorch_wgpu.backend import WgpuPartitioner
from executorch_wgpu.runtime import Runtime


def export(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any = None) -> Any:
    """torch.export with ``.item()`` captured as a live scalar."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        return torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic_shapes)


def edge(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any = None) -> Any:
    """The program in edge dialect."""
    config = EdgeCompileConfig(_check_ir_validity=False)
    program = export(module, inputs, dynamic_shapes)
    return to_edge(program, compile_config=config).exported_program()


def lower(
    module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any = None
) -> EdgeProgramManager:
    """torch.export -> to_edge_transform_and_lower with our partitioner."""
    program = export(module, inputs, dynamic_shapes)
    return to_edge_transform_and_lower(program, partitioner=[WgpuPartitioner()])


def delegates(program: EdgeProgramManager | ExecutorchProgramManager) -> int:
    """Number of delegate calls in the outer graph."""
    graph = program.exported_program().graph
    return sum("call_delegate" in str(node.target) for node in graph.nodes)


def cpu_operators(program: EdgeProgramManager) -> list[str]:
    """Operators left in the outer graph."""
    return [
        str(node.target)
        for node in program.exported_program().graph.nodes
        if node.op == "call_function"
        and "call_delegate" not in str(node.target)
        and "getitem" not in str(node.target)
    ]


def method(
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    dynamic_shapes: Any = None,
    *,
    path: Path | None = None,
) -> Any:
    """A loaded method of the whole module, which must be one delegate."""
    lowered = lower(module, inputs, dynamic_shapes)
    assert delegates(lowered) == 1, cpu_operators(lowered)
    program = lowered.to_executorch()
    if path is not None:
        program.save(str(path))
        return Runtime.get().load_program(path).load_method("forward")
    return Runtime.get().load_program(bytes(program.buffer)).load_method("forward")
