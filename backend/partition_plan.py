"""Plans which nodes of an edge program go to which delegate, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from executorch_wgpu.backend import fx_adapter as fx
from executorch_wgpu.backend.graph_reader import GraphReader, Part
from executorch_wgpu.backend.options import CompileOptions
from executorch_wgpu.backend.worth import why_not_worth
from executorch_wgpu.ops import registry

_CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass
class PartitionPlan:
    """Which nodes go where. ``groups``: nodes of each delegate. ``reasons``: why a node stays on
    the CPU. ``owned``: placeholders of states -> index of the group that owns them. ``kept``:
    placeholders of constants that go into the delegates; what several use is copied by
    ExecuTorch (and is one tensor in the file and on the device all the same). ``left``:
    placeholders of the states that the CPU keeps."""

    groups: list[list[torch.fx.Node]] = field(default_factory=list)
    reasons: dict[torch.fx.Node, str] = field(default_factory=dict)
    owned: dict[torch.fx.Node, int] = field(default_factory=dict)
    kept: frozenset[torch.fx.Node] = frozenset()
    left: tuple[torch.fx.Node, ...] = ()

    def part(self, index: int) -> Part:
        """One group, to be read as the delegate that it would become."""
        states = {node for node, owner in self.owned.items() if owner == index}
        return Part(tuple(self.groups[index]), self.kept | states)


def plan_partitions(
    program: ExportedProgram, options: CompileOptions | None = None
) -> PartitionPlan:
    """Decide for a program in edge dialect. Changes nothing in it."""
    return _Planner(program, options or CompileOptions()).plan()


class _Planner:
    def __init__(self, program: ExportedProgram, options: CompileOptions) -> None:
        self.program, self.options = program, options
        self.graph = GraphReader(program)
        self.calls = [n for n in self.graph.nodes if n.op == "call_function"]
        self.reasons: dict[torch.fx.Node, str] = {}
        self.host = self._host_chain()
        self.whole = True  #: everything, the symbolic chain too, may go into one delegate

    def plan(self) -> PartitionPlan:
        self.reasons = self._reasons(self.graph)
        if self.reasons or self._symbols_leave():
            self.whole = False
            self.reasons = self._reasons(GraphReader(self.program, assume=True))
        # What goes to the CPU can break up what made something else fit. The rule on size comes
        # last: what it drops is dropped for good.
        while True:
            plan = self._attempt()
            found = self._lost_states(plan) or self._unread(plan) or self._unworthy(plan)
            if not found:
                return plan
            self.whole = False
            self.reasons.update(found)

    def _reasons(self, graph: GraphReader) -> dict[torch.fx.Node, str]:
        asked = ((node, self._unwanted(node) or graph.reason(node)) for node in self.calls)
        return {node: reason for node, reason in asked if reason is not None}

    def _host_chain(self) -> set[torch.fx.Node]:
        """Live scalars, what computes with them, and what only takes them out of an input:
        ``input_pos[0]`` before its ``item``. Where the graph splits, all of it stays outside."""
        found: set[torch.fx.Node] = set()
        for node in reversed(self.calls):
            if (
                fx.is_symbolic(node)
                or fx.is_assert(node)
                or fx.is_scalar_read(node)
                or (node.users and found.issuperset(node.users) and self.graph.is_element(node))
            ):
                found.add(node)
        return found

    def _unwanted(self, node: torch.fx.Node) -> str | None:
        if node in self.host:
            return None
        source = node.args[0] if fx.is_getitem(node) else node
        assert isinstance(source, torch.fx.Node)
        name = fx.op_name(source.args[0] if fx.is_mutation(source) else source.target)
        return self.options.reason_against(name, fx.module_path(source))

    def _attempt(self) -> PartitionPlan:
        if not self.calls:
            return PartitionPlan()
        # As a whole, views too: then no other runtime is needed.
        if self.whole and self._worthwhile(self.calls, views=True):
            return self._complete(PartitionPlan([self.calls]))
        return self._split()

    def _complete(self, plan: PartitionPlan) -> PartitionPlan:
        """Adds what follows from the groups."""
        plan.owned = self._owners(plan.groups)
        plan.kept = self._constants(plan.groups)
        plan.left = tuple(first for first, _ in self._states() if first not in plan.owned)
        return plan

    def _unread(self, plan: PartitionPlan) -> dict[torch.fx.Node, str]:
        """New reasons: a delegate sees only what crosses its boundary, and reads its live sizes
        from that, so what the whole graph knows it may not."""
        if len(plan.groups) == 1 and len(plan.groups[0]) == len(self.calls):
            arguments = set(plan.part(0).inputs())
            if not any(self.graph.tensor_of(node) is not None for node in arguments):
                return {}  # the whole graph has been asked
        found: dict[torch.fx.Node, str] = {}
        for index, nodes in enumerate(plan.groups):
            reader = GraphReader(self.program, plan.part(index))
            for node in nodes:
                reason = reader.reason(node)
                if reason is not None:
                    found[node] = reason
        return found

    def _unworthy(self, plan: PartitionPlan) -> dict[torch.fx.Node, str]:
        """New reasons: parts that cost more than they save."""
        if not self.options.call_cost_us or self.whole:
            return {}
        found: dict[torch.fx.Node, str] = {}
        for index, nodes in enumerate(plan.groups):
            part = plan.part(index)
            reason = why_not_worth(GraphReader(self.program, part), part, self.options.call_cost_us)
            if reason is not None:
                found |= dict.fromkeys(nodes, reason)
        return found

    def _worthwhile(self, nodes: list[torch.fx.Node], *, views: bool) -> bool:
        """Whether a group has operators that the GPU runs. ``views``: those that only look at
        their input in another way count."""
        for node in nodes:
            if node in self.host or fx.is_getitem(node):
                continue
            entry = registry.lowering_of(fx.op_name(node.target))
            if entry is None or views or not entry.views:
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
            node for node in self.calls if node not in self.reasons and node not in self.host
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
        for node in self.host:
            if not (fx.is_symbolic(node) or fx.is_assert(node) or fx.is_scalar_read(node)):
                reasons.setdefault(node, "reads a number for the host, where the graph splits")
        groups = []
        for partition in proposed:
            nodes = [node for node in self.calls if node in partition.nodes]
            if self._worthwhile(nodes, views=not self.options.call_cost_us):
                groups.append(nodes)
            else:
                reasons |= dict.fromkeys(nodes, "only views: nothing to compute on the GPU")
        groups.sort(key=lambda nodes: self.calls.index(nodes[0]))
        return self._complete(PartitionPlan(groups, reasons))

    def _constants(self, groups: list[list[torch.fx.Node]]) -> frozenset[torch.fx.Node]:
        """Placeholders of constants that only operators use. One that is returned, too, is given
        to the delegates at each call."""
        grouped = {node for nodes in groups for node in nodes}
        return frozenset(
            node
            for node in self.graph.nodes
            if node.op == "placeholder"
            and self.graph.kinds.get(node.name) in _CONSTANT_KINDS
            and not self.graph.is_mutated(node)
            and any(user in grouped for user in node.users)
            and all(user.op == "call_function" for user in node.users)
        )

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
