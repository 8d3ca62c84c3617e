"""Checkpoints of every format give the logits of the same model written down anew."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from executorch_wgpu.scripts.recipes import checkpoints, whole
from executorch_wgpu.scripts.recipes.checkpoints import UnsupportedModelError, hf, meta
from executorch_wgpu.scripts.recipes.checkpoints import gguf as gguf_files

import model_files as files
import model_reference as reference

TOKENS = torch.tensor([3, 39, 0, 17, 17, 8, 25, 1, 30, 2, 11, 5, 20])
MIX = [5, 1, 1, 6]

#: A theta that puts frequencies below, within and above the range that is smoothed.
SCALED = {"rope_scaling": reference.LLAMA3_SCALING, "rope_theta": 5e5, "head_dim": 8}


def logits_of(checkpoint: checkpoints.Checkpoint, **options: Any) -> torch.Tensor:
    """Of every token, through prefill and single steps."""
    args = checkpoint.model_args(max_seq_len=8, max_context_len=16, generate_full_logits=True)
    model = whole.build(args, checkpoint.weights, **options)
    parts, position = [], 0
    with torch.no_grad():
        for count in MIX:
            tokens = TOKENS[None, position : position + count]
            parts.append(model(tokens, torch.tensor([position])))
            position += count
    return torch.cat(parts, 1)[0]


def check(checkpoint: checkpoints.Checkpoint, c: dict[str, Any], weights: Any) -> None:
    expected = reference.logits(weights, c, TOKENS)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits_of(checkpoint).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", SCALED),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {}),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_hf(kind: str, overrides: dict[str, Any], shards: int, tmp_path: Path) -> None:
    c = reference.config(kind, **overrides)
    weights = reference.random_weights(c)
    checkpoint = hf.open_hf(files.write_hf(tmp_path, c, weights, shards=shards))
    assert checkpoint.dtype is torch.float32 and checkpoint.context == 64
    check(checkpoint, c, weights)


def test_hf_fused_projections_and_partial_rotation(tmp_path: Path) -> None:
    """phi3: q, k and v are one tensor, gate and up another, half of each head rotates."""
    c = reference.config("phi3", partial_rotary_factor=0.5)
    weights = reference.random_weights(c)
    fused = dict(weights)
    for i in range(2):
        for name, parts in (
            ("self_attn.qkv_proj", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            ("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"]),
        ):
            rows = [fused.pop(f"model.layers.{i}.{part}.weight") for part in parts]
            fused[f"model.layers.{i}.{name}.weight"] = torch.cat(rows)
    check(hf.open_hf(files.write_hf(tmp_path, c, fused)), c, weights)


@pytest.mark.parametrize("scaled", [False, True])
def test_meta(scaled: bool, tmp_path: Path) -> None:
    c = reference.config("llama", **(SCALED if scaled else {}))
    weights = reference.random_weights(c)
    params: dict[str, Any] = {"use_scaled_rope": True} if scaled else {}
    # Meta's files do not say how wide a head is.
    dim = c["num_attention_heads"] * c["head_dim"]
    if dim != c["hidden_size"]:
        params["head_dim"] = c["head_dim"]
    checkpoint = meta.open_meta(*files.write_meta(tmp_path, c, weights, **params))
    check(checkpoint, c, weights)


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [("llama", {}), ("llama", SCALED), ("qwen2", {"tie_word_embeddings": True}), ("qwen3", {})],
)
def test_gguf(kind: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    c = reference.config(kind, **overrides)
    weights = reference.random_weights(c)
    checkpoint = gguf_files.open_gguf(files.write_gguf(tmp_path / "tiny.gguf", c, weights))
    assert (checkpoint.name, checkpoint.context, checkpoint.text) == ("tiny", 64, None)
    check(checkpoint, c, weights)


@pytest.mark.parametrize(
    ("kind", "dtype", "rtol"),
    [("F16", torch.float16, 1e-3), ("BF16", torch.bfloat16, 1e-2), ("Q8_0", torch.float32, 2e-2)],
)
def test_gguf_dtypes(kind: str, dtype: torch.dtype, rtol: float, tmp_path: Path) -> None:
    c = reference.config("llama", hidden_size=64, intermediate_size=32, head_dim=16)
    c |= {"num_attention_heads": 4}
    weights = reference.random_weights(c)
    path = files.write_gguf(
        tmp_path / "tiny.gguf", c, weights, kind=gguf.GGMLQuantizationType[kind]
    )
    checkpoint = gguf_files.open_gguf(path)
    assert checkpoint.dtype is dtype
    name = "layers.1.feed_forward.w2.weight"
    found = checkpoint.weights[name]()
    assert found.dtype is dtype
    expected = weights["model.layers.1.mlp.down_proj.weight"]
    torch.testing.assert_close(found.float(), expected, rtol=rtol, atol=rtol * 0.3)


# -- storage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_storage_computes_in_f32(dtype: torch.dtype, tmp_path: Path) -> None:
    """The logits are those of the f32 model with rounded matrices, not of half arithmetic."""
    c = reference.config("qwen2")
    weights = reference.random_weights(c)
    checkpoint = hf.open_hf(files.write_hf(tmp_path, c, weights))
    rounded = {n: t.to(dtype).float() if t.ndim == 2 else t for n, t in weights.items()}
    expected = reference.logits(rounded, c, TOKENS)
    found = logits_of(checkpoint, dtype=dtype).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # A cache of half precision rounds k and v.
    cached = logits_of(checkpoint, dtype=dtype, kv_dtype=dtype).double()
    assert not torch.allclose(cached, expected, atol=1e-5)
    torch.testing.assert_close(cached, expected, rtol=0.1, atol=0.1)


def test_weights_of_the_right_dtype_are_not_copied(tmp_path: Path) -> None:
    c = reference.config("qwen3")
    half = {n: t.half() for n, t in reference.random_weights(c).items()}
    checkpoint = hf.open_hf(files.write_hf(tmp_path, c, half))
    assert checkpoint.dtype is torch.float16
    args = checkpoint.model_args(max_seq_len=8, max_context_len=16)
    made: list[torch.Tensor] = []

    def remember(make: Any) -> Any:
        def call() -> torch.Tensor:
            made.append(make())
            return made[-1]

        return call

    weights = {name: remember(make) for name, make in checkpoint.weights.items()}
    model = whole.build(args, weights, dtype=checkpoint.dtype)
    ours = {parameter.data_ptr() for parameter in model.parameters()}
    assert all(tensor.data_ptr() in ours for tensor in made if tensor.ndim == 2)


def test_tied_weights_are_one(tmp_path: Path) -> None:
    c = reference.config("llama", tie_word_embeddings=True)
    checkpoint = hf.open_hf(files.write_hf(tmp_path, c, reference.random_weights(c)))
    model = whole.build(checkpoint.model_args(max_seq_len=8), checkpoint.weights)
    assert model.output.weight is model.tok_embeddings.weight


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"attention_bias": True}, "biases"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'.*factor 4.0"),
        ({"rope_scaling": {**reference.LLAMA3_SCALING, "low_freq_factor": 2.0}}, "'llama3'"),
    ],
)
def test_hf_refuses(overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    c = reference.config("llama")
    weights = reference.random_weights(c)
    with pytest.raises(UnsupportedModelError, match=message):
        hf.open_hf(files.write_hf(tmp_path, c | overrides, weights))


def test_a_tensor_without_a_place(tmp_path: Path) -> None:
    c = reference.config("llama")
    weights = reference.random_weights(c)
    weights["model.layers.0.self_attn.sinks"] = torch.zeros(6)
    with pytest.raises(UnsupportedModelError, match="sinks"):
        hf.open_hf(files.write_hf(tmp_path, c, weights))
    with pytest.raises(FileNotFoundError, match="safetensors"):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "config.json").write_text((tmp_path / "config.json").read_text())
        hf.open_hf(tmp_path / "empty")


def test_missing_and_misshapen_weights() -> None:
    args = checkpoints.llama.model_args(dim=8, n_heads=2, n_kv_heads=1, hidden_dim=12)
    weights = whole.random_weights(args)
    lost = {name: make for name, make in weights.items() if name != "norm.weight"}
    with pytest.raises(ValueError, match=r"1 weights are missing, such as 'norm\.weight'"):
        whole.build(args, lost)
    with pytest.raises(ValueError, match=r"'norm\.weight' is \[3\], expected \[8\]"):
        whole.build(args, {**weights, "norm.weight": lambda: torch.zeros(3)})


def test_a_weight_that_the_model_would_not_use() -> None:
    """Such as a bias that the configuration does not mention. Later layers may be left out."""
    args = checkpoints.llama.model_args(
        dim=8, n_heads=2, n_kv_heads=1, hidden_dim=12, n_layers=2, attention_qkv_bias=True
    )
    weights = whole.random_weights(args)
    whole.build(dataclasses.replace(args, n_layers=1), weights)
    with pytest.raises(ValueError, match=r"3 weights have no place, such as 'layers\.0.*bias'"):
        whole.build(dataclasses.replace(args, n_layers=1, attention_qkv_bias=False), weights)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "'yarn'"),
        (lambda w: w.add_expert_count(8), "experts"),
        (lambda w: w.add_rope_dimension_count(2), "a part of each head"),
    ],
)
def test_gguf_refuses(extra: Any, message: str, tmp_path: Path) -> None:
    c = reference.config("llama")
    path = files.write_gguf(tmp_path / "tiny.gguf", c, reference.random_weights(c), extra=extra)
    with pytest.raises(UnsupportedModelError, match=message):
        gguf_files.open_gguf(path)


def test_meta_refuses_unknown_fields(tmp_path: Path) -> None:
    c = reference.config("llama")
    paths = files.write_meta(tmp_path, c, reference.random_weights(c), flux=1)
    with pytest.raises(ValueError, match="flux"):
        meta.open_meta(*paths)
    paths[1].write_text('{"dim": 24, "n_heads": 6}')
    with pytest.raises(ValueError, match="does not say n_layers"):
        meta.open_meta(*paths)
    (tmp_path / "consolidated.01.pth").touch()
    paths[1].write_text('{"dim": 24, "n_heads": 6, "n_layers": 2}')
    with pytest.raises(UnsupportedModelError, match="several files"):
        meta.open_meta(*paths)


def test_malformed_files(tmp_path: Path) -> None:
    c = reference.config("llama")
    files.write_hf(tmp_path, {"model_type": "llama"}, reference.random_weights(c))
    with pytest.raises(ValueError, match=r"config\.json has no 'num_attention_heads'"):
        hf.open_hf(tmp_path)
    files.write_hf(tmp_path, c, reference.random_weights(c))
    (tmp_path / "model.safetensors").write_bytes(b"no such thing" * 9)
    with pytest.raises(ValueError, match="no safetensors file"):
        hf.open_hf(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"no such thing" * 9)
    with pytest.raises(ValueError, match="GGUF"):
        gguf_files.open_gguf(tmp_path / "x.gguf")
