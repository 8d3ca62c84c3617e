"""Weights that are larger than a binding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.matmul import pieces
from executorch_wgpu.ops.tensor import Storage, Tensor
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType

from harness import Chain, assert_close


@pytest.mark.parametrize(("n", "k"), [(301, 96), (200, 63)])
def test_linear_in_pieces(device: Any, monkeypatch: pytest.MonkeyPatch, n: int, k: int) -> None:
    """A binding of 128 rows: the weight takes several pieces, the last one with fewer."""
    limit = 128 * 4 * k
    monkeypatch.setattr(pieces, "BINDING_LIMIT", limit)
    generator = torch.Generator().manual_seed(n)
    x, w = (torch.randn(rows, k, generator=generator) for rows in (70, n))
    bias = torch.randn(n, generator=generator)
    c = Chain()
    m = c.int_input("M", 1, 70)
    value = c.input("x", (m, k))
    args = {"input": value, "weight": c.constant(w), "bias": c.constant(bias)}
    c.output(*c.call("aten.linear.default", args, [(value.dtype, (m, n))]))
    graph = c.graph(device)
    routes = graph.program.steps[-1].routes
    whole = [route for route in routes if route.limits]
    assert whole and all(len(route.dispatches) == 1 for route in whole)
    assert routes[-1].name == "gemm_pieces" and len(routes[-1].dispatches) > 1
    sizes = [buffer.size for buffer in graph.program.buffers]
    for route in routes:
        if not route.limits:
            assert len({dispatch.kernel for dispatch in route.dispatches}) == 2
            assert all(sizes[d.bindings[1].buffer] <= limit for d in route.dispatches)
    golden = x.double() @ w.double().T + bias.double()
    for rows in (1, 3, 70):
        (y,) = graph.execute([rows, x[:rows].numpy()])
        assert_close(y, golden[:rows])


def constant(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, elements: int,
    kind: BufferKind = BufferKind.CONSTANT,
) -> Tensor:  # fmt: skip
    data = torch.arange(elements, dtype=torch.float32)
    return Tensor(DType.F32, shape, strides, offset, Storage(kind, 4 * elements, "w", data))


@pytest.mark.parametrize("offset", [0, 1, 100])
@pytest.mark.parametrize(("rows", "row", "stride"), [(640, 16, 16), (200, 15, 15), (300, 5, 15)])
def test_pieces_cover_every_row_once(
    monkeypatch: pytest.MonkeyPatch, rows: int, row: int, stride: int, offset: int
) -> None:
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 8192)
    whole = constant((rows, row), (stride, 1), offset, offset + rows * stride)
    b = Builder()
    found = pieces.row_pieces(b, whole, 0)
    assert found is not None
    at = 0
    for piece in found:
        assert piece.first == at and at % 128 == 0
        storage, count = piece.tensor.storage, int(piece.tensor.shape[0])
        assert storage.data is whole.storage.data and storage.size_bytes <= 8192
        assert storage.data_offset == 4 * (offset + at * stride)
        assert storage.size_bytes == 4 * ((count - 1) * stride + row)
        at += count
    assert at == rows
    again = pieces.row_pieces(b, whole, 0)
    assert again is not None
    assert [p.tensor.storage for p in again] == [p.tensor.storage for p in found]


def test_what_cannot_be_cut_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 1024)
    small = constant((4, 64), (64, 1), 0, 256)
    columns = constant((64, 16), (1, 64), 0, 1024)  # rows lie across each other
    long_rows = constant((64, 5), (5, 1), 0, 320)
    scratch = constant((128, 3), (3, 1), 0, 384, BufferKind.SCRATCH)
    for case in (small, columns, long_rows, scratch):
        assert pieces.row_pieces(Builder(), case, 0) is None
