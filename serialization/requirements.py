"""What dispatches need of a device, read off the dispatch list itself.

The ahead-of-time side fills ``Program.features``/``limits`` and ``Route.features``/``limits``
with it; the verifier holds that they cover what is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .dispatch_list import Buffer, Dispatch, Kernel, Shader
from .limits import DEFAULT_LIMITS, EXTENSION_FEATURES

#: Sorted features, and sorted (limit, value) of the limits beyond WebGPU's defaults.
Needs = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]


def kernel_limits(kernel: Kernel) -> tuple[tuple[str, int], ...]:
    """The limits that a pipeline of ``kernel`` must stay within, as (name, value)."""
    x, y, z = kernel.workgroup_size
    return (
        ("max-storage-buffers-per-shader-stage", len(kernel.accesses)),
        ("max-compute-workgroup-size-x", x),
        ("max-compute-workgroup-size-y", y),
        ("max-compute-workgroup-size-z", z),
        ("max-compute-invocations-per-workgroup", math.prod(kernel.workgroup_size)),
        ("max-compute-workgroup-storage-size", kernel.workgroup_bytes),
    )


def device_needs(
    dispatches: Iterable[Dispatch],
    kernels: Sequence[Kernel],
    shaders: Sequence[Shader],
    buffers: Iterable[Buffer] = (),
) -> Needs:
    """Features and limits beyond WebGPU's defaults that ``dispatches`` need together, and that
    allocating ``buffers`` needs. Dispatches name kernels, and those shaders, by index.

    For a route that is not the last of its step: its own dispatches, and the buffers that they
    bind. For the program: the dispatches of the last route of every step with the buffers that
    they bind, and all of kind OUTPUT and STATE.
    """
    features: set[str] = set()
    limits: dict[str, int] = {}

    def raise_to(name: str, value: int) -> None:
        if value > DEFAULT_LIMITS[name]:
            limits[name] = max(value, limits.get(name, 0))

    seen: set[int] = set()
    for dispatch in dispatches:
        for binding in dispatch.bindings:
            raise_to("max-storage-buffer-binding-size", binding.size)
        if dispatch.kernel in seen:
            continue
        seen.add(dispatch.kernel)
        kernel = kernels[dispatch.kernel]
        features |= {EXTENSION_FEATURES[e] for e in shaders[kernel.shader].extensions}
        for name, value in kernel_limits(kernel):
            raise_to(name, value)
    for buffer in buffers:
        raise_to("max-buffer-size", buffer.size)
    return tuple(sorted(features)), tuple(sorted(limits.items()))
