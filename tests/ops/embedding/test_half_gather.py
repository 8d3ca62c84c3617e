"""Rows of 16-bit elements picked by index: every bit survives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_gather import embed

from executorch_wgpu.ops.matmul import pieces

from harness import run_op


def bits(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    words = torch.randint(-(1 << 15), 1 << 15, shape, generator=generator, dtype=torch.int16)
    return words.view(dtype)


def same_bits(actual: Any, expected: torch.Tensor) -> None:
    found = torch.as_tensor(actual)
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.int16), expected.contiguous().view(torch.int16))


@pytest.mark.parametrize("limit", [pieces.BINDING_LIMIT, 6000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (10, 4), (600, 6), (1000, 5), (500, 8)])
def test_embedding(
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    dim: int,
    dtype: torch.dtype,
    limit: int,
) -> None:
    """Rows of odd length, too, which share words, and tables in pieces."""
    monkeypatch.setattr(pieces, "BINDING_LIMIT", limit)
    table = bits(rows, dim, dtype=dtype)
    for shape in ((5,), (3, 7), ()):
        indices = torch.randint(0, rows, shape)
        same_bits(embed(device, table, indices, table[indices]), table[indices])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [3, 4])
def test_indices_out_of_range_are_visible(device: Any, dim: int, dtype: torch.dtype) -> None:
    table = torch.randn(9, dim).to(dtype)
    got = embed(device, table, torch.tensor([0, 9, -1, 8]), table[[0, 0, 0, 8]])
    found = torch.as_tensor(got)
    assert found[1:3].isnan().all() and torch.equal(found[[0, 3]], table[[0, 8]])


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 6, 8), (4, 3, 7)])
def test_index_select(device: Any, shape: tuple[int, ...], dim: int) -> None:
    x, index = bits(*shape, dtype=torch.float16), torch.tensor([2, 0, 2, 1])
    want = x.index_select(dim, index)
    args = {"self": x, "dim": dim, "index": index}
    same_bits(run_op(device, "aten.index_select.default", args, want)[0], want)
    indices: list[Any] = [None] * dim + [index]
    (y,) = run_op(device, "aten.index.Tensor", {"self": x, "indices": indices}, want)
    same_bits(y, want)
