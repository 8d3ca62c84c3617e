"""Memory planning: scratch tensors whose lifetimes do not meet share a buffer."""

from __future__ import annotations

from collections.abc import Sequence

from executorch_wgpu.ops.builder import RouteSpec
from executorch_wgpu.ops.tensor import Storage
from executorch_wgpu.serialization.dispatch_list import BufferKind


def plan_scratch(steps: Sequence[Sequence[RouteSpec]]) -> list[list[Storage]]:
    """Groups of SCRATCH storages, each group for one buffer of its largest member's size.

    A storage lives from the first to the last step that binds it, over all routes of those
    steps. Two that live in one step never share a buffer, not even disjoint parts of it: in one
    dispatch WebGPU tracks usage by buffer. Greedy by first use: the free buffer that needs to
    grow the least is taken, which is optimal for chains and near it for what transformers do.
    """
    lifetime: dict[Storage, tuple[int, int]] = {}
    for at, routes in enumerate(steps):
        for route in routes:
            for dispatch in route.dispatches:
                for storage, _, _ in dispatch.bindings:
                    if storage.kind is BufferKind.SCRATCH:
                        first, _ = lifetime.get(storage, (at, at))
                        lifetime[storage] = (first, at)
    groups: list[list[Storage]] = []
    sizes: list[int] = []
    free_after: list[int] = []
    for storage, (first, last) in sorted(lifetime.items(), key=lambda item: item[1][0]):
        free = [g for g in range(len(groups)) if free_after[g] < first]
        if free:
            # Smallest growth first, then the tightest fit.
            size = storage.size_bytes
            best = min(free, key=lambda g: (max(size - sizes[g], 0), sizes[g]))
            groups[best].append(storage)
            sizes[best] = max(sizes[best], size)
            free_after[best] = last
        else:
            groups.append([storage])
            sizes.append(storage.size_bytes)
            free_after.append(last)
    return groups
