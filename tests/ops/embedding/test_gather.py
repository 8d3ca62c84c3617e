"""embedding, index_select and index: rows are copied bit for bit, so results are compared so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.ops.matmul import pieces

from harness import Chain, run_op


def embed(device: Any, table: torch.Tensor, indices: torch.Tensor, want: torch.Tensor) -> Any:
    args = {
        "weight": table,
        "indices": indices,
        "padding_idx": -1,
        "scale_grad_by_freq": False,
        "sparse": False,
    }
    return run_op(device, "aten.embedding.default", args, want, ("weight",))[0]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("limit", [pieces.BINDING_LIMIT, 20000])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (10, 4), (200, 64), (1000, 5)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_embedding(
    device: Any,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    dim: int,
    limit: int,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(pieces, "BINDING_LIMIT", limit)
    table = random(rows, dim)
    for shape in ((5,), (3, 7), (1, 1), ()):
        indices = torch.randint(0, rows, shape, dtype=dtype)
        want = torch.nn.functional.embedding(indices, table)
        np.testing.assert_array_equal(embed(device, table, indices, want), want.numpy())


@pytest.mark.parametrize("limit", [pieces.BINDING_LIMIT, 4096])
@pytest.mark.parametrize("dim", [3, 8])
def test_indices_out_of_range_are_visible(
    device: Any, monkeypatch: pytest.MonkeyPatch, dim: int, limit: int
) -> None:
    """PyTorch raises; here their rows are NaN and the others are right."""
    monkeypatch.setattr(pieces, "BINDING_LIMIT", limit)
    table = random(200, dim)
    indices = torch.tensor([0, 200, 7, -1, 199, 2**31 - 1, -(2**31)], dtype=torch.int32)
    outside = (indices < 0) | (indices >= 200)
    want = table[indices.long().clamp(0, 199)]
    want[outside] = float("nan")
    np.testing.assert_array_equal(embed(device, table, indices, want), want.numpy())


def test_bits_survive(device: Any) -> None:
    """NaN with a payload, infinities, subnormals and negative zero are copied, not computed."""
    bits = torch.tensor([0x7FC12345, 0x7F800000, -0x800000, 1, -0x80000000, 0x3F800000, 7, 8])
    table = bits.to(torch.int32).view(torch.float32).reshape(2, 4)
    indices = torch.tensor([1, 0, 1])
    got = embed(device, table, indices, table[indices])
    np.testing.assert_array_equal(
        np.asarray(got).view(np.int32), table[indices].view(torch.int32).numpy()
    )


def test_live_number_of_tokens(device: Any) -> None:
    c = Chain()
    s = c.int_input("S", 1, 33)
    indices = c.input("tokens", (1, s), torch.int64)
    table = random(50, 12)
    args = {"weight": c.constant(table), "indices": indices, "padding_idx": -1}
    c.output(*c.call("aten.embedding.default", args, [(c.constant(table).dtype, (1, s, 12))]))
    graph = c.graph(device)
    for length in (1, 5, 33):
        tokens = torch.randint(0, 50, (1, length))
        (y,) = graph.execute([length, tokens.numpy()])
        np.testing.assert_array_equal(y, table[tokens].numpy())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(5, 6, 8), (4, 3, 7)])
def test_index_select(device: Any, shape: tuple[int, ...], dim: int) -> None:
    x = random(*shape)
    index = torch.tensor([2, 0, 2, 1])
    want = x.index_select(dim, index)
    args = {"self": x, "dim": dim, "index": index}
    (y,) = run_op(device, "aten.index_select.default", args, want)
    np.testing.assert_array_equal(y, want.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_index(device: Any, dim: int, dtype: torch.dtype) -> None:
    """Negative indices count from the end."""
    x = (random(4, 5, 8) * 3).to(dtype)
    index = torch.tensor([[2, 0], [-4, -1]])
    position = (slice(None),) * dim + (index,)
    want = x[position]
    args = {"self": x, "indices": [None] * dim + [index]}
    (y,) = run_op(device, "aten.index.Tensor", args, want)
    np.testing.assert_array_equal(y, want.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool])
def test_index_out_of_range(device: Any, dtype: torch.dtype) -> None:
    x = (random(4, 6) * 3).to(dtype)
    index = torch.tensor([3, 4, -4, -5])
    want = x[index.clamp(-4, 3)]
    poison = {torch.float32: float("nan"), torch.int32: -(2**31), torch.bool: False}
    want[[1, 3]] = poison[dtype]
    (y,) = run_op(device, "aten.index.Tensor", {"self": x, "indices": [index]}, want)
    np.testing.assert_array_equal(y, want.numpy())


def test_views(device: Any) -> None:
    """A permuted table and strided indices."""
    c = Chain()
    x, index = c.input("x", (6, 9)), c.input("i", (4, 2), torch.int64)
    (table,) = c.call("aten.permute_copy.default", {"self": x, "dims": [1, 0]}, [(x.dtype, (9, 6))])
    args = {"self": index, "dim": 1, "index": 1}
    (column,) = c.call("aten.select_copy.int", args, [(index.dtype, (4,))])
    args = {"self": table, "dim": 0, "index": column}
    c.output(*c.call("aten.index_select.default", args, [(x.dtype, (4, 6))]))
    data, indices = random(6, 9), torch.randint(0, 9, (4, 2))
    (y,) = c.graph(device).execute([data.numpy(), indices.numpy()])
    np.testing.assert_array_equal(y, data.T[indices[:, 1]].numpy())


@pytest.mark.parametrize(
    ("indices", "reason"),
    [
        ([torch.tensor([0]), torch.tensor([1])], "2 index tensors"),
        ([None, None], "0 index tensors"),
        ([torch.tensor([True, False])], "dtype bool"),
    ],
)
def test_refusals_have_a_reason(indices: list[Any], reason: str) -> None:
    c = Chain()
    x = c.input("x", (2, 3))
    values = [None if i is None else c.constant(i) for i in indices]
    c.output(*c.call("aten.index.Tensor", {"self": x, "indices": values}, [(x.dtype, (1, 3))]))
    with pytest.raises(NotImplementedError, match=reason):
        c.lower()
