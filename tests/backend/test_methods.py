"""Methods of one program: states shared by group, outputs that are fed back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

from executorch_wgpu.backend import WgpuPartitioner
from executorch_wgpu.backend.options import CompileOptions
from executorch_wgpu.runtime import Runtime

import exports


class Counter(torch.nn.Module):
    """Adds to a total; its twin reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 1.0


class Twin(Counter):
    """Also gives a token that follows the one it takes."""

    def forward(  # type: ignore[override]
        self, token: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.total.mul_(x)
        return self.total + 1.0, token + 3


X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def program(path: Path, **options: Any) -> Any:
    """Both methods in one file."""
    token = torch.zeros(1, 1, dtype=torch.int32)
    methods = {"add": exports.export(Counter(), (X,)), "twin": exports.export(Twin(), (token, X))}
    group = {"share_state": options.pop("share_state", "")}
    lowered = to_edge_transform_and_lower(
        methods,
        partitioner={
            "add": [WgpuPartitioner(CompileOptions(**group))],
            "twin": [WgpuPartitioner(CompileOptions(**group, **options))],
        },
    )
    lowered.to_executorch().save(str(path))
    return Runtime.get().load_program(path)


@pytest.mark.parametrize("group", ["", "counters"])
def test_states_are_shared_by_group(group: str, tmp_path: Path) -> None:
    loaded = program(tmp_path / "two.pte", share_state=group)
    add, twin = loaded.load_method("add"), loaded.load_method("twin")
    add.execute([X.numpy()])
    found, token = twin.execute([np.array([[4]], np.int32), X.numpy()])
    start = 2 + X if group else torch.full((4,), 2.0)
    np.testing.assert_allclose(found, (start * X + 1).numpy())
    assert token.tolist() == [[7]]
    (total,) = add.execute([np.zeros(4, np.float32)])
    np.testing.assert_allclose(total, (start * X if group else 2 + X).numpy())


def test_feedback_pairs(tmp_path: Path) -> None:
    """By the position of the method's output, whatever the delegate's order is."""
    loaded = program(tmp_path / "two.pte", feedback=((1, "token"),))
    assert loaded.load_method("twin").feedback() == [(1, 0)]
    assert loaded.load_method("add").feedback() == []


@pytest.mark.parametrize(
    ("pair", "message"),
    [((2, "token"), "no output 2, but 2"), ((1, "tokens"), "no such pair: .* takes x, token")],
)
def test_a_pair_that_is_not_there(pair: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        program(tmp_path / "two.pte", feedback=(pair,))


def test_wrong_options() -> None:
    with pytest.raises(TypeError, match="share_state"):
        CompileOptions(share_state=1)  # type: ignore[arg-type]
    for pair in [(1.0, "a"), ("a",), (1, 2)]:
        with pytest.raises(TypeError, match="feedback"):
            CompileOptions(feedback=(pair,))  # type: ignore[arg-type]
    options = CompileOptions(share_state="a", feedback=((0, "b"), ("c", "d")))
    assert CompileOptions.from_specs(options.to_specs()) == options
