"""wgpu.rope over 16-bit operands and results."""

from __future__ import annotations

import pytest
import torch
from test_rope import reference

from harness import DTYPES, Chain, assert_close


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("head_dim", [2, 6, 12, 64])
def test_dtypes(device, half, interleaved, head_dim):
    """Pairs side by side are one word; halves of a head may share one (6: three and three)."""
    x = torch.randn(2, 3, 5, head_dim)
    width = head_dim // 2 if interleaved else head_dim
    cos, sin = torch.randn(3, 1, width), torch.randn(1, 3, 1, width)
    for x_dtype, table, out in (
        (half, half, half),
        (half, torch.float32, half),
        (torch.float32, half, torch.float32),
        (torch.float32, torch.float32, half),
    ):
        given = [x.to(x_dtype), cos.to(table), sin.to(table)]
        chain = Chain()
        names = ("x", "cos", "sin")
        args = {n: chain.input(n, t.shape, t.dtype) for n, t in zip(names, given, strict=True)}
        args["interleaved"] = interleaved
        chain.output(*chain.call("wgpu.rope", args, [(DTYPES[out], x.shape)]))
        graph = chain.graph(device)
        assert sum(len(s.routes[0].dispatches) for s in graph.program.steps) == 1
        (y,) = graph.execute(given)
        tolerance = () if out == torch.float32 else (2e-3, 1e-2)
        assert y.dtype == out
        assert_close(y, reference(*given, interleaved), *tolerance)
