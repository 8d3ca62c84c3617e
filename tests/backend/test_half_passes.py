"""Conversions go into loads and stores, activations stay f32, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.passes import run_passes
from executorch_wgpu.backend.preprocess import lower_program
from executorch_wgpu.ops.call import OpChain
from executorch_wgpu.ops.registry import CASTS
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType

import exports
from harness import assert_close

HALVES = [torch.float16, torch.bfloat16]


class Function(torch.nn.Module):
    """``function(module, *inputs)`` with a table, a weight, a vector and a cache of one dtype."""

    def __init__(self, function: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.function = function
        self.table = torch.nn.Parameter(torch.randn(40, 24).to(dtype))
        self.weight = torch.nn.Parameter(torch.randn(20, 24).to(dtype))
        self.vector = torch.nn.Parameter(torch.randn(20).to(dtype))
        self.register_buffer("cache", torch.zeros(8, 24, dtype=dtype))
        self.requires_grad_(False)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def chain_of(function: Any, dtype: torch.dtype, *inputs: Any) -> OpChain:
    return run_passes(GraphReader(exports.edge(Function(function, dtype), inputs)).chain())


def casts(chain: OpChain) -> list[Any]:
    return [call for call in chain.calls if call.op in CASTS]


ROWS = torch.randn(3, 24)
TOKENS = torch.tensor([1, 39, 7])


def store(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.cache[2:5] = (x * 2).view(3, 24).to(m.cache.dtype)
    return m.cache.float() @ x.t()


STORED = {
    "linear": lambda m, x: functional.linear(x, m.weight.float(), m.vector.float()),
    "matmul": lambda m, x: x @ m.weight.float().t(),
    "sliced": lambda m, x: x @ m.table.float()[4:20].t(),
    "embedding": lambda m, x: functional.embedding(TOKENS, m.table).float() + x,
    "embedding of a converted table": lambda m, x: (
        functional.embedding(TOKENS, m.table.float()) * x
    ),
    "pointwise": lambda m, x: m.weight.float()[:3] * x + x.sigmoid(),
    "joined": lambda m, x: torch.cat([m.weight.float(), x], 0),
    "cache": store,
    "result": lambda m, x: (x @ m.table.float().t()).view(3, 2, 20).to(m.table.dtype),
    "there and back": lambda m, x: functional.linear(x, m.weight.float().clone().float()),
}


@pytest.mark.parametrize(("form", "dtype"), list(zip(STORED, HALVES * len(STORED), strict=False)))
def test_what_is_stored_in_16_bits_is_read_there(form: str, dtype: torch.dtype) -> None:
    assert casts(chain_of(STORED[form], dtype, ROWS)) == []
    module = Function(STORED[form], dtype)
    want = module(ROWS)
    module.cache.zero_()
    (y,) = exports.method(module, (ROWS,)).execute([ROWS])
    assert y.dtype == want.dtype
    tolerance = () if want.dtype == torch.float32 else (2e-3, 1e-2)
    assert_close(y, want, *tolerance)


def test_no_expanded_weight_exists() -> None:
    """Nothing but results of the size of a row is written."""
    program = lower_program(exports.edge(Function(STORED["linear"], HALVES[0]), (ROWS,))).program
    written = [b.size for b in program.buffers if b.kind is not BufferKind.CONSTANT]
    assert max(written) == 4 * 3 * 24
    assert sum(b.size for b in program.buffers if b.kind is BufferKind.CONSTANT) == 2 * 25 * 20


KEPT = {
    "an integer": lambda m, x: x.to(torch.int32),
    "a comparison in f32": lambda m, x: m.weight.float() > 0.1,
    "a result that is read twice": lambda m, x: ((y := x * 2).to(m.table.dtype), y + 1),
    "a result that leaves": lambda m, x: ((y := x * 2), y.to(m.table.dtype)),
    "an input": lambda m, x: x.to(m.table.dtype),
}


@pytest.mark.parametrize("form", KEPT)
def test_what_cannot_be_folded_stays(form: str) -> None:
    assert len(casts(chain_of(KEPT[form], torch.float16, ROWS))) == 1
    module = Function(KEPT[form], torch.float16)
    want = module(ROWS)
    got = exports.method(module, (ROWS,)).execute([ROWS])
    for y, expected in zip(got, want if isinstance(want, tuple) else [want], strict=True):
        assert torch.as_tensor(y).dtype == expected.dtype
        assert_close(y, expected)


def two_layers(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = functional.silu(functional.linear(x, m.weight, m.vector))
    return x + (y.view(3, 4, 5).transpose(0, 1).reshape(4, 3, 5).transpose(0, 1).reshape(3, 20)) @ (
        m.weight
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_activations_stay_f32(dtype: torch.dtype) -> None:
    x = ROWS.to(dtype)
    chain = chain_of(two_layers, dtype, x)
    (result,) = chain.outputs
    assert result.dtype is not DType.F32
    computed = {v for call in chain.calls for v in call.outputs if v is not result}
    assert computed and all(value.dtype is DType.F32 for value in computed)
    assert casts(chain) == []
    module = Function(two_layers, dtype)
    (y,) = exports.method(module, (x,)).execute([x])
    want = two_layers(module.double(), x.double())
    # Rounded once: within half of the last place, give or take f32's own error.
    assert y.dtype == dtype
    assert_close(y, want, 1e-4, 0.51 * torch.finfo(dtype).eps)


def test_rounding_that_a_model_asks_for_is_done() -> None:
    """There and back again is a model's own way to round."""

    def rounded(m: Any, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 1.001).to(torch.bfloat16).float() * 3

    x = ROWS.to(torch.bfloat16)
    (y,) = exports.method(Function(rounded, torch.bfloat16), (x,)).execute([x])
    assert torch.equal(y, rounded(None, x))


def test_large_numbers_on_the_way_do_not_overflow() -> None:
    x = torch.full((4,), 60000.0, dtype=torch.float16)
    (y,) = exports.method(Function(lambda m, x: (x * 8.0) / 16.0, torch.float16), (x,)).execute([x])
    assert torch.equal(y, x / 2)


def test_a_state_that_is_read_before_and_after_its_update() -> None:
    def both(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = m.cache.float()
        m.cache[1:4] = x.to(m.cache.dtype)
        return old * 2, m.cache.float() * 3

    module = Function(both, torch.float16)
    method = exports.method(module, (ROWS,))
    module.cache.zero_()
    for factor in (1, 2):
        got = method.execute([ROWS * factor])
        for y, want in zip(got, module(ROWS * factor), strict=True):
            assert_close(y, want)
