"""An output matrix that is the embedding table too, beyond one binding and one buffer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.backend import build
from executorch_wgpu.backend.lowering import LoweredProgram
from executorch_wgpu.ops.matmul import pieces
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS

from harness import DTYPES, Chain, assert_close

MIB = 1 << 20


def tied(table: torch.Tensor, most: int) -> LoweredProgram:
    """tokens [1, S] -> logits [1, S, V] of one matrix, S from 1 to ``most``; f32 in between."""
    (rows, width), f32 = table.shape, DTYPES[torch.float32]
    c = Chain()
    s = c.dim_of("S", 1, 1, most)
    tokens = c.input("tokens", (1, s), torch.int64)
    weight = c.constant(table, "tok_embeddings.weight")
    args = {"weight": weight, "indices": tokens, "padding_idx": -1}
    (x,) = c.call("aten.embedding.default", args, [(weight.dtype, (1, s, width))])
    args = {"input": x, "weight": weight, "bias": None}
    c.output(*c.call("aten.linear.default", args, [(f32, (1, s, rows))]))
    return c.lower()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_both_share_the_pieces(
    device: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    table = torch.randn(700, 24).to(dtype)
    row = 24 * table.element_size()
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 256 * row)
    lowered = tied(table, 40)
    program = lowered.program
    # What a device must offer is what every device offers; the file holds the bytes once.
    assert program.limits == () and len(lowered.data) == 1
    constants = [buffer for buffer in program.buffers if buffer.kind is BufferKind.CONSTANT]
    assert [buffer.size for buffer in constants] == [700 * row, 256 * row, 256 * row, 188 * row]
    assert [buffer.data_offset for buffer in constants] == [0, 0, 256 * row, 512 * row]
    for step in program.steps:
        whole = [route for route in step.routes if route.limits]
        assert whole and list(step.routes[: len(whole)]) == whole  # preferred
        for route in whole:
            assert len(route.dispatches) == 1
            assert dict(route.limits)["max-storage-buffer-binding-size"] > 128 * MIB
        for route in step.routes[len(whole) :]:
            assert len(route.dispatches) == 3
    # Both ways, whatever this device offers.
    bare = [
        replace(step, routes=tuple(replace(r, limits=()) for r in step.routes if bool(r.limits)))
        for step in program.steps
    ]
    for steps in (program.steps, tuple(bare)):
        graph = WebGPUGraph(device, replace(program, steps=steps), lowered.data, "tied")
        for count in (1, 3, 40):
            tokens = torch.randint(0, 700, (1, count))
            (y,) = graph.execute([tokens.numpy()])
            wide = table.double()
            assert_close(y, wide[tokens] @ wide.T)


def test_what_routes_need_at_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,002 MiB in f32, which nobody reads here: the program asks for nothing beyond the defaults,
    the routes that bind it whole ask for its size, pieces fit bindings of 128 MiB."""
    monkeypatch.setattr(build, "storage_bytes", lambda data: np.zeros(1, np.float32))
    program = tied(torch.zeros(1, 1).expand(128_256, 2048), 64).program
    size = 128_256 * 2048 * 4
    assert program.limits == ()
    whole, *cut = [b.size for b in program.buffers if b.kind is BufferKind.CONSTANT]
    assert whole == size and sum(cut) == size and len(cut) == 8
    assert max(cut) <= DEFAULT_LIMITS["max-storage-buffer-binding-size"]
    for step in program.steps:
        limits = [dict(route.limits) for route in step.routes]
        assert {"max-storage-buffer-binding-size": size, "max-buffer-size": size} in limits
        assert limits[-1] == {}


@pytest.mark.slow
def test_a_gibibyte_on_default_limits(device: Any) -> None:
    """128,256 x 2,048 in f32 where bindings hold 128 MiB and buffers 256 MiB."""
    limits = {"max-buffer-size": 256 * MIB, "max-storage-buffer-binding-size": 128 * MIB}
    small = device.adapter.request_device_sync(required_limits=limits)
    assert small.limits["max-buffer-size"] == 256 * MIB
    table = torch.randn(128_256, 2048, generator=torch.Generator().manual_seed(0))
    lowered = tied(table, 20)
    graph = WebGPUGraph(small, lowered.program, lowered.data, "tied")
    columns = torch.arange(0, 128_256, 509)
    for tokens in ([128_255], [0, 16_383, 16_384, 65_535, 128_000], list(range(0, 128_000, 6400))):
        x = table[tokens].double()
        (y,) = graph.execute([torch.tensor([tokens]).numpy()])
        assert y.shape == (1, len(tokens), 128_256)
        assert_close(y[0][:, columns], x @ table[columns].double().T, 1e-3)
