"""WgpuPartitioner: decides which nodes the delegate takes, and says why not for the rest."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field

import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from executorch_wgpu.backend import fx_adapter as fx
from executorch_wgpu.backend.explanation import Explanation, explain_plan
from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.preprocess import WgpuBackend
from executorch_wgpu.ops import registry

logger = logging.getLogger("executorch_wgpu")


@dataclass
class PartitionPlan:
    """Which nodes go where. ``groups``: nodes of each delegate. ``reasons``: why a node stays on
    the CPU. ``owned``: placeholders of states -> index of the group that owns them."""

    groups: list[list[torch.fx.Node]] = field(default_factory=list)
    reasons: dict[torch.fx.Node, str] = field(default_factory=dict)
    owned: dict[torch.fx.Node, int] = field(default_factory=dict)


def plan_partitions(program: ExportedProgram) -> PartitionPlan:
    """Decide for a program in edge dialect. Changes nothing in it."""
    return _Planner(program).plan()


class _Planner:
    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.graph = GraphReader(program)
        self.calls = [n for n in self.graph.nodes if n.op == "call_function"]
        self.reasons: dict[torch.fx.Node, str] = {}

    def plan(self) -> PartitionPlan:
        for node in self.calls:
            reason = self.graph.reason(node)
            if reason is not None:
                self.reasons[node] = reason
        # Sending a state's users to the CPU can break up what made another state ownable.
        while True:
            plan = self._attempt()
            lost = self._lost_states(plan)
            if not lost:
                return plan
            self.reasons.update(lost)

    def _attempt(self) -> PartitionPlan:
        if not self.calls:
            return PartitionPlan()
        if not self.reasons and not self._symbols_leave() and self._worthwhile(self.calls):
            return PartitionPlan([self.calls], {}, self._owners([self.calls]))
        return self._split()

    def _worthwhile(self, nodes: list[torch.fx.Node]) -> bool:
        """Whether a group has anything to compute: views and host arithmetic are no work."""
        for node in nodes:
            if fx.is_symbolic(node) or fx.is_assert(node) or fx.is_scalar_read(node):
                continue
            if fx.is_getitem(node):
                continue
            entry = registry.lowering_of(fx.op_name(node.target))
            if entry is None or not entry.views:
                return True
        return False

    def _symbols_leave(self) -> bool:
        """Whether an int is an output of the program: delegates return tensors."""
        output = self.graph.nodes[-1]
        return any(
            isinstance(arg, torch.fx.Node)
            and arg.op == "call_function"
            and not isinstance(arg.meta.get("val"), torch.Tensor)
            for arg in output.args[0]  # type: ignore[union-attr]
        )

    def _split(self) -> PartitionPlan:
        """Several partitions: the symbolic chain stays outside and delegates take ints, since
        symbols that cross between delegates and the CPU fail in ExecuTorch."""
        supported = {
            node
            for node in self.calls
            if node not in self.reasons
            and not fx.is_symbolic(node)
            and not fx.is_assert(node)
            and not fx.is_scalar_read(node)
        }

        class Support(OperatorSupportBase):
            def is_node_supported(self, submodules: object, node: torch.fx.Node) -> bool:
                return node in supported

        proposed = CapabilityBasedPartitioner(
            self.program.graph_module,
            Support(),
            allows_single_node_partition=True,
        ).propose_partitions()
        reasons = dict(self.reasons)
        groups = []
        for partition in proposed:
            nodes = [node for node in self.calls if node in partition.nodes]
            if self._worthwhile(nodes):
                groups.append(nodes)
            else:
                reasons |= dict.fromkeys(nodes, "only views: nothing to compute on the GPU")
        return PartitionPlan(groups, reasons, self._owners(groups))

    # -- state -----------------------------------------------------------------------------

    def _states(self) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
        """(placeholder, node of the last version) of each buffer that the program updates."""
        by_target = {
            self.graph.targets[n.name]: n
            for n in self.graph.nodes
            if n.op == "placeholder" and self.graph.is_mutated(n)
        }
        output = self.graph.nodes[-1]
        found = []
        for spec, arg in zip(
            self.program.graph_signature.output_specs,
            output.args[0],  # type: ignore[arg-type]
            strict=True,
        ):
            if spec.kind is OutputKind.BUFFER_MUTATION and spec.target in by_target:
                assert isinstance(arg, torch.fx.Node)
                found.append((by_target[spec.target], arg))
        return found

    def _owners(self, groups: list[list[torch.fx.Node]]) -> dict[torch.fx.Node, int]:
        """States whose every user is in one group, and whose new value does not leave it."""
        group_of = {node: k for k, nodes in enumerate(groups) for node in nodes}
        output = self.graph.nodes[-1]
        leaving: list[torch.fx.Node] = [
            arg
            for spec, arg in zip(
                self.program.graph_signature.output_specs,
                output.args[0],  # type: ignore[arg-type]
                strict=True,
            )
            if spec.kind is not OutputKind.BUFFER_MUTATION
        ]
        owned = {}
        for placeholder, last in self._states():
            users = {u for u in [*placeholder.users, *last.users, last] if u is not output}
            homes = {group_of.get(user) for user in users}
            if len(homes) == 1 and None not in homes and not {placeholder, last} & {*leaving}:
                (home,) = homes
                assert home is not None
                owned[placeholder] = home
        return owned

    def _lost_states(self, plan: PartitionPlan) -> dict[torch.fx.Node, str]:
        """New reasons: a state that no delegate can own is updated and read on the CPU, every
        version of it, so that the order of reads and writes is ExecuTorch's own."""
        tagged = {node for nodes in plan.groups for node in nodes}
        lost: dict[torch.fx.Node, str] = {}
        for placeholder, last in self._states():
            if placeholder in plan.owned:
                continue
            target = self.graph.targets[placeholder.name]
            reason = f"state {target!r} is also used outside one delegate"
            for node in _version_users(placeholder, last):
                if node in tagged:
                    lost[node] = reason
        return lost


def _version_users(first: torch.fx.Node, last: torch.fx.Node) -> set[torch.fx.Node]:
    """Operators that make or directly read any version of a state."""
    found: set[torch.fx.Node] = set()
    versions = {first, last}
    # Versions lie on the way from the last one back to the placeholder.
    queue = [last]
    while queue:
        node = queue.pop()
        if node is first or node in found or node.op != "call_function":
            continue
        sources = [n for n in node.all_input_nodes if _reaches(n, first)]
        if sources:
            found.add(node)
            versions.add(node)
            queue.extend(sources)
    for version in versions:
        found |= {user for user in version.users if user.op == "call_function"}
    if last.op == "call_function":
        found.add(last)
    return found


def _reaches(node: torch.fx.Node, target: torch.fx.Node) -> bool:
    seen: set[torch.fx.Node] = set()
    queue = [node]
    while queue:
        current = queue.pop()
        if current is target:
            return True
        if current in seen:
            continue
        seen.add(current)
        queue.extend(current.all_input_nodes)
    return False


class WgpuPartitioner(Partitioner):
    """Partitions an edge program for the WebGPU delegate.

    >>> to_edge_transform_and_lower(ep, partitioner=[WgpuPartitioner()])

    A node is taken exactly when it is certain to lower; the rest runs on ExecuTorch's CPU
    kernels, each with a reason that :meth:`explain` prints.
    """

    def __init__(self) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(WgpuBackend.__name__, [])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag nodes with the delegate they go to, constants and owned states with them."""
        plan = plan_partitions(exported_program)
        tags = {}
        for index, nodes in enumerate(plan.groups):
            tag = f"wgpu_{index}"
            tags[tag] = self.delegation_spec
            for node in nodes:
                node.meta["delegation_tag"] = tag
        graph = GraphReader(exported_program)
        for node in graph.nodes:
            if node.op != "placeholder" or graph.tensor_of(node) is None:
                continue
            if graph.is_mutated(node):
                if node in plan.owned:
                    node.meta["delegation_tag"] = f"wgpu_{plan.owned[node]}"
                continue
            user_tags = {t for u in node.users if (t := u.meta.get("delegation_tag"))}
            if user_tags:
                node.meta["delegation_tag"] = min(user_tags)
        if plan.reasons:
            logger.info("%s", explain_plan(exported_program, plan.groups, plan.reasons))
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], None]:
        """None: decomposed forms are what is supported, and fused again by our passes."""
        return [], None

    def explain(self, program: ExportedProgram) -> Explanation:
        """Print where each operator would go and why, before anything is lowered.

        ``program``: from torch.export or in edge dialect; it is not changed. Returns what was
        printed, with its rows.
        """
        explanation = explain_program(program)
        print(explanation)
        return explanation


def explain_program(program: ExportedProgram) -> Explanation:
    """See :meth:`WgpuPartitioner.explain`; prints nothing."""
    if program.dialect != "EDGE":
        program = _edge_twin(program)
    plan = plan_partitions(program)
    return explain_plan(program, plan.groups, plan.reasons)


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
