"""Graphs that we take in part: the rest runs on ExecuTorch's CPU kernels; all of it is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from official import SPLIT, check, compare, flat, load, lower
from torch import nn
from torch.export import Dim

from executorch_wgpu.backend import CompileOptions, WgpuPartitioner
from executorch_wgpu.backend.partitioner import explain_program

import exports


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def module_of(function: Any, **buffers: torch.Tensor) -> nn.Module:
    module = type("Module", (nn.Module,), {"forward": function})()
    for name, tensor in buffers.items():
        module.register_buffer(name, tensor.clone())
    return module


# -- values ------------------------------------------------------------------------------------


def test_operators_that_we_do_not_have_in_the_middle():
    check(
        module_of(lambda m, x: (x * 2 + 1).sigmoid().cumsum(-1) * 3),
        (rand(3, 4),),
        delegates=2,
    )


def test_dtypes_that_we_do_not_have():
    def forward(m, i, d, x):
        return i * 2 + 1, d * 2, (x * 3).exp(), d + x, i

    check(module_of(forward), (torch.arange(6), rand(6).double(), rand(6)), delegates=1)


def test_bools_and_ints_both_ways():
    def forward(m, mask, i, x):
        y = torch.where(mask, x * 2, x - 1)
        return y, x > 0, torch.logical_not(mask), i.float() * x, i + 1, y.cumsum(0)

    inputs = (torch.tensor([True, False, True, True]), torch.arange(4, dtype=torch.int32), rand(4))
    check(module_of(forward), inputs, delegates=1)


def test_outputs_that_are_inputs_constants_duplicates_views_or_plain_values():
    def forward(m, x, y):
        z = x * y * m.w
        return x, z, z, z.t(), z[1:3], z.reshape(2, 12), x[:, 2], m.w, m.c, 5, None, 2.5, True

    module = module_of(forward, w=rand(6), c=torch.arange(3.0))
    check(module, (rand(4, 6), rand(4, 6)), delegates=1)


def test_int_outputs():
    def forward(m, x, position):
        n = position[0].item()
        torch._check(n >= 0)
        torch._check(n < 100)
        return (x * n).sigmoid(), x.shape[0] + 1, x.shape[0], n

    check(
        module_of(forward),
        (rand(4, 6), torch.tensor([3])),
        ({0: Dim("n", min=1, max=9)}, None),
        [(rand(k, 6), torch.tensor([k])) for k in (1, 9, 4)],
        delegates=1,
    )


def test_an_input_that_is_mutated():
    def forward(m, x, y):
        z = (x * 2).cumsum(0)
        x.mul_(y)
        return x * 2 + z

    module = module_of(forward)
    method = load(lower(module, (rand(4), rand(4))))
    x, y = rand(4), rand(4) + 1
    mine = x.clone()
    want = forward(None, mine, y)
    # ExecuTorch hands the new value out before the outputs.
    compare(method.execute([x, y]), [mine, want])


def test_sizes_of_zero_and_tensors_of_rank_zero():
    def forward(m, empty, x, s):
        return torch.cat([empty * 2, x]) * 2, s * 2, x * s, x.sum(), empty + 1, x.cumsum(0)

    check(module_of(forward), (torch.zeros(0, 4), rand(3, 4), torch.tensor(2.0)))


def test_channels_last_crosses_the_boundary_both_ways():
    x = rand(1, 3, 5, 4).to(memory_format=torch.channels_last)

    def forward(m, x):
        y = torch.relu(x * 2 + 1)
        return y * 2, y.contiguous() + 1

    options = CompileOptions(call_cost_us=0, operator_blocklist=["aten.relu.default"])
    lowered = lower(module_of(forward), (x,), partitioner=[WgpuPartitioner(options)])
    assert exports.delegates(lowered) == 2
    got = load(lowered).execute([x])
    compare(got, forward(None, x))
    assert got[0].is_contiguous(memory_format=torch.channels_last) and got[1].is_contiguous()


# -- symbols -----------------------------------------------------------------------------------


def test_a_position_and_a_size_cross_as_ints():
    def forward(m, x, position):
        n = position[0].item()
        torch._check(n >= 0)
        torch._check(n + x.shape[1] <= 16)
        y = (x * m.table.narrow(0, n, x.shape[1])).sigmoid()
        return y.cumsum(-1) * m.table.narrow(0, n, x.shape[1]) + x

    lowered = check(
        module_of(forward, table=rand(16, 6)),
        (rand(1, 4, 6), torch.tensor([2])),
        ({1: Dim("S", min=1, max=9)}, None),
        [(rand(1, s, 6), torch.tensor([p])) for s, p in ((4, 2), (1, 0), (9, 7), (1, 15))],
        delegates=2,
    )
    assert not any("wgpu" in op for op in exports.cpu_operators(lowered))


def sizes_of_symints(lowered: Any) -> list[tuple[str, int, int]]:
    from executorch_wgpu.serialization import PteFile, deserialize

    pte = PteFile(bytes(lowered.to_executorch().buffer))
    programs = [deserialize(d.data) for d in pte.method("forward").delegates]
    return [(s.name, s.lo, s.hi) for program in programs for s in program.symints]


def test_sizes_that_are_expressions_are_bounded():
    """The second delegate sees 2n and n; the exporter's bounds are found for both."""

    def forward(m, x):
        y = (x * 2).sigmoid().cumsum(-1).reshape(x.shape[0] // 2, 10)
        return (y * 2).exp().cumsum(-1) * 2

    lowered = check(
        module_of(forward),
        (rand(6, 5) / 9,),
        ({0: 2 * Dim("n", min=1, max=4)},),
        [(rand(k, 5) / 9,) for k in (2, 8, 4)],
        delegates=3,
    )
    assert all(hi <= 8 for _, _, hi in sizes_of_symints(lowered))


def test_sums_of_sizes_that_only_the_first_delegate_knows_apart():
    def forward(m, x, y):
        z = torch.cat([x.exp(), y.exp()]).cumsum(0)
        return (z * 2).sigmoid()[1:] * 2

    check(
        module_of(forward),
        (rand(3, 5), rand(4, 5)),
        ({0: Dim("a", min=1, max=6)}, {0: Dim("b", min=1, max=7)}),
        [(rand(a, 5), rand(b, 5)) for a, b in ((3, 4), (1, 7), (6, 1))],
        delegates=2,
    )


def test_lengths_that_depend_on_data():
    def forward(m, x):
        y = (x * 2).abs()
        return torch.nonzero(y).float() * 2, torch.masked_select(y, x > 1).exp()

    steps = [(torch.tensor(v),) for v in ([1.0, 0, 2, 0, 3], [1.0, 1, 2, 1, 3], [0.0, 0, 0, 0, 1])]
    check(module_of(forward), steps[0], None, steps, delegates=2)


def test_control_flow():
    def forward(m, x, flag):
        y = torch.cond(flag, lambda x: (x * 2).sigmoid(), lambda x: (x - 1).exp(), (x + 1,))
        return y * 2

    x = rand(4)
    steps = [(x, torch.tensor(True)), (x, torch.tensor(False))]
    check(module_of(forward), steps[0], None, steps, delegates=2)


# -- state -------------------------------------------------------------------------------------


def cpu_reads_what_is_replaced(m, x):
    y = m.t.cumsum(0)
    m.t.add_(x)
    return m.t * 2 + y


def cpu_reads_the_new_value(m, x):
    m.t.add_(x)
    return m.t.cumsum(0) * 2 + m.t


def it_is_returned(m, x):
    m.t.add_(x)
    return m.t


def both_versions_are_read(m, x):
    y = m.t * 1.0
    m.t.add_(x)
    return y + m.t


def cpu_makes_the_new_value(m, x):
    m.t.copy_((x + m.t).cumsum(0))
    return m.t * 2


def updated_on_both_sides(m, x):
    m.t.add_(x)
    m.t.add_(x.cumsum(0))
    return m.t * 3


def old_value_goes_to_the_cpu_by_way_of_ours(m, x):
    y = m.t * 2
    m.t.copy_(x)
    return y.cumsum(0) + m.t


def a_part_is_updated(m, x):
    m.t[1:3] = x[:2]
    return x.cumsum(0) * m.t


def two_that_swap(m, x):
    old = m.t.clone()
    m.t.copy_(m.u * 2 + x)
    m.u.copy_(old)
    return m.t.cumsum(0) * m.u


STATES = [
    cpu_reads_what_is_replaced,
    cpu_reads_the_new_value,
    it_is_returned,
    both_versions_are_read,
    cpu_makes_the_new_value,
    updated_on_both_sides,
    old_value_goes_to_the_cpu_by_way_of_ours,
    a_part_is_updated,
    two_that_swap,
]


@pytest.mark.parametrize("forward", STATES, ids=lambda f: f.__name__)
def test_states_used_on_both_sides(forward):
    """Four steps from an initial value that is not zero, which ExecuTorch alone would lose."""
    module = module_of(forward, t=torch.full((4,), 2.0), u=torch.ones(4))
    check(module, (rand(4),), None, [(rand(4) + k,) for k in range(4)])


def test_a_state_that_goes_to_the_cpu_is_named():
    program = exports.export(module_of(cpu_reads_the_new_value, t=torch.zeros(4)), (rand(4),))
    rows = explain_program(program, SPLIT).on_cpu
    assert any("state 't'" in row.reason for row in rows)


# -- what is worth it ---------------------------------------------------------------------------


def places(function: Any, inputs: tuple[Any, ...], options: CompileOptions) -> dict[str, str]:
    program = exports.export(module_of(function), inputs)
    return {row.op: row.place for row in explain_program(program, options).rows}


def test_small_parts_stay_on_the_cpu_and_large_ones_do_not():
    rule = CompileOptions(operator_blocklist=["aten.cumsum.default"])

    def light(m, x):
        return x.cumsum(0).sigmoid().exp().cumsum(0)

    small, large = rand(16), torch.empty(1 << 20)
    assert places(light, (small,), rule)["aten.exp.default"] == "cpu"
    assert places(light, (large,), rule)["aten.exp.default"] == "wgpu 0"
    assert places(light, (small,), SPLIT)["aten.exp.default"] == "wgpu 0"
    # One addition moves more than it saves, at any size.
    one = places(lambda m, x: (x.cumsum(0) + x).cumsum(0), (large,), rule)
    assert one["aten.add.Tensor"] == "cpu"
    # A matrix product does not, and what is delegated whole never is too small.
    assert places(lambda m, x: (x @ x).cumsum(0), (rand(32, 32),), rule)["aten.mm.default"] != "cpu"
    assert places(lambda m, x: x + 1, (small,), rule)["aten.add.Tensor"] == "wgpu 0"
    assert set(places(lambda m, x: x[1:].reshape(3, 5), (small,), rule).values()) == {"wgpu 0"}
    assert places(lambda m, x: x[1:].cumsum(0), (large,), rule)["aten.slice_copy.Tensor"] == "cpu"


def test_the_reason_has_both_figures():
    rule = CompileOptions(operator_blocklist=["aten.cumsum.default"])
    program = exports.export(module_of(lambda m, x: x.cumsum(0).exp()), (rand(16),))
    (row,) = [r for r in explain_program(program, rule).on_cpu if "exp" in r.op]
    assert "too small" in row.reason and "150 us" in row.reason


def test_allow_and_block_lists():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    def on_cpu(**options: Any) -> set[tuple[str, str]]:
        program = exports.export(Two(), (rand(2, 4),))
        chosen = CompileOptions(call_cost_us=0, **options)
        rows = WgpuPartitioner(chosen).explain(program).on_cpu
        return {(row.op, row.modules) for row in rows}

    assert on_cpu() == set()
    assert ("aten.relu.default", "(top)") in on_cpu(operator_blocklist=["aten.relu.*"])
    blocked = on_cpu(module_blocklist=["second"])
    assert ("aten.addmm.default", "second") in blocked
    assert ("aten.addmm.default", "first") not in blocked
    allowed = on_cpu(module_allowlist=["fir*"])
    assert ("aten.addmm.default", "second") in allowed and not any(m == "first" for _, m in allowed)
    only = on_cpu(operator_allowlist=["aten.addmm.default"])
    assert ("aten.relu.default", "(top)") in only


def test_a_constant_used_by_both_sides_and_returned():
    def forward(m, x):
        return (x * m.w).cumsum(0) * m.w, (x + m.w).cumsum(0), m.v * x, m.v

    module = module_of(forward, w=rand(4), v=rand(4))
    check(module, (rand(4),))
    assert flat(module(rand(4)))[3] is not None


@pytest.mark.parametrize("form", ["returned", "read", "quantized on the CPU"])
def test_scales_in_f64_cross_on_the_cpu_alone(form):
    """A dynamic scale is an f32 in a delegate and f64 outside: all that takes it stays there."""
    import executorch.kernels.quantized  # noqa: F401  # the operators' out variants

    ops, byte = torch.ops.quantized_decomposed, (-128, 127, torch.int8)

    def forward(m, x):
        x = x * 2
        scale, point = ops.choose_qparams(x, -128, 127, 2**-12, torch.int8)
        y = ops.quantize_per_tensor(x, scale, point, *byte)
        y = ops.dequantize_per_tensor(y, scale, point, *byte) + 1
        if form == "returned":
            return y, scale
        return y + scale.to(torch.float32) if form == "read" else y

    blocked = ["quantized_decomposed.dequantize_per_tensor.tensor"] if "CPU" in form else []
    options = CompileOptions(call_cost_us=0, operator_blocklist=blocked)
    module, inputs = module_of(forward), (rand(3, 5),)
    lowered = lower(module, inputs, partitioner=[WgpuPartitioner(options)])
    left = exports.cpu_operators(lowered)
    assert sum("choose_qparams" in op or "quantize_per_tensor" in op for op in left) == 3
    assert exports.delegates(lowered) >= 1
    compare(load(lowered).execute(list(inputs)), flat(module(*inputs)))
