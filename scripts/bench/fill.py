"""Random contents for a dispatch list without its weights."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from executorch_wgpu.serialization.dispatch_list import BufferKind, Program

_BINDING = re.compile(r"@group\(1\) @binding\((\d+)\) var<storage, \w+> \w+: array<([^;]+)>;")


def words_of(program: Program) -> dict[int, str]:
    """Buffer index -> "f32" where some kernel reads it as floats of 32 bits, else "words"."""
    found: dict[int, str] = {}
    elements: dict[int, dict[int, str]] = {}
    for step in program.steps:
        for route in step.routes:
            for dispatch in route.dispatches:
                shader = program.kernels[dispatch.kernel].shader
                if shader not in elements:
                    matches = _BINDING.findall(program.shaders[shader].wgsl)
                    elements[shader] = {int(slot): element for slot, element in matches}
                for slot, binding in enumerate(dispatch.bindings):
                    floats = "f32" in elements[shader].get(slot, "")
                    if floats or binding.buffer not in found:
                        found[binding.buffer] = "f32" if floats else "words"
    return found


def random_data(program: Program, seed: int = 0) -> Callable[[str], np.ndarray]:
    """A source of named data for ``WebGPUGraph``: normal numbers of deviation 0.02, and around 1
    where they are few, as the weights of norms are. What kernels read as words is f16 in pairs:
    finite as halves, and as good as any bits as packed integers; of deviation 0.004, so that codes
    of 4 bits times such scales have 0.02, too. (Larger weights make activations that no trained
    model has: half of SwiGLU's are 0.) A block of 4 M numbers is repeated, begun elsewhere each
    time: no two rows of a matrix are equal, which would make logits equal.
    """
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(1 << 22)
    blocks = {
        "f32": (normal * 0.02).astype(np.float32),
        "words": (normal * 0.004).astype(np.float16),
    }
    kinds = words_of(program)
    sizes: dict[str, int] = {}
    kind_of: dict[str, str] = {}
    for index, buffer in enumerate(program.buffers):
        if buffer.data_key and buffer.kind is not BufferKind.SCRATCH:
            end = buffer.size + buffer.data_offset
            sizes[buffer.data_key] = max(sizes.get(buffer.data_key, 0), end)
            kind = kinds.get(index)
            if kind is not None and kind_of.get(buffer.data_key) != "f32":
                kind_of[buffer.data_key] = kind

    def data(key: str) -> np.ndarray:
        kind, size = kind_of.get(key, "words"), sizes[key]
        if size < 1 << 16 and kind == "f32":
            some = 1 + 0.1 * rng.standard_normal(-(-size // 4))
            return some.astype(np.float32).view(np.uint8)[:size]
        block = blocks[kind]
        repeated = (np.roll(block, 7919 * i) for i in range(-(-size // block.nbytes)))
        return np.concatenate([part.view(np.uint8) for part in repeated])[:size]

    return data
