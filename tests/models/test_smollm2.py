"""SmolLM2-135M with its real weights: text, logits and perplexity as in eager. Its first layers
here, the whole model in the slow suite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from executorch_wgpu.runtime.generate import TextGenerator
from executorch_wgpu.scripts.cli import main
from executorch_wgpu.scripts.perplexity import perplexity
from executorch_wgpu.scripts.recipes import pte, smollm2, whole
from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint, gguf
from executorch_wgpu.scripts.recipes.packed import Packer
from executorch_wgpu.scripts.text import Text, load_text

import model_runs as runs

CHUNK, CONTEXT = 128, 512

STORY = (
    "Once upon a time, in a small village by the sea, there lived an old clockmaker who had never "
    "been late for anything in his life. Every morning he walked along the harbour at six, bought "
    "two loaves of bread and a bottle of milk, and was back at his bench before the church bell "
    "rang seven. The children of the village set their games by him, and the fishermen their nets. "
)

#: From one token to three chunks.
PROMPTS = [
    "The",
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    STORY,
    STORY * 3 + "One day, however, the clockmaker",
]


def checkpoint() -> Checkpoint:
    try:
        return gguf.open_gguf(smollm2.find_gguf())
    except FileNotFoundError as error:
        pytest.skip(str(error))


def build(layers: int, **options: Any) -> whole.Llama:
    source = checkpoint()
    args = source.model_args(n_layers=layers, max_seq_len=CHUNK, max_context_len=CONTEXT)
    return whole.build(args, source.weights, **options)


class Exported:
    """A file and its eager twin."""

    def __init__(
        self, path: Path, layers: int, methods: Sequence[str] = whole.METHODS, **options: Any
    ) -> None:
        self.path = path
        self.model = build(layers, **options)
        pte.write(pte.lower(self.model, checkpoint().text, methods=methods), path)
        text = load_text(path)
        assert text is not None
        self.text: Text = text

    def eager_logits(self, ids: list[int]) -> np.ndarray:
        """``[S, V]`` of a whole text at once."""
        self.model.reset()
        self.model.generate_full_logits = True
        try:
            return runs.eager_step(self.model, ids, 0)
        finally:
            self.model.generate_full_logits = False


@pytest.fixture(scope="module")
def first_layers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    yield Exported(tmp_path_factory.mktemp("smollm2") / "first.pte", 2)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    yield Exported(tmp_path_factory.mktemp("smollm2") / "complete.pte", smollm2.N_LAYERS)


def check_generation(exported: Exported, prompt: str, count: int, chunk: int) -> float:
    """Every token that is generated is the one that eager would have chosen after those before
    it, and the logits that it was chosen by are eager's. Returns their largest error."""
    generator = TextGenerator(
        exported.path, exported.text, prefill_chunk=chunk, sample_on_host=True
    )
    seen: list[np.ndarray] = []
    choose = generator.model.choose

    def remember(output: Any, *rest: Any) -> int:
        seen.append(output.reshape(-1).copy())
        return choose(output, *rest)

    generator.model.choose = remember  # type: ignore[method-assign]
    result = generator.generate(prompt, count, ignore_eos=True)
    assert len(result.token_ids) == len(seen) == count
    ids = exported.text.encode(prompt)
    expected = exported.eager_logits(ids + result.token_ids[:-1])[len(ids) - 1 :]
    worst = 0.0
    for token, found, right in zip(result.token_ids, seen, expected, strict=True):
        assert token == found.argmax()
        worst = max(worst, runs.assert_logits(found, right))
        runs.assert_same_choice(found, right)
    return worst


@pytest.mark.parametrize("chunk", [CHUNK, 1])
@pytest.mark.parametrize("prompt", [1, 3])
def test_first_layers(first_layers: Exported, prompt: int, chunk: int) -> None:
    check_generation(first_layers, PROMPTS[prompt][:100], 4, chunk)


#: Temperature, top_p and top_k.
SETTINGS = [(0.0, 1.0, 0), (0.8, 0.9, 0), (1.2, 0.95, 40)]


def check_loop(exported: Exported, prompt: str, count: int) -> None:
    """Tokens chosen on the GPU, with two steps in flight or one, are those that the host chooses
    of the logits."""
    results = []
    for options in ({"sample_on_host": True}, {}, {"pipelined": False}):
        generator = TextGenerator(exported.path, exported.text, **options)
        assert (
            generator.model.samples
            is generator.model.feeds_back
            is not bool(options.get("sample_on_host"))
        )
        for heat, top_p, top_k in SETTINGS:
            result = generator.generate(
                prompt, count, temperature=heat, top_p=top_p, top_k=top_k, seed=4, ignore_eos=True
            )
            results.append(result.token_ids)
    settings = len(SETTINGS)
    assert len({tuple(ids) for ids in results}) == settings
    for number, ids in enumerate(results):
        assert ids == results[number % settings]


def test_the_loop_of_the_first_layers(first_layers: Exported) -> None:
    check_loop(first_layers, PROMPTS[1], 8)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
def test_the_complete_loop(complete: Exported, prompt: int) -> None:
    check_loop(complete, PROMPTS[prompt], 64)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [CHUNK, 1])
@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
def test_complete(complete: Exported, prompt: int, chunk: int) -> None:
    error = check_generation(complete, PROMPTS[prompt], 64, chunk)
    print(f"prompt {prompt}, chunks of {chunk}: largest error {error:.2e}")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_storage(dtype: torch.dtype, tmp_path: Path) -> None:
    """Against f32 eager on the rounded weights."""
    exported = Exported(tmp_path / "half.pte", smollm2.N_LAYERS, ["forward"], dtype=dtype)
    for prompt in (1, 4):
        error = check_generation(exported, PROMPTS[prompt], 32, CHUNK)
        print(f"{dtype}, prompt {prompt}: largest error {error:.2e}")


def kept_blocks(path: Path, layers: int) -> Exported:
    """The file's blocks packed as they are, beside f32 eager on their values."""
    exported = Exported(path, layers, ["forward"], pack=Packer("keep", "keep"))
    exported.model = build(layers)
    return exported


def test_first_layers_of_blocks(tmp_path: Path) -> None:
    check_generation(kept_blocks(tmp_path / "blocks.pte", 2), PROMPTS[1], 4, CHUNK)


@pytest.mark.slow
def test_blocks(tmp_path: Path) -> None:
    exported = kept_blocks(tmp_path / "blocks.pte", smollm2.N_LAYERS)
    assert exported.path.stat().st_size <= 1.1 * smollm2.find_gguf().stat().st_size
    for number, prompt in enumerate(PROMPTS[:5]):
        error = check_generation(exported, prompt, 32, CHUNK)
        print(f"prompt {number}: largest error {error:.2e}")


@pytest.mark.slow
def test_it_knows_the_capital(complete: Exported) -> None:
    generator = TextGenerator(complete.path, complete.text)
    assert generator.generate(PROMPTS[1], 8).text.startswith(" Paris.")
    chat = complete.text.chat([{"role": "user", "content": "What is the capital of France?"}])
    result = generator.generate(chat, 24)
    assert (result.text, result.finish) == ("The capital of France is Paris.", "stop")


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "keep"])
def test_perplexity(quantize: str, tmp_path: Path) -> None:
    """Of a fixed text, as of eager in f32."""
    model, source = build(smollm2.N_LAYERS), checkpoint()
    model.generate_full_logits = True
    path, text = tmp_path / "all.pte", tmp_path / "text.txt"
    packed = build(smollm2.N_LAYERS, pack=Packer(quantize, quantize))
    packed.generate_full_logits = True
    pte.write(pte.lower(packed, source.text, methods=["forward"]), path)
    text.write_text(STORY + PROMPTS[2])
    result = CliRunner().invoke(main, ["eval", str(path), "--text", str(text), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert source.text is not None
    model.reset()
    expected = perplexity(
        lambda tokens, position: runs.eager_step(model, tokens, position),
        Text(source.text).encode(text.read_text()),
        window=CONTEXT,
        chunk=CONTEXT,
    )
    print(f"perplexity {found['perplexity']:.5f}, eager {expected.perplexity:.5f}")
    assert found["tokens"] == expected.tokens
    assert found["perplexity"] == pytest.approx(expected.perplexity, rel=1e-3)


def test_the_recipe_of_one_layer_is_the_whole_models() -> None:
    """The layer that the demo runs is that of the whole model."""
    model, layer = build(2), smollm2.load_layer(1)
    x, position = torch.randn(1, 5, smollm2.DIM), torch.tensor([0])
    freqs = model.rope.get_freqs(position, 5)
    with torch.no_grad():
        expected, _ = model.layers[1](x, *freqs, {"input_pos": position})
        torch.testing.assert_close(layer(x, position), expected)
