"""A small llama layer in edge dialect, exported once."""

from __future__ import annotations

import pytest

from executorch_wgpu.scripts.recipes import llama

import exports


def small_layer(*, fused: bool = False, seed: int = 0):
    """One layer with grouped heads, sizes that are multiples of nothing, and a short cache."""
    args = llama.model_args(
        dim=36, n_heads=6, n_kv_heads=2, hidden_dim=44, max_seq_len=16, max_context_len=40
    )
    return llama.random_layer(args, seed, fused=fused)


@pytest.fixture(scope="session")
def layer_edge():
    layer = small_layer()
    return exports.edge(layer, llama.example_inputs(layer), llama.dynamic_shapes(layer))
