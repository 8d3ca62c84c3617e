"""``wgpu::sample`` as PyTorch knows it: to be traced by torch.export, and run in eager."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


@torch.library.custom_op("wgpu::sample", mutates_args=())
def sample(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: int, seed: int, position: int
) -> Tensor:
    """The next token, i64 [1, 1].

    Divides by the temperature, keeps the ``top_k`` largest logits, of those, in falling order of
    probability, the ones before which less than ``top_p`` has been gathered, and draws. What ties
    with the last one kept is kept. The draw is a function of ``seed`` and ``position`` alone.

    Args:
        logits: [..., V] with one row, of any float dtype. NaN is never chosen.
        temperature: f32 [1]; 0 takes the largest logit, the first where several are equal.
        top_p: f32 [1], more than 0; from 1 on it is off.
        top_k: 0, or V or more: off.
        seed: of the draw; the low 32 bits count.
        position: of the new token: how many tokens are before it.
    """
    row = logits.detach().reshape(-1).float()
    numbers = ~row.isnan()
    row = torch.where(numbers, row, float("-inf"))
    if row.max() == float("-inf"):
        # Nothing weighs anything: the first of the largest, whatever the temperature.
        return numbers.to(torch.uint8).argmax().reshape(1, 1)
    heat, share = float(temperature), float(top_p)
    if heat == 0:
        # argmax says nothing about which of equal ones it gives.
        return (row == row.max()).nonzero()[:1].to(torch.int64)
    scaled = row.double() / heat
    if 0 < top_k < len(scaled):
        least = scaled.topk(top_k).values[-1]
        scaled = torch.where(scaled >= least, scaled, float("-inf"))
    weights = (scaled - scaled.max()).exp()
    if share < 1:
        falling = weights.sort(descending=True).values
        gathered = falling.cumsum(0)
        last = int(torch.searchsorted(gathered, share * gathered[-1]))
        least = falling[min(last, len(falling) - 1)]
        weights = torch.where(weights >= least, weights, 0.0)
    gathered = weights.cumsum(0)
    u = (_pcg32((_pcg32(seed & _MASK) + position) & _MASK) >> 8) / (1 << 24)
    chosen = int(torch.searchsorted(gathered, u * gathered[-1], right=True))
    return torch.tensor([[min(chosen, int(weights.nonzero()[-1]))]])


@sample.register_fake
def _(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: int, seed: int, position: int
) -> Tensor:
    return logits.new_empty((1, 1), dtype=torch.int64)


def _pcg32(value: int) -> int:
    """A hash of 32 bits to 32 bits (PCG-RXS-M-XS)."""
    state = (value * 747796405 + 2891336453) & _MASK
    word = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & _MASK
    return (word >> 22) ^ word
