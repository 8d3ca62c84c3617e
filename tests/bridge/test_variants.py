"""Beside another backend, with weights in a file of their own."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from official import compare, lower
from torch import nn

import executorch_wgpu.runtime.executorch_bridge as bridge
from executorch_wgpu.backend import CompileOptions, WgpuPartitioner

import exports

#: Leaves a convolution to XNNPACK and cumsum to ExecuTorch.
SHARED = CompileOptions(
    call_cost_us=0, operator_blocklist=["aten.cumsum.default", "aten.convolution.default"]
)


class ConvAndLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(8, 8)

    def forward(self, x, y):
        return self.conv(x).cumsum(-1) * 2, self.linear(y).sin().cumsum(0)


@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_xnnpack_in_either_order(ours_first):
    module = ConvAndLinear().eval()
    inputs = (torch.randn(1, 3, 8, 8), torch.randn(4, 8))
    partitioners = [WgpuPartitioner(SHARED), XnnpackPartitioner()]
    lowered = to_edge_transform_and_lower(
        exports.export(module, inputs),
        partitioner=partitioners if ours_first else partitioners[::-1],
    )
    graph_module = lowered.exported_program().graph_module
    backends = {
        getattr(graph_module, node.target).backend_id
        for node in graph_module.graph.nodes
        if node.op == "get_attr"
    }
    assert backends == {"WgpuBackend", "XnnpackBackend"}
    program = Runtime.get().load_program(bytes(lowered.to_executorch().buffer))
    with torch.no_grad():
        compare(program.load_method("forward").execute(list(inputs)), list(module(*inputs)))


def test_weights_in_a_ptd_file(tmp_path):
    torch.manual_seed(0)
    module = nn.Linear(64, 64)
    options = CompileOptions(external_constants="weights")
    lowered = lower(module, (torch.randn(2, 64),), partitioner=[WgpuPartitioner(options)])
    program = lowered.to_executorch()
    path, weights = tmp_path / "model.pte", tmp_path / "weights.ptd"
    program.save(str(path))
    program.write_tensor_data_to_file(str(tmp_path))
    assert weights.stat().st_size > 64 * 64 * 4 > path.stat().st_size
    x = torch.randn(2, 64)
    official = Runtime.get()
    method = official.load_program(path, data_path=weights).load_method("forward")
    with torch.no_grad():
        compare(method.execute([x]), [module(x)])
    with pytest.raises(RuntimeError, match=r"external data, that file must be given"):
        official.load_program(path).load_method("forward")
    assert "'weight'" in str(bridge.last_error())
