"""What is delegated, what is not, and why; symbols and state."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.backend.backend_api import to_backend

from executorch_wgpu.backend import CompileOptions, WgpuPartitioner
from executorch_wgpu.backend.partitioner import explain_program, plan_partitions
from executorch_wgpu.runtime import Runtime

import exports


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(12, 20)
        self.down = torch.nn.Linear(20, 12, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x))) + x


def mlp():
    torch.manual_seed(0)
    return Mlp(), (torch.randn(1, 4, 12),), ({1: torch.export.Dim("S", min=1, max=16)},)


class Holey(torch.nn.Module):
    """Something that is not supported between two things that are."""

    def forward(self, x):
        y = (x * 2 + 1).sigmoid()
        return torch.sort(y, -1)[0] * 3


def lowered_ways(program, config):
    """The three ways to lower with a partitioner."""
    yield lambda ep: to_edge_transform_and_lower(
        ep, partitioner=[WgpuPartitioner()], compile_config=config
    )
    yield lambda ep: to_edge(ep, compile_config=config).to_backend(WgpuPartitioner())


@pytest.mark.parametrize("config", [None, EdgeCompileConfig(_check_ir_validity=False)])
@pytest.mark.parametrize("way", range(2))
def test_every_way_of_lowering_gives_one_delegate(config, way):
    module, inputs, shapes = mlp()
    lower = list(lowered_ways(None, config))[way]
    lowered = lower(exports.export(module, inputs, shapes))
    assert exports.delegates(lowered) == 1
    assert exports.cpu_operators(lowered) == []
    buffer = bytes(lowered.to_executorch().buffer)
    method = Runtime.get().load_program(buffer).load_method("forward")
    for size in (1, 5, 16):
        x = torch.randn(1, size, 12)
        (y,) = method.execute([x])
        torch.testing.assert_close(y, module(x).detach(), atol=1e-5, rtol=1e-4)


def test_the_to_backend_function_takes_the_partitioner():
    module, inputs, shapes = mlp()
    edge = exports.edge(module, inputs, shapes)
    program = to_backend(edge, WgpuPartitioner())
    targets = [str(node.target) for node in program.graph.nodes]
    assert sum("call_delegate" in target for target in targets) == 1


def test_what_is_not_supported_stays_with_a_reason():
    program = exports.export(Holey(), (torch.randn(3, 4),))
    partitioner = WgpuPartitioner(CompileOptions(call_cost_us=0))
    explanation = partitioner.explain(program)
    (row,) = explanation.on_cpu
    assert row.op == "aten.sort.default" and "no lowering" in row.reason
    assert explanation.delegates == 2
    # Explaining changed nothing: the same program still lowers, to what was explained.
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner])
    assert exports.delegates(lowered) == 2
    assert [op for op in exports.cpu_operators(lowered) if "sort" not in op] == []


def test_explain_prints_a_table(capsys):
    module, inputs, shapes = mlp()
    explanation = WgpuPartitioner().explain(exports.export(module, inputs, shapes))
    text = capsys.readouterr().out
    assert "in 1 WebGPU delegate(s)" in text and "aten.addmm.default" in text
    assert not explanation.on_cpu


@pytest.mark.parametrize(
    "module, inputs, word",
    [
        (lambda x: x * 2, torch.arange(4), "int64"),
        (lambda x: x * 2.5, torch.randn(4, dtype=torch.float64), "float64"),
        (lambda x: x.to(torch.complex64) * 2, torch.randn(4), "complex64"),
    ],
)
def test_dtypes_that_are_not_ours_stay_on_the_cpu(module, inputs, word):
    class Wrapped(torch.nn.Module):
        def forward(self, x):
            return module(x)

    explanation = explain_program(exports.export(Wrapped(), (inputs,)))
    assert explanation.delegates == 0
    assert any(word in row.reason for row in explanation.on_cpu)


# -- symbols -----------------------------------------------------------------------------------


def symbols_and_sizes(program):
    found = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, torch.Tensor):
                found.append((node.name, tuple(str(s) for s in one.shape)))
            elif isinstance(one, torch.SymInt):
                found.append((node.name, str(one.node.expr)))
    environment = next(
        s.node.shape_env
        for node in program.graph.nodes
        if isinstance(v := node.meta.get("val"), torch.Tensor)
        for s in v.shape
        if isinstance(s, torch.SymInt)
    )
    ranges = {str(k): (str(v.lower), str(v.upper)) for k, v in environment.var_to_range.items()}
    return found, ranges, len(environment.guards), str(program.range_constraints)


def test_asking_specialises_no_symbol(layer_edge):
    before = symbols_and_sizes(layer_edge)
    plan_partitions(layer_edge)
    plan_partitions(layer_edge)
    assert symbols_and_sizes(layer_edge) == before


def planned_sizes(partitioner) -> list[tuple[int, ...]]:
    module, inputs, shapes = mlp()
    program = exports.export(module, inputs, shapes)
    lowered = to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch()
    plan = lowered.executorch_program.execution_plan[0]
    return [
        tuple(plan.values[index].val.sizes)
        for index in [*plan.inputs, *plan.outputs]
        if hasattr(plan.values[index].val, "sizes")
    ]


def test_planned_sizes_stay_at_the_upper_bound():
    assert planned_sizes([WgpuPartitioner()]) == planned_sizes([])


def test_live_scalars_are_merged_by_source(layer_edge):
    from executorch_wgpu.backend.graph_reader import GraphReader

    live = GraphReader(layer_edge).live
    assert sorted((s.name, s.lo, s.hi) for s in live.symints) == [
        ("input_pos[0]", 0, 39),
        ("x.shape[1]", 1, 16),
    ]
    reads = [n for n in layer_edge.graph.nodes if "_local_scalar_dense" in str(n.target)]
    assert len(reads) > 2  # the exporter named the one source many times over


# -- state -------------------------------------------------------------------------------------


class Counter(torch.nn.Module):
    """A buffer that is updated; ``kind`` says who else looks at it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("total", torch.full((4,), 2.0))

    def forward(self, x):
        old = self.total * 1.0 if self.kind == "old version read" else None
        self.total.add_(x)
        if self.kind == "returned":
            return self.total
        if self.kind == "snapshot":
            return self.total.clone()
        if self.kind == "cpu reads it":
            return torch.sort(self.total * 2.0)[0] + torch.sort(self.total)[0]
        if self.kind == "old version read":
            return old + self.total
        return self.total * 2.0


@pytest.mark.parametrize("kind", ["plain", "snapshot", "old version read"])
def test_a_state_used_in_one_delegate_is_owned_by_it(kind):
    module = Counter(kind)
    method = exports.method(module, (torch.ones(4),))
    assert list(method.state.names) == ["total"]
    reference = Counter(kind)
    for _ in range(4):
        x = torch.randn(4)
        (y,) = method.execute([x])
        torch.testing.assert_close(y, reference(x))


@pytest.mark.parametrize("kind", ["returned", "cpu reads it"])
def test_a_state_used_elsewhere_stays_on_the_cpu_and_is_named(kind):
    program = exports.export(Counter(kind), (torch.ones(4),))
    explanation = explain_program(program)
    reasons = [row.reason for row in explanation.on_cpu]
    assert any("'total'" in reason for reason in reasons), reasons
