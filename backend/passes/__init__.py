"""Passes over operator chains: one file a pattern, with the subgraph before and after."""

from __future__ import annotations

from collections.abc import Callable, Collection

from executorch_wgpu.backend.passes.dead_code import drop_dead_calls
from executorch_wgpu.backend.passes.drop_views import drop_views
from executorch_wgpu.backend.passes.fold_casts import fold_casts
from executorch_wgpu.backend.passes.fold_constants import fold_scalar_constants
from executorch_wgpu.backend.passes.fold_quantize import fold_quantize
from executorch_wgpu.backend.passes.fold_row_scales import fold_row_scales
from executorch_wgpu.backend.passes.fuse_epilogue import fuse_epilogue
from executorch_wgpu.backend.passes.fuse_gates import fuse_gates
from executorch_wgpu.backend.passes.fuse_norm import fuse_norm
from executorch_wgpu.backend.passes.fuse_pointwise import fuse_pointwise
from executorch_wgpu.backend.passes.fuse_quantized import fuse_quantized
from executorch_wgpu.backend.passes.fuse_rms_norm import fuse_rms_norm
from executorch_wgpu.backend.passes.fuse_rope import fuse_rope
from executorch_wgpu.backend.passes.fuse_rope_attention import fuse_rope_attention
from executorch_wgpu.backend.passes.fuse_rope_cache import fuse_rope_cache
from executorch_wgpu.backend.passes.join_linears import join_linears
from executorch_wgpu.backend.passes.keep_f32 import keep_f32
from executorch_wgpu.backend.passes.make_linear import make_linear
from executorch_wgpu.backend.passes.merge_quantize import merge_quantize
from executorch_wgpu.backend.passes.source_handles import note_source_handles
from executorch_wgpu.backend.passes.split_sdpa import split_sdpa
from executorch_wgpu.ops.call import OpChain

#: In order. Each takes a chain and changes it in place; what it leaves dead is dropped after it.
PASSES: tuple[Callable[[OpChain], None], ...] = (
    fold_scalar_constants,
    fold_quantize,
    fuse_quantized,
    merge_quantize,
    keep_f32,
    drop_views,
    fold_casts,
    fuse_rms_norm,
    fuse_rope,
    make_linear,
    fold_row_scales,
    fuse_pointwise,
    fuse_gates,
    fuse_epilogue,
    join_linears,
    fuse_norm,
    split_sdpa,
    fuse_rope_cache,
    fuse_rope_attention,
)

#: What may be switched off, to measure what it brings: results stay the same.
OPTIONAL = tuple(apply.__name__ for apply in PASSES if apply is not fuse_quantized)


def run_passes(chain: OpChain, skip: Collection[str] = ()) -> OpChain:
    """Apply every pass but those named in ``skip``; returns the same chain. Raises ValueError for
    a name that is not in OPTIONAL."""
    unknown = sorted(set(skip) - set(OPTIONAL))
    if unknown:
        raise ValueError(f"no optional pass {unknown[0]!r}; there are: {', '.join(OPTIONAL)}")
    drop_dead_calls(chain)
    for apply in PASSES:
        if apply.__name__ not in skip:
            before = list(chain.calls)
            apply(chain)
            drop_dead_calls(chain)
            note_source_handles(before, chain)
    return chain
