"""wgpu.rope against fp64, in both layouts of the pairs."""

from __future__ import annotations

import pytest
import torch

from harness import Chain, assert_close


def reference(x, cos, sin, interleaved):
    x, cos, sin = x.double(), cos.double(), sin.double()
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("head_dim", [2, 4, 6, 64, 80, 128])
def test_sizes(device, interleaved, head_dim):
    for batch, seq, heads in ((1, 1, 1), (1, 5, 3), (2, 3, 9)):
        x = torch.randn(batch, seq, heads, head_dim)
        width = head_dim // 2 if interleaved else head_dim
        cos, sin = torch.randn(seq, 1, width), torch.randn(1, seq, 1, width)
        chain = Chain()
        values = [chain.input(n, t.shape) for n, t in (("x", x), ("cos", cos), ("sin", sin))]
        args = dict(zip(("x", "cos", "sin"), values, strict=True))
        args["interleaved"] = interleaved
        chain.output(*chain.call("wgpu.rope", args, [(values[0].dtype, x.shape)]))
        (y,) = chain.graph(device).execute([x.numpy(), cos.numpy(), sin.numpy()])
        assert_close(y, reference(x, cos, sin, interleaved))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rows_of_a_table_from_a_live_position(device, interleaved):
    """As models use it: heads permuted, tables sliced at pos .. pos + S."""
    chain = Chain()
    pos = chain.int_input("pos", 0, 31)
    S = chain.dim_of("S", 1, 1, 16)
    x = chain.input("x", (1, S, 3, 8))
    width = 4 if interleaved else 8
    tables = [torch.randn(32, width), torch.randn(32, width)]
    rows = []
    for table in tables:
        args = {"self": chain.constant(table), "dim": 0, "start": pos, "end": None, "step": 1}
        (part,) = chain.call("aten.slice_copy.Tensor", args, [(x.dtype, (S, width))])
        view = {"self": part, "size": []}
        rows += chain.call("aten.view_copy.default", view, [(x.dtype, (1, S, 1, width))])
    args = {"x": x, "cos": rows[0], "sin": rows[1], "interleaved": interleaved}
    chain.output(*chain.call("wgpu.rope", args, [(x.dtype, (1, S, 3, 8))]))
    graph = chain.graph(device)
    for at, size in ((0, 1), (5, 16), (31, 1), (16, 16)):
        a = torch.randn(1, size, 3, 8)
        cos, sin = (t[at : at + size].view(1, size, 1, width) for t in tables)
        (y,) = graph.execute([at, a.numpy()])
        assert_close(y, reference(a, cos, sin, interleaved))
