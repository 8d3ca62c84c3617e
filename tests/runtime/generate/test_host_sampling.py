"""Sampling on the host against its definition, and tokenizers against their protocol."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.runtime.generate.sampling import sample, uniform
from executorch_wgpu.runtime.generate.tokenizer import as_tokenizer, eos_ids

LOGITS = np.log(np.array([0.05, 0.4, 0.15, 0.3, 0.1], np.float32))


def drawn(count: int = 4000, **options: Any) -> dict[int, float]:
    """The share of each token over ``count`` positions."""
    options = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 7, **options}
    tokens = [sample(LOGITS, position=i, **options) for i in range(count)]
    return {k: v / count for k, v in sorted(collections.Counter(tokens).items())}


def assert_shares(found: dict[int, float], expected: dict[int, float]) -> None:
    assert found.keys() == expected.keys()
    for token, share in expected.items():
        assert abs(found[token] - share) < 0.03


def test_uniform() -> None:
    many = np.array([uniform(s, p) for s in range(40) for p in range(500)])
    assert many.min() >= 0 and many.max() < 1
    counts, _ = np.histogram(many, 16, (0, 1))
    assert abs(counts / len(many) * 16 - 1).max() < 0.1
    assert len(set(many[:500])) == 500
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.03
    assert all(float(np.float32(u)) == u for u in many[:100])
    assert [uniform(0, 0), uniform(-1, 3)] == [uniform(0, 0), uniform(2**32 - 1, 3)]


def test_temperature() -> None:
    assert_shares(drawn(), {0: 0.05, 1: 0.4, 2: 0.15, 3: 0.3, 4: 0.1})
    squared = np.exp(LOGITS * 2) / np.exp(LOGITS * 2).sum()
    assert_shares(drawn(temperature=0.5), dict(enumerate(map(float, squared))))
    assert drawn(temperature=0.0) == {1: 1.0}
    assert drawn(temperature=1e-6) == {1: 1.0}


def test_top_k() -> None:
    assert_shares(drawn(top_k=2), {1: 4 / 7, 3: 3 / 7})
    assert drawn(top_k=1) == {1: 1.0}
    assert drawn(top_k=5) == drawn(top_k=99) == drawn()


def test_top_p() -> None:
    assert drawn(top_p=0.4) == drawn(top_p=1e-9) == {1: 1.0}
    assert_shares(drawn(top_p=0.5), {1: 4 / 7, 3: 3 / 7})
    assert_shares(drawn(top_p=0.8), {1: 0.4 / 0.85, 2: 0.15 / 0.85, 3: 0.3 / 0.85})
    # Of what top_k keeps: 4/7 and 3/7.
    assert drawn(top_k=2, top_p=0.5) == {1: 1.0}


def test_ties_are_kept_together() -> None:
    flat = np.zeros(4, np.float32)
    found = {sample(flat, 1.0, 0.1, 1, 3, i) for i in range(100)}
    assert found == {0, 1, 2, 3}
    assert sample(flat, 0.0, 1.0, 0, 0, 0) == 0


def test_extremes() -> None:
    for row, expected in (
        ([np.nan, 1.0, 0.0], 1),
        ([-np.inf, -np.inf, -1e30], 2),
        ([3e38, -3e38, 0.0], 0),
    ):
        for temperature in (0.0, 0.01):
            assert sample(np.array(row, np.float32), temperature, 0.9, 2, 5, 9) == expected
    half = np.array([0, 9, 1], np.float16)
    assert sample(half, 0.1, 1.0, 0, 1, 1) == 1


def test_tokenizers() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"hello": 0, "world": 1, "?": 2}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    adapted = as_tokenizer(plain)
    assert adapted.encode("hello world hello") == [0, 1, 0]
    assert adapted.decode([1, 0]) == "world hello"
    assert eos_ids(adapted) == frozenset()


def test_other_tokenizers() -> None:
    class WithFlags:
        """As pytorch_tokenizers has them."""

        eos_id = 3
        eos_token_id = (4, 5)

        def encode(self, s: str, *, bos: bool, eos: bool) -> list[int]:
            assert not bos and not eos
            return [len(s)]

        def decode(self, ids: list[int]) -> str:
            return "x" * sum(ids)

        def apply_chat_template(self, messages: list[str]) -> str:
            return "\n".join(messages)

    adapted = as_tokenizer(WithFlags())
    assert adapted.encode("abc") == [3]
    assert adapted.decode([1, 2]) == "xxx"
    assert eos_ids(adapted) == {3, 4, 5}
    assert adapted.apply_chat_template(["a", "b"]) == "a\nb"  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match="the tokenizer object has no encode"):
        as_tokenizer(object())
