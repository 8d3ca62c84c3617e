"""Scratch buffers: shared when lifetimes do not meet, never otherwise."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from executorch_wgpu.backend.planner import plan_scratch
from executorch_wgpu.ops.builder import DispatchSpec, RouteSpec
from executorch_wgpu.ops.call import Origin
from executorch_wgpu.ops.tensor import Storage
from executorch_wgpu.serialization.dispatch_list import BufferKind


def steps(uses: list[set[int]], sizes: list[int]) -> tuple[list[list[RouteSpec]], list[Storage]]:
    storages = [Storage(BufferKind.SCRATCH, size, f"s{k}") for k, size in enumerate(sizes)]

    def dispatch(used: set[int]) -> DispatchSpec:
        bindings = tuple((storages[k], 0, storages[k].size_bytes) for k in sorted(used))
        return DispatchSpec("", (), "main", (), (), (1, 1, 1), 0, bindings, (1, 1, 1), "", Origin())

    return [[RouteSpec("", [dispatch(used)])] for used in uses], storages


@given(
    st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=20),
    st.lists(st.integers(4, 4096), min_size=8, max_size=8),
)
def test_members_of_a_group_are_never_alive_together(uses, sizes):
    routes, storages = steps(uses, sizes)
    groups = plan_scratch(routes)
    life = {
        storage: [at for at, used in enumerate(uses) if k in used]
        for k, storage in enumerate(storages)
    }
    assert {s for g in groups for s in g} == {s for s, at in life.items() if at}
    for group in groups:
        spans = sorted((life[s][0], life[s][-1]) for s in group)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))


def test_a_chain_needs_two_buffers():
    routes, _ = steps([{k, k + 1} for k in range(7)], [64] * 8)
    assert len(plan_scratch(routes)) == 2
