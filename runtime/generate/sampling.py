"""Choosing a token from logits on the host, for programs that do not do it on the GPU.

In this order: divide the logits by the temperature; keep the ``top_k`` largest; of those, in
falling order of probability, keep the ones before which less than ``top_p`` has been gathered;
draw. Tokens that tie with the last one kept are kept as well. A temperature of 0 takes the largest
logit, the first where several are equal.

The draw: a number ``u`` in [0, 1) picks the first token, in the order of the vocabulary, at which
the kept probabilities gathered so far exceed ``u`` times their sum. ``u`` is a function of the seed
and of the new token's position alone (the number of tokens before it), so that a result can be
reproduced whatever was cached, batched or interrupted.
"""

from __future__ import annotations

import numpy as np

from ..boundary import Array
from ..errors import InvalidInputError

_MASK = 0xFFFFFFFF


def check_sampling(temperature: float, top_p: float, top_k: int) -> None:
    """Raises InvalidInputError for values that mean nothing."""
    if not 0.0 <= temperature < float("inf"):
        raise InvalidInputError(f"temperature {temperature}: expected 0 (greedy) or more")
    if not 0.0 < top_p <= 1.0:
        raise InvalidInputError(f"top_p {top_p}: expected more than 0 and at most 1 (off)")
    if top_k < 0:
        raise InvalidInputError(f"top_k {top_k}: expected 0 (off) or more")


def pcg32(value: int) -> int:
    """A hash of 32 bits to 32 bits (PCG-RXS-M-XS)."""
    state = (value * 747796405 + 2891336453) & _MASK
    word = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & _MASK
    return (word >> 22) ^ word


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) for a seed and a position: a multiple of 2^-24, exact in float32."""
    return (pcg32((pcg32(seed & _MASK) + position) & _MASK) >> 8) / (1 << 24)


def sample(
    logits: Array, temperature: float, top_p: float, top_k: int, seed: int, position: int
) -> int:
    """The token chosen.

    Args:
        logits: one row, of any float dtype.
        temperature, top_p, top_k: see :func:`check_sampling`.
        seed: any integer, of which the low 32 bits count.
        position: of the new token.
    """
    row = np.asarray(logits, np.float32).reshape(-1)
    numbers = ~np.isnan(row)
    row = np.where(numbers, row, np.float32(-np.inf))
    if row.max() == -np.inf:
        # Nothing weighs anything: the first of the largest, whatever the temperature.
        return int(numbers.argmax())
    if temperature == 0:
        return int(row.argmax())
    scaled = row.astype(np.float64) / temperature
    if 0 < top_k < len(scaled):
        least = np.partition(scaled, -top_k)[-top_k]
        scaled = np.where(scaled >= least, scaled, -np.inf)
    weights = np.exp(scaled - scaled.max())
    if top_p < 1.0:
        falling = np.sort(weights)[::-1]
        gathered = np.cumsum(falling)
        # The last one kept: what was gathered before it is less than top_p.
        last = int(np.searchsorted(gathered, top_p * gathered[-1]))
        weights = np.where(weights >= falling[min(last, len(falling) - 1)], weights, 0.0)
    gathered = np.cumsum(weights)
    chosen = int(np.searchsorted(gathered, uniform(seed, position) * gathered[-1], side="right"))
    return min(chosen, int(np.flatnonzero(weights)[-1]))
