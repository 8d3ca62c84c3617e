"""A llama layer stored in f16 and bf16, through the .pte: arriving so, or converted by the recipe.

The reference is f32 eager on the rounded weights: eager in 16 bits rounds after each operator."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

from executorch_wgpu.backend import WgpuPartitioner
from executorch_wgpu.runtime import Runtime
from executorch_wgpu.scripts.recipes import llama
from executorch_wgpu.scripts.recipes.storage import StoredKVCache, store_weights

import exports
from harness import assert_close

HALVES = [torch.float16, torch.bfloat16]
STEPS = [7, 1, 1, 30, 1, 1]


def small_layer(fused: bool = False, dim: int = 36) -> llama.Layer:
    args = llama.model_args(
        dim=dim,
        n_heads=6,
        n_kv_heads=2,
        hidden_dim=44,
        max_seq_len=32,
        max_context_len=64,
    )
    return llama.random_layer(args, seed=3, fused=fused)


def method_of(layer: llama.Layer, dtype: torch.dtype, path: Path) -> Any:
    """One delegate and nothing else; activations at the boundary in ``dtype``."""
    x, position = llama.example_inputs(layer)
    program = exports.export(layer, (x.to(dtype), position), llama.dynamic_shapes(layer))
    lowered = to_edge_transform_and_lower(program, partitioner=[WgpuPartitioner()])
    assert exports.delegates(lowered) == 1 and exports.cpu_operators(lowered) == []
    lowered.to_executorch().save(str(path))
    return Runtime.get().load_program(path).load_method("forward")


@pytest.mark.parametrize(("dtype", "fused"), [(torch.float16, False), (torch.bfloat16, True)])
def test_a_layer_that_arrives_in_16_bits(dtype: torch.dtype, fused: bool, tmp_path: Path) -> None:
    layer = small_layer(fused).to(dtype)
    reference = copy.deepcopy(layer).float()
    path = tmp_path / "layer.pte"
    method = method_of(layer, dtype, path)
    assert {str(method.state.read(name).dtype) for name in method.state.names} == {
        {torch.float16: "float16", torch.bfloat16: "uint16"}[dtype]
    }
    generator = torch.Generator().manual_seed(0)
    position = 0
    for size in STEPS:
        x = torch.randn(1, size, 36, generator=generator).to(dtype)
        (y,) = method.execute([x, torch.tensor([position])])
        assert y.dtype == dtype
        with torch.no_grad():
            assert_close(y, reference(x.float(), torch.tensor([position])), 2e-3, 1e-2)
        position += size


@pytest.mark.parametrize(
    ("weights", "caches", "head_dim", "dispatches"),
    # A cache in 16 bits takes rotated keys as they come where heads are whole words of 8 bytes.
    [(*HALVES, 8, 6), (*HALVES[::-1], 6, 10)],
)
def test_a_layer_stored_in_16_bits_by_the_recipe(
    weights: torch.dtype, caches: torch.dtype, head_dim: int, dispatches: int, tmp_path: Path
) -> None:
    """f32 between the stored tensors: only the cache's own rounding is left."""
    layer = small_layer(dim=6 * head_dim)
    block = layer.block
    for module in block.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.to(weights)
    store_weights(block)
    attention = block.attention
    attention.kv_cache = StoredKVCache(64, 2, head_dim, caches)
    method = method_of(layer, torch.float32, tmp_path / "layer.pte")
    program = method.graph.program
    labels = [d.label for step in program.steps for d in step.routes[0].dispatches]
    assert not any("to_copy" in label for label in labels), labels
    assert len(labels) == dispatches, labels
    generator = torch.Generator().manual_seed(0)
    position = 0
    for size in STEPS:
        x = torch.randn(1, size, 6 * head_dim, generator=generator)
        (y,) = method.execute([x, torch.tensor([position])])
        with torch.no_grad():
            # Both round keys and values, of which a few differ in their last f32 place.
            assert_close(y, layer(x, torch.tensor([position])), 1e-3, 1e-3)
        position += size
