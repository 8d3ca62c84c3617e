"""Passes over operator chains: one file a pattern, with the subgraph before and after."""

from __future__ import annotations

from executorch_wgpu.backend.passes.dead_code import drop_dead_calls
from executorch_wgpu.backend.passes.fold_constants import fold_scalar_constants
from executorch_wgpu.backend.passes.fuse_quantized import fuse_quantized
from executorch_wgpu.backend.passes.fuse_rms_norm import fuse_rms_norm
from executorch_wgpu.backend.passes.fuse_rope import fuse_rope
from executorch_wgpu.backend.passes.source_handles import note_source_handles
from executorch_wgpu.ops.call import OpChain

#: In order. Each takes a chain and changes it in place.
PASSES = (
    fold_scalar_constants,
    drop_dead_calls,
    fuse_quantized,
    fuse_rms_norm,
    fuse_rope,
    drop_dead_calls,
)


def run_passes(chain: OpChain) -> OpChain:
    """Apply every pass; returns the same chain."""
    before = list(chain.calls)
    for apply in PASSES:
        apply(chain)
    note_source_handles(before, chain)
    return chain
