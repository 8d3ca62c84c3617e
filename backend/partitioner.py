"""WgpuPartitioner: decides which nodes the delegate takes, and says why not for the rest."""

from __future__ import annotations

import copy
import dataclasses
import logging

import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from torch.export import ExportedProgram

from executorch_wgpu.backend.explanation import Explanation, explain_plan
from executorch_wgpu.backend.options import CompileOptions
from executorch_wgpu.backend.partition_plan import PartitionPlan, plan_partitions
from executorch_wgpu.backend.preprocess import WgpuBackend

logger = logging.getLogger("executorch_wgpu")

__all__ = [
    "PartitionPlan",
    "SplitMethodError",
    "WgpuPartitioner",
    "explain_program",
    "named_feedback",
    "plan_partitions",
]


class SplitMethodError(ValueError):
    """What only a method that is one delegate can have was asked for one that is not; the message
    says what would be on the CPU, and why."""


class WgpuPartitioner(Partitioner):
    """Partitions an edge program for the WebGPU delegate.

    >>> to_edge_transform_and_lower(ep, partitioner=[WgpuPartitioner()])

    A node is taken exactly when it is certain to lower; the rest runs on ExecuTorch's CPU
    kernels, each with a reason that :meth:`explain` prints.
    """

    def __init__(self, options: CompileOptions | None = None) -> None:
        """``options``: see :class:`.options.CompileOptions`."""
        super().__init__()
        self.options = options or CompileOptions()
        self.delegation_spec = DelegationSpec(WgpuBackend.__name__, self.options.to_specs())
        self._zero_states: frozenset[str] = frozenset()

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag nodes with the delegate they go to, constants and owned states with them."""
        plan = plan_partitions(exported_program, self.options)
        tags = {}
        spec = self.delegation_spec
        if self.options.feedback:
            if plan.reasons or len(plan.groups) != 1:
                raise SplitMethodError(
                    f"feedback: the method must be one delegate, and it would be "
                    f"{len(plan.groups)}\n"
                    f"{explain_plan(exported_program, plan.groups, plan.reasons)}"
                )
            options = named_feedback(exported_program, self.options)
            spec = DelegationSpec(WgpuBackend.__name__, options.to_specs())
        for index, nodes in enumerate(plan.groups):
            tag = f"wgpu_{index}"
            tags[tag] = spec
            for node in nodes:
                node.meta["delegation_tag"] = tag
        for node in plan.kept:
            used = {t for user in node.users if (t := user.meta.get("delegation_tag"))}
            node.meta["delegation_tag"] = min(used)
        for node, owner in plan.owned.items():
            node.meta["delegation_tag"] = f"wgpu_{owner}"
        for node in plan.left:
            # ExecuTorch drops the initial values of buffers that it updates, unless told so.
            if node.target not in self._zero_states:
                node.meta["et_init_buffer"] = True
        if plan.reasons:
            logger.info("%s", explain_plan(exported_program, plan.groups, plan.reasons))
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], None]:
        """None: decomposed forms are what is supported, and fused again by our passes."""
        # The one place where ExecuTorch shows us the content of buffers before partitioning.
        self._zero_states = _zero_states(ep)
        return [], None

    def explain(self, program: ExportedProgram) -> Explanation:
        """Print where each operator would go and why, before anything is lowered.

        ``program``: from torch.export or in edge dialect; it is not changed. Returns what was
        printed, with its rows.
        """
        explanation = explain_program(program, self.options)
        print(explanation)
        return explanation


def explain_program(program: ExportedProgram, options: CompileOptions | None = None) -> Explanation:
    """See :meth:`WgpuPartitioner.explain`; prints nothing."""
    if program.dialect != "EDGE":
        program = _edge_twin(program)
    plan = plan_partitions(program, options)
    return explain_plan(program, plan.groups, plan.reasons)


def named_feedback(program: ExportedProgram, options: CompileOptions) -> CompileOptions:
    """The options with outputs by the names of their nodes, which keep them in a delegate whose
    outputs have an order of their own. Raises ValueError for an output that there is not."""
    outputs = program.graph_signature.user_outputs
    pairs = []
    for output, name in options.feedback:
        if isinstance(output, int):
            if not 0 <= output < len(outputs):
                raise ValueError(f"feedback: there is no output {output}, but {len(outputs)}")
            output = str(outputs[output])
        pairs.append((output, name))
    return dataclasses.replace(options, feedback=tuple(pairs))


def _zero_states(program: ExportedProgram) -> frozenset[str]:
    """Names of the placeholders of updated buffers that start as zeros, as they do in ExecuTorch's
    planned memory without any bytes in the file."""
    signature = program.graph_signature
    found = set()
    for name, target in signature.inputs_to_buffers.items():
        if target in signature.buffers_to_mutate.values():
            content = program.state_dict.get(target, program.constants.get(target))
            if isinstance(content, torch.Tensor) and not bool((content != 0).any()):
                found.add(name)
    return frozenset(found)


def _edge_twin(program: ExportedProgram) -> ExportedProgram:
    """The program in edge dialect, leaving the given one as it was: lowering consumes an
    exported program, and what is explained must stay usable. Weights are shared."""
    twin = copy.copy(program)
    twin._graph_module = copy.deepcopy(program.graph_module)
    twin._graph_signature = copy.deepcopy(program.graph_signature)
    environments = {
        value.node.shape_env
        for node in program.graph.nodes
        for value in [node.meta.get("val")]
        if isinstance(value, torch.SymInt)
    }
    try:
        config = EdgeCompileConfig(_check_ir_validity=False)
        return to_edge(twin, compile_config=config).exported_program()
    finally:
        # Both graphs share a shape environment. Symbols that the twin's decomposition left
        # pending there would make the program's own fail.
        for environment in environments:
            environment.pending_fresh_unbacked_symbols.clear()
