"""Constants on their way into the file: what is held, what is written, and when it is read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from executorch.exir._serialize._named_data_store import NamedDataStore

from executorch_wgpu.backend.named_data import ArrayData
from executorch_wgpu.runtime import Runtime

import exports


def test_array_data_is_the_array() -> None:
    array = np.arange(6, dtype=np.int32)
    data = ArrayData(lambda: array, 24, "a")
    assert len(data) == 24 and data.prefix(4) == b"\0\0\0\0"
    array[0] = 1
    out = io.BytesIO()
    data.write_to_file(out)
    assert out.getvalue() == array.tobytes() == data.to_bytes()


def test_equal_contents_are_one_buffer() -> None:
    array = np.arange(6, dtype=np.int32)
    store = NamedDataStore()
    other = array + np.int32(1)
    store.add_named_data("a", ArrayData(lambda: array, 24, "a"))
    store.add_named_data("a", ArrayData(lambda: array.copy(), 24, "a"))
    store.add_named_data("b", ArrayData(lambda: other, 24, "b"))
    assert len(store.buffers) == 2


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(256, 256), requires_grad=False)
        self.register_buffer("total", torch.ones(1, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x @ self.weight)
        return self.total * 1.0


def test_weights_are_not_copied_and_states_are() -> None:
    module = Scale()
    x = torch.randn(1, 256)
    lowered = exports.lower(module, (x,))
    assert exports.delegates(lowered) == 1
    data = [b for b in lowered._named_data_store.buffers if isinstance(b, ArrayData)]
    weight = module.weight.detach().numpy()
    addresses = {np.frombuffer(b._bytes, np.uint8).ctypes.data for b in data}
    assert weight.ctypes.data in addresses
    assert module.total.numpy().ctypes.data not in addresses
    # Running the module changes its state, not what is written.
    with torch.no_grad():
        expected = module(x).clone()
        module(x)
    program = lowered.to_executorch()
    method: Any = Runtime.get().load_program(bytes(program.buffer)).load_method("forward")
    (found,) = method.execute([x.numpy()])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)


class Pair(torch.nn.Module):
    """Two layers over one input, which become one with a joined weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(64, 512, bias=False)
        self.b = torch.nn.Linear(64, 256, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.a(x), self.b(x)


def test_joined_weights_are_put_together_while_they_are_written() -> None:
    module, x = Pair(), torch.randn(1, 64)
    lowered = exports.lower(module, (x,))
    (data,) = (b for b in lowered._named_data_store.buffers if isinstance(b, ArrayData))
    assert len(data) == 4 * 64 * (512 + 256)
    first, second = data._bytes, data._bytes
    assert first == second and first.obj is not second.obj  # made anew, kept by nobody
    method: Any = Runtime.get().load_program(bytes(lowered.to_executorch().buffer))
    for got, want in zip(
        method.load_method("forward").execute([x.numpy()]), module(x), strict=True
    ):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-4, atol=1e-4)
