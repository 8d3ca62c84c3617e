"""Constants made of several: the weight of a fused matmul.

A model's weights are most of what a process holds while it lowers; joining them into new tensors
at once would hold them twice. So what is joined is a list of the tensors that are there already,
and the rows are put together one weight at a time, when its bytes are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class JoinedRows:
    """Tensors [N_i, ...] of one dtype, equal but in N_i, joined along their first dimension.

    ``alternate``: instead of one after another, row 0 of each, then row 1 of each, and so on; the
    N_i are then equal. Raises ValueError for tensors that do not fit together.
    """

    def __init__(self, parts: Sequence[torch.Tensor], alternate: bool = False) -> None:
        first = parts[0]
        for part in parts:
            if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
                raise ValueError(f"{part.dtype} {list(part.shape)} beside {list(first.shape)}")
            if alternate and part.shape != first.shape:
                raise ValueError(f"{part.shape[0]} rows alternate with {first.shape[0]}")
        self.parts = tuple(parts)
        self.alternate = alternate
        self.dtype = first.dtype
        self.shape = (sum(part.shape[0] for part in parts), *first.shape[1:])

    def numel(self) -> int:
        """Number of elements."""
        return sum(part.numel() for part in self.parts)

    def tensor(self) -> torch.Tensor:
        """The joined tensor, made anew."""
        import torch

        if self.alternate:
            return torch.stack(self.parts, 1).reshape(self.shape)
        return torch.cat(self.parts)
