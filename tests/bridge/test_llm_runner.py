"""Whole llamas in the runtime of the wheel: ``executorch.extension.llm``'s TextLLMRunner, and
SmolLM2 by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from executorch.runtime import Runtime as Official

from executorch_wgpu.runtime import Runtime
from executorch_wgpu.scripts.recipes import llama, pte, smollm2, whole

PROMPT = "once upon a time there was"  # 26 tokens, in two calls of at most 16
NEW = 12


def letters() -> Any:
    """A tokenizer that has a token for every printable letter of ASCII."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = ["\u0120", *map(chr, range(33, 127))]  # the first is the space
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>"])
    return tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder with model.pte and tokenizer.json, the model, its tokenizer)."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = letters()
    tokenizer.save(str(folder / "tokenizer.json"))
    count = tokenizer.get_vocab_size()
    args = llama.model_args(
        dim=36,
        n_heads=6,
        n_kv_heads=2,
        hidden_dim=44,
        n_layers=2,
        vocab_size=count,
        max_seq_len=16,
        max_context_len=64,
    )
    model = whole.build(args, whole.random_weights(args, seed=3, std=0.3))
    text = SimpleNamespace(bos_id=count - 2, eos_ids=[count - 1], named_data=dict)
    pte.write(pte.lower(model, text), folder / "model.pte")
    return folder, model, tokenizer


def greedy(step: Any, prompt: list[int], chunk: int, count: int, stop: int | None) -> list[int]:
    """Token ids. ``step``: (tokens, position) -> logits of the last token."""
    position = 0
    while prompt:
        now, prompt = prompt[:chunk], prompt[chunk:]
        logits = step(now, position)
        position += len(now)
    found: list[int] = []
    while len(found) < count:
        token = int(np.argmax(logits))
        if token == stop:
            break
        found.append(token)
        logits = step([token], position)
        position += 1
    return found


def through(method: Any) -> Any:
    def step(tokens: list[int], position: int) -> Any:
        (logits,) = method.execute([torch.tensor([tokens]), torch.tensor([position])])
        return np.asarray(logits)[0, -1]

    return step


def test_text_llm_runner_generates_what_eager_does(tiny):
    folder, model, tokenizer = tiny
    model.reset()
    with torch.no_grad():
        want = greedy(
            lambda tokens, position: model(torch.tensor([tokens]), torch.tensor([position]))[0, -1],
            tokenizer.encode(PROMPT).ids,
            16,
            NEW,
            tokenizer.get_vocab_size() - 1,
        )
    assert len(want) == NEW and len(set(want)) > 3
    runner = TextLLMRunner(str(folder / "model.pte"), str(folder / "tokenizer.json"))
    config = GenerationConfig(echo=False, max_new_tokens=NEW, temperature=0.0)
    for _ in range(2):
        pieces: list[str] = []
        runner.generate(PROMPT, config, token_callback=pieces.append)
        assert "".join(pieces) == tokenizer.decode(want, skip_special_tokens=False)
        runner.reset()


@pytest.mark.slow
def test_smollm2_gives_the_same_tokens_in_both_runtimes(tmp_path: Path):
    from executorch_wgpu.scripts.recipes.checkpoints.gguf import open_gguf

    path = tmp_path / "smollm2.pte"
    checkpoint = open_gguf(smollm2.find_gguf())
    sizes = {"max_seq_len": 16, "max_context": 128}
    pte.export_checkpoint(checkpoint, path, dtype=torch.float16, methods=["forward"], **sizes)
    generator = np.random.default_rng(0)
    prompt = generator.integers(5, 40_000, 21).tolist()
    own = Runtime.get().load_program(path).load_method("forward")
    want = greedy(through(own), prompt, 16, 16, None)
    official = Official.get().load_program(path).load_method("forward")
    assert greedy(through(official), prompt, 16, 16, None) == want
