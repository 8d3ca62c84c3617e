"""Llama layers in ExecuTorch's own runtime, with a CPU-only operator in their middle."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime as Official
from official import compare
from torch import nn

from executorch_wgpu.backend import CompileOptions, WgpuPartitioner
from executorch_wgpu.runtime import Runtime
from executorch_wgpu.runtime.errors import NotDelegatedError
from executorch_wgpu.scripts.recipes import llama

import exports

#: Also where cumsum has a lowering.
OPTIONS = CompileOptions(operator_blocklist=["aten.cumsum.default"])


class TwoLayers(nn.Module):
    """Two layers with a CPU-only operator between them."""

    def __init__(self) -> None:
        super().__init__()
        args = llama.model_args(
            dim=36,
            n_heads=6,
            n_kv_heads=2,
            hidden_dim=44,
            n_layers=2,
            max_seq_len=16,
            max_context_len=64,
        )
        self.first, self.second = (llama.random_layer(args, 5, index=k) for k in range(2))

    def forward(self, x: torch.Tensor, input_pos: torch.Tensor) -> torch.Tensor:
        h = self.first(x, input_pos)
        h = h + 0.01 * torch.cumsum(h, -1)
        return self.second(h, input_pos)


def export() -> torch.export.ExportedProgram:
    layers = TwoLayers()
    inputs = llama.example_inputs(layers.first)
    return exports.export(layers, inputs, llama.dynamic_shapes(layers.first))


@pytest.fixture(scope="module")
def buffer():
    lowered = to_edge_transform_and_lower(export(), partitioner=[WgpuPartitioner(OPTIONS)])
    assert exports.delegates(lowered) == 2
    return bytes(lowered.to_executorch().buffer)


def test_twenty_steps_are_right(buffer):
    method = Official.get().load_program(buffer).load_method("forward")
    eager = TwoLayers()
    generator = torch.Generator().manual_seed(0)
    position = 0
    for size in (7, 1, 1, 1, 5, *([1] * 14), 16):
        x, where = torch.randn(1, size, 36, generator=generator), torch.tensor([position])
        with torch.no_grad():
            compare(method.execute([x, where]), [eager(x, where)])
        position += size


def test_explain_names_the_operator():
    rows = WgpuPartitioner(OPTIONS).explain(export()).on_cpu
    assert "aten.cumsum.default" in {row.op for row in rows}
    # Beside it only the light operators around it, and what reads the position for it all.
    assert not any("mm" in row.op or "sdpa" in row.op for row in rows)


def test_the_runtime_without_torch_says_what_to_do(buffer):
    program = Runtime.get().load_program(buffer)
    with pytest.raises(NotDelegatedError) as caught:
        program.load_method("forward")
    message = str(caught.value)
    assert "aten::cumsum" in message
    assert "executorch_bridge" in message and "executorch.runtime" in message
