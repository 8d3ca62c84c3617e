"""The kernels choose what the host's definition (runtime/generate/sampling.py) chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.runtime.generate import sampling
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain

MOST = (1 << 31) - 1
OFF = (1.0, 0)


class Sampler:
    """``wgpu.sample`` for rows of one size."""

    def __init__(self, device: Any, size: int, dtype: torch.dtype = torch.float32) -> None:
        c = Chain()
        logits = c.input("logits", (1, 1, size), dtype)
        args = {"logits": logits}
        args |= {name: c.input(name, (1,)) for name in ("temperature", "top_p")}
        args |= {name: c.int_input(name, 0, MOST) for name in ("top_k", "seed", "position")}
        c.output(*c.call("wgpu.sample.default", args, [(DType.I64, (1, 1))]))
        self.graph = c.graph(device)

    def __call__(self, row: torch.Tensor, temperature: float, top_p: float, *ints: int) -> int:
        heat, share = (np.array([x], np.float32) for x in (temperature, top_p))
        row = row.view(1, 1, -1)
        bits = row if row.dtype == torch.bfloat16 else row.numpy()
        (token,) = self.graph.execute([bits, heat, share, *ints])
        assert tuple(token.shape) == (1, 1)
        return int(token[0, 0])


def acceptable(
    monkeypatch: pytest.MonkeyPatch,
    row: torch.Tensor,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    position: int,
) -> set[int]:
    """What the definition chooses, and what it would if the draw or top_p were different by what
    sums in f32 are off."""
    array, u = row.float().numpy(), sampling.uniform(seed, position)
    temperature, top_p = float(np.float32(temperature)), float(np.float32(top_p))
    found = set()
    for share in [top_p] if top_p >= 1 else [top_p * x for x in (1 - 3e-6, 1, 1 + 3e-6)]:
        for draw in (u - 3e-6, u, u + 3e-6):
            with monkeypatch.context() as m:
                m.setattr(sampling, "uniform", lambda *_, draw=draw: min(max(draw, 0), 1 - 2**-24))
                found.add(
                    sampling.sample(array, temperature, min(share, 1.0), top_k, seed, position)
                )
    return found


SETTINGS = [(0.0, *OFF), (0.0, 0.5, 3), (1.0, *OFF), (0.7, 0.9, 0), (0.8, 1.0, 40), (1.3, 0.95, 50)]
SETTINGS += [(1.0, 1e-6, 0), (5.0, 0.5, 2), (0.05, 0.999, 0), (100.0, 0.3, 1000), (1.0, 1.0, 1)]


@pytest.mark.parametrize("size", [1, 7, 1025, 5000])
def test_every_setting(device: Any, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    choose = Sampler(device, size)
    generator = torch.Generator().manual_seed(size)
    exact = count = 0
    for number, setting in enumerate(SETTINGS * 3):
        row = torch.randn(size, generator=generator) * (0.1, 3.0, 30.0)[number % 3]
        ints = setting[2], number * 7919 + 1, number
        got = choose(row, *setting[:2], *ints)
        assert got in acceptable(monkeypatch, row, *setting[:2], *ints), (setting, got)
        exact += got == sampling.sample(row.numpy(), *setting[:2], *ints)
        count += 1
    assert exact >= count - 1  # else the tolerance hides something


@pytest.mark.parametrize(
    "size", [128_256, *(pytest.param(n, marks=pytest.mark.slow) for n in (49_152, 262_145))]
)
def test_vocabularies(device: Any, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    choose = Sampler(device, size)
    generator = torch.Generator().manual_seed(size)
    settings = [(0.0, 1.0, 1), (0.0, *OFF), (0.8, 0.95, 0), (1.0, 0.9, 64), (30.0, 0.99, 5000)]
    for number, setting in enumerate(settings):
        row = torch.randn(size, generator=generator) * 4
        ints = setting[2], 77, 1000 + number
        assert choose(row, *setting[:2], *ints) in acceptable(monkeypatch, row, *setting[:2], *ints)


def test_the_draws_follow_the_probabilities(device: Any) -> None:
    choose = Sampler(device, 4)
    row = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    drawn = [choose(row, 1.0, 1.0, 0, 5, position) for position in range(600)]
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    assert np.abs(shares - [0.1, 0.2, 0.3, 0.4]).max() < 0.06
    assert drawn == [sampling.sample(row.numpy(), 1.0, 1.0, 0, 5, p) for p in range(600)]
    assert drawn != [choose(row, 1.0, 1.0, 0, 6, position) for position in range(600)]


TIED = torch.tensor([3.0, -1.0, 5.0, 5.0, 2.0, 5.0, 3.0, 0.0, -0.0] + [-9.0] * 3000 + [5.0])


@pytest.mark.parametrize("setting", [(0.0, 1.0, 1), (0.0, 0.4, 2), (0.0, *OFF)])
def test_the_first_of_equal_ones(device: Any, setting: Any) -> None:
    choose = Sampler(device, len(TIED))
    assert choose(TIED, *setting, 3, 4) == 2
    assert choose(TIED.flip(0), *setting, 3, 4) == 0


@pytest.mark.parametrize("setting", [(1.0, 1.0, 1), (2.0, 1.0, 2), (1.0, 0.1, 0), (1.0, 0.2, 1)])
def test_ties_are_kept(device: Any, setting: Any) -> None:
    choose = Sampler(device, len(TIED))
    drawn = [choose(TIED, *setting, 9, position) for position in range(60)]
    assert set(drawn) == {2, 3, 5, len(TIED) - 1}
    assert drawn == [sampling.sample(TIED.numpy(), *setting, 9, p) for p in range(60)]


def test_both_zeros_are_equal(device: Any) -> None:
    choose = Sampler(device, 5)
    row = torch.tensor([-1.0, -0.0, 0.0, -0.0, -2.0])
    assert choose(row, 0.0, *OFF, 0, 0) == choose(row, 0.0, 1.0, 1, 0, 0) == 1
    assert {choose(row, 1.0, 1.0, 1, 0, p) for p in range(40)} == {1, 2, 3}


@pytest.mark.parametrize("setting", [(0.0, *OFF), (0.0, 1.0, 1), (1.0, 0.9, 0), (1.0, 1.0, 3)])
def test_what_is_no_number_is_never_chosen(device: Any, setting: Any) -> None:
    choose = Sampler(device, 6)
    row = torch.tensor([float("nan"), float("-inf"), 1.0, float("nan"), 2.0, float("-inf")])
    row[0] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)  # a NaN with its sign set
    for position in range(30):
        got = choose(row, *setting, 1, position)
        assert got == sampling.sample(row.numpy(), *setting, 1, position) and got in (2, 4)
    row[4] = float("inf")
    assert choose(row, *setting, 1, 0) == 4
    nothing = torch.full((6,), float("nan"))
    assert choose(nothing, *setting, 1, 0) == 0


@pytest.mark.parametrize(
    "setting", [(0.0, *OFF), (0.0, 1.0, 1), (1.0, *OFF), (1.0, 0.9, 1), (1.0, 1.0, 3)]
)
def test_nothing_to_choose_from(device: Any, setting: Any) -> None:
    """The first -inf, or the first NaN where there is nothing else."""
    from executorch_wgpu.ops.sampling.operator import sample

    choose, nan, low = Sampler(device, 300), float("nan"), float("-inf")
    heat, share = (torch.tensor([x]) for x in setting[:2])
    for row, want in (([nan] * 300, 0), ([low] * 300, 0), ([nan, nan] + [low] * 298, 2)):
        logits = torch.tensor(row)
        for position in range(5):
            assert choose(logits, *setting, 1, position) == want
            assert sampling.sample(logits.numpy(), *setting, 1, position) == want
            assert int(sample(logits, heat, share, setting[2], 1, position)) == want


def test_extreme_temperatures(device: Any) -> None:
    choose = Sampler(device, 3)
    row = torch.tensor([1e30, 2e30, -3e38])
    assert {choose(row, 1e-30, *OFF, 0, p) for p in range(20)} == {1}
    assert {choose(row, 1e38, *OFF, 0, p) for p in range(60)} >= {0, 1}
    assert {choose(torch.zeros(3), 1e-38, *OFF, 0, p) for p in range(60)} == {0, 1, 2}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_in_16_bits(
    device: Any, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    choose = Sampler(device, 2001, dtype)
    row = (torch.randn(2001, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    row[3] = float("nan")
    for number, setting in enumerate(SETTINGS):
        ints = setting[2], 5, number
        assert choose(row, *setting[:2], *ints) in acceptable(monkeypatch, row, *setting[:2], *ints)


def test_greedy_takes_two_dispatches(device: Any) -> None:
    (step,) = Sampler(device, 128_256).graph.program.steps
    assert [len(route.dispatches) for route in step.routes] == [2, 8, 15]


def test_part_of_a_larger_tensor(device: Any) -> None:
    """A row that does not begin at the start of its buffer."""
    c = Chain()
    logits = c.input("logits", (1, 3, 50))
    row = c.call(
        "aten.slice_copy.Tensor",
        {"self": logits, "dim": 1, "start": 1, "end": 2, "step": 1},
        [(DType.F32, (1, 1, 50))],
    )
    args: dict[str, Any] = {"logits": row[0]}
    args |= {name: c.input(name, (1,)) for name in ("temperature", "top_p")}
    args |= {name: c.int_input(name, 0, MOST) for name in ("top_k", "seed", "position")}
    c.output(*c.call("wgpu.sample.default", args, [(DType.I64, (1, 1))]))
    graph = c.graph(device)
    values = torch.randn(1, 3, 50)
    for setting in ((0.0, 1.0, 1), (0.0, *OFF), (1.0, 0.8, 7)):
        heat, share = (np.array([x], np.float32) for x in setting[:2])
        (token,) = graph.execute([values.numpy(), heat, share, setting[2], 3, 4])
        want = sampling.sample(values[0, 1].numpy(), *setting, 3, 4)
        assert int(token[0, 0]) == want


def test_eager_is_the_definition() -> None:
    from executorch_wgpu.ops.sampling.operator import sample

    for number, setting in enumerate(SETTINGS):
        row = torch.randn(1, 1, 300) * 3
        heat, share = (torch.tensor([x]) for x in setting[:2])
        token = sample(row, heat, share, setting[2], number, number + 5)
        want = sampling.sample(
            row.numpy(), float(heat), float(share), setting[2], number, number + 5
        )
        assert token.shape == (1, 1) and int(token) == want


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"logits": Value(DType.I32, (1, 8))}, "i32 logits"),
        ({"logits": Value(DType.F32, (2, 8))}, "one row"),
        ({"logits": Value(DType.F32, (1, 0))}, "one row"),
        ({"temperature": Value(DType.F32, (2,))}, "temperature"),
        ({"top_p": Value(DType.F16, (1,))}, "top_p"),
    ],
)
def test_unsupported(changes: dict[str, Any], reason: str) -> None:
    args = {"logits": Value(DType.F32, (1, 8)), "top_k": 0, "seed": 0, "position": 0}
    args |= {name: Value(DType.F32, (1,)) for name in ("temperature", "top_p")}
    call = OpCall("wgpu.sample.default", {**args, **changes}, (Value(DType.I64, (1, 1)),))
    assert reason in (registry.unsupported_reason(call) or "")
