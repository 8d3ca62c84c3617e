"""Perplexity of a text, the same for whatever computes the logits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: ``(tokens, position) -> logits [S, V]`` of these tokens, given those before ``position``.
Step = Callable[[Sequence[int], int], Any]


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """``tokens``: how many were predicted. ``nll``: mean negative log likelihood, in nats."""

    tokens: int
    nll: float

    @property
    def perplexity(self) -> float:
        """``exp(nll)``."""
        return math.exp(self.nll)


def perplexity(
    step: Step,
    ids: Sequence[int],
    *,
    window: int,
    chunk: int,
    advance: Callable[[float], None] = lambda amount: None,
) -> Perplexity:
    """How well each token of a text is predicted by those before it in its window.

    Args:
        step: computes logits.
        ids: the text. Windows do not overlap; each is computed from position 0.
        window: tokens of a window.
        chunk: most tokens of a call of ``step``.
        advance: called with the number of tokens done since the last call.

    Raises ValueError for fewer than two tokens.
    """
    if len(ids) < 2:
        raise ValueError(f"a text of {len(ids)} tokens: nothing to predict")
    total, count = 0.0, 0
    for start in range(0, len(ids), window):
        part = ids[start : start + window]
        for position in range(0, len(part), chunk):
            tokens = part[position : position + chunk]
            targets = part[position + 1 : position + 1 + len(tokens)]
            logits = np.asarray(step(tokens, position), np.float64)[: len(targets)]
            if len(targets):
                top = logits.max(-1, keepdims=True)
                logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
                total -= float(logs[np.arange(len(targets)), list(targets)].sum())
                count += len(targets)
            advance(len(tokens))
    return Perplexity(count, total / count)
