"""Bytes and flops that the lowering states, against numbers counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executorch_wgpu.ops.symbolic import symbol
from executorch_wgpu.ops.tensor import Storage, Tensor, contiguous_strides, touched_bytes
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType, Program
from executorch_wgpu.serialization.expressions import evaluate

from harness import Chain  # isort: skip
from test_labels import lowered  # isort: skip


def costs(program: Program, scalars: list[int]) -> dict[str, tuple[int, int | None]]:
    """Last part of the label -> (bytes, flops), of all routes."""
    values = evaluate(program.exprs, scalars)
    return {
        d.label.rsplit("/", 1)[-1]: (values[d.bytes], None if d.flops < 0 else values[d.flops])
        for step in program.steps
        for route in step.routes
        for d in route.dispatches
    }


@pytest.mark.parametrize("position", [0, 63])
def test_attention(position: int) -> None:
    """4 query heads and 2 KV heads of 8, f32; tiles of 64 positions."""
    program, _ = lowered("llama.sdpa_with_kv_cache.default")
    found = costs(program, [1, position])
    length = position + 1
    query, shares = 4 * 8 * 4, 4 * (-(-length // 64)) * (8 + 2) * 4
    assert found["update_cache_k"] == (2 * 2 * 8 * 4, None)
    assert found["sdpa_decode_split"] == (
        query + 2 * length * 2 * 8 * 4 + shares,
        4 * 8 * 4 * length,
    )
    assert found["sdpa_decode_reduce"][0] == shares + query
    found = costs(program, [20, position])
    seen = sum(position + row + 1 for row in range(20))
    assert found["sdpa_prefill"] == (
        2 * 20 * query + 2 * (position + 20) * 2 * 8 * 4,
        4 * 8 * 4 * seen,
    )


def test_matmul() -> None:
    program, _ = lowered("aten.mm.default")
    [(moved, flops)] = {c for name, c in costs(program, []).items() if name.startswith("mm")}
    assert (moved, flops) == (4 * (5 * 4 + 4 * 6 + 5 * 6), 2 * 5 * 4 * 6)


def test_an_embedding_reads_only_the_rows_it_picks() -> None:
    program, _ = lowered("aten.embedding.default")
    assert costs(program, [])["embedding"] == (2 * 3 * 4 * 4 + 3 * 4, None)


def test_rope_writes_all_of_its_output() -> None:
    program, _ = lowered("wgpu.rope")
    assert costs(program, [])["rope"] == (2 * 3 * 2 * 8 * 4 + 2 * 3 * 4 * 4, None)


def test_live_sizes() -> None:
    chain = Chain()
    length = chain.int_input("S", 1, 100)
    x = chain.input("x", (length, 8))
    weight = chain.constant(torch.ones(8))
    chain.output(*chain.call("aten.mul.Tensor", {"self": x, "other": weight}, [(x.dtype, x.shape)]))
    program = chain.lower().program
    for n in (1, 77):
        assert costs(program, [n])["mul"] == (2 * n * 8 * 4 + 8 * 4, None)


def tensor(shape: Any, strides: Any = None, dtype: DType = DType.F32) -> Tensor:
    storage = Storage(BufferKind.SCRATCH, 4096, "t", None)
    return Tensor(dtype, shape, strides or contiguous_strides(shape), 0, storage)


def test_touched_bytes() -> None:
    t = tensor((3, 4))
    assert touched_bytes([]) == 0
    assert touched_bytes([t]) == touched_bytes([t, t]) == 48
    assert touched_bytes([t, tensor((3, 4))]) == 96
    assert touched_bytes([tensor((3, 4), (0, 1))]) == 16
    assert touched_bytes([tensor((3, 4), dtype=DType.F16)]) == 24
    n = symbol(0, "n", 0, 9)
    assert touched_bytes([tensor((n, 4))]) == 16 * n
    assert touched_bytes([t.select(0, 1), t.select(0, 2)]) == 32
