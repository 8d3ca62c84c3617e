"""Whole models exported, run and compared with eager, token for token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.examples.models.llama.model_args import ModelArgs

from executorch_wgpu.runtime import Runtime
from executorch_wgpu.scripts.recipes import llama, pte, whole
from executorch_wgpu.serialization.dispatch_list import BufferKind

#: A logit is right when it is within either of these of eager's.
ABSOLUTE = RELATIVE = 1e-3


def tiny_args(**overrides: Any) -> ModelArgs:
    """Two layers with heads and widths that fill no tile."""
    sizes = {"dim": 36, "n_heads": 6, "n_kv_heads": 2, "hidden_dim": 44, "n_layers": 2}
    bounds = {"vocab_size": 75, "max_seq_len": 16, "max_context_len": 40}
    return llama.model_args(**{**sizes, **bounds, **overrides})


def export(args: ModelArgs, path: Path, **options: Any) -> whole.Llama:
    """A model with random weights, and its ``forward`` in a ``.pte`` at ``path``. ``options``: of
    whole.build."""
    model = whole.build(args, whole.random_weights(args), **options)
    pte.write(pte.lower(model, methods=["forward"]), path)
    return model


def load(path: Path) -> Any:
    """The method ``forward``."""
    return Runtime.get().load_program(path).load_method("forward")


def tokens_of(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Random ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (count,), generator=generator).tolist()


def eager_step(model: whole.Llama, tokens: Sequence[int], position: int) -> np.ndarray:
    """Logits ``[rows, V]`` of eager."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)]), torch.tensor([position]))[0].numpy()


def step(method: Any, tokens: Sequence[int], position: int) -> np.ndarray:
    """Logits ``[rows, V]`` of a loaded method."""
    (logits,) = method.execute([np.array([list(tokens)]), np.array([position])])
    return logits[0]


def assert_logits(found: np.ndarray, expected: np.ndarray, tolerance: float = ABSOLUTE) -> float:
    """The largest error; fails where an element is right by neither measure."""
    assert found.shape == expected.shape
    error = np.abs(found - expected)
    wrong = ~((error <= tolerance) | (error <= tolerance * np.abs(expected)))
    assert not wrong.any(), (
        f"off by {error[wrong].max():.2e} where {expected[wrong][0]:.3f} is right"
    )
    return float(error.max())


def assert_same_choice(
    found: np.ndarray, expected: np.ndarray, tolerance: float = ABSOLUTE
) -> None:
    """The most likely token is the same, but where eager's two best are that close."""
    best, second = np.sort(expected)[-1], np.sort(expected)[-2]
    if found.argmax() != expected.argmax():
        gap = float(best - second)
        assert gap <= tolerance * max(1.0, abs(float(best))), (
            f"token {found.argmax()} for {expected.argmax()}, which leads by {gap:.2e}"
        )


def constant_dtypes(path: Path) -> dict[str, str]:
    """Storage of each constant of ``forward`` by its name, such as ``f16``."""
    program = Runtime.get().load_program(path).dispatch_list("forward")
    return {
        program.buffers[tensor.buffer].name: tensor.dtype.name.lower()
        for tensor in program.tensors
        if tensor.buffer >= 0 and program.buffers[tensor.buffer].kind is BufferKind.CONSTANT
    }


def compare_steps(
    model: whole.Llama, method: Any, mix: Sequence[int], tolerance: float = ABSOLUTE
) -> float:
    """The largest error over calls of these numbers of tokens, one after the other."""
    model.reset()
    tokens = tokens_of(sum(mix), model.vocab_size)
    worst, position = 0.0, 0
    for count in mix:
        part = tokens[position : position + count]
        expected = eager_step(model, part, position)
        worst = max(worst, assert_logits(step(method, part, position), expected, tolerance))
        position += count
    return worst


def compare_quantized(
    model: whole.Llama, method: Any, *, dynamic: bool = False, loose: float = 1e-3
) -> None:
    """Two prompts and a token between: errors are within ``loose`` of the largest logit.
    ``dynamic``: with 8-bit activations, of whose range a step is 1/255, within 3 %."""
    model.reset()
    tokens, position = tokens_of(9, model.vocab_size), 0
    for count in (5, 1, 3):
        part = tokens[position : position + count]
        expected = eager_step(model, part, position)
        most = float(np.abs(expected).max())
        found = step(method, part, position)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= (0.03 if dynamic else loose) * most
        position += count
