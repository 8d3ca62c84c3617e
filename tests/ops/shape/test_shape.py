"""Views, slices, joins: every operator against torch, over tensors that lie in every way."""

from __future__ import annotations

import pytest
import torch

from executorch_wgpu.ops.symbolic import symbol

from harness import DTYPES, Chain, run_op

X = torch.randn(3, 4, 6)

#: operator -> list of (arguments, torch's own result)
CASES = {
    "aten.view_copy.default": [
        ({"self": X, "size": size}, X.reshape(size)) for size in ([12, 6], [3, 2, 2, 6], [72])
    ],
    "aten.view.default": [({"self": X, "size": [12, -1]}, X.view(12, -1))],
    "aten.reshape.default": [({"self": X, "shape": [6, 12]}, X.reshape(6, 12))],
    "aten._unsafe_view.default": [({"self": X, "size": [6, 12]}, X.reshape(6, 12))],
    "aten.unsqueeze_copy.default": [
        ({"self": X, "dim": dim}, X.unsqueeze(dim)) for dim in (0, 2, -1)
    ],
    "aten.unsqueeze.default": [({"self": X, "dim": 1}, X.unsqueeze(1))],
    "aten.squeeze_copy.dim": [({"self": X[:1], "dim": 0}, X[0])],
    "aten.squeeze_copy.dims": [({"self": X[:1, :, :1], "dim": [0, 1, 2]}, X[0, :, 0])],
    "aten.squeeze.dims": [({"self": X[:1], "dim": [0, 1]}, X[0])],
    "aten.permute_copy.default": [
        ({"self": X, "dims": dims}, X.permute(dims)) for dims in ([2, 0, 1], [0, 2, 1], [-1, 1, 0])
    ],
    "aten.permute.default": [({"self": X, "dims": [1, 0, 2]}, X.permute(1, 0, 2))],
    "aten.transpose_copy.int": [({"self": X, "dim0": 0, "dim1": -1}, X.transpose(0, -1))],
    "aten.transpose.int": [({"self": X, "dim0": 1, "dim1": 2}, X.transpose(1, 2))],
    "aten.t_copy.default": [({"self": X[0]}, X[0].t())],
    "aten.t.default": [({"self": X[0, 0]}, X[0, 0].t())],
    "aten.expand_copy.default": [
        ({"self": X[:, :1], "size": [2, 3, 5, 6]}, X[:, :1].expand(2, 3, 5, 6))
    ],
    "aten.expand.default": [({"self": X[:1], "size": [7, -1, -1]}, X[:1].expand(7, -1, -1))],
    "aten.alias_copy.default": [({"self": X}, X)],
    "aten.alias.default": [({"self": X}, X)],
    "aten.detach.default": [({"self": X}, X)],
    "aten.detach_copy.default": [({"self": X}, X)],
    "aten.lift_fresh_copy.default": [({"self": X}, X)],
    "aten.clone.default": [({"self": X, "memory_format": None}, X)],
    "dim_order_ops._clone_dim_order.default": [({"self": X, "dim_order": [0, 1, 2]}, X)],
    "dim_order_ops._to_dim_order_copy.default": [
        ({"self": X, "dim_order": [0, 1, 2]}, X.to(torch.int32))
    ],
    "aten.copy.default": [
        ({"self": X, "src": X[:1]}, X[:1].expand(3, 4, 6)),
        ({"self": X, "src": torch.arange(6)}, torch.arange(6).float().expand(3, 4, 6)),
    ],
    "aten.slice_copy.Tensor": [
        (
            {"self": X, "dim": d, "start": s, "end": e, "step": st},
            X[(slice(None),) * d + (slice(s, e, st),)],
        )
        for d, s, e, st in (
            (0, 1, 3, 1),
            (1, None, None, 1),
            (2, 1, 2**63 - 1, 2),
            (2, -4, -1, 1),
            (1, 2, 2, 1),
            (1, -100, 100, 3),
            (0, 5, 9, 1),
        )
    ],
    "aten.slice.Tensor": [({"self": X, "dim": -1, "start": 2, "end": 5, "step": 1}, X[..., 2:5])],
    "aten.slice_scatter.default": [
        (
            {"self": X, "src": X[:, :2] * 2, "dim": 1, "start": 1, "end": 3, "step": 1},
            torch.slice_scatter(X, X[:, :2] * 2, 1, 1, 3),
        )
    ],
    "aten.select_copy.int": [
        ({"self": X, "dim": d, "index": i}, X.select(d, i)) for d, i in ((0, 1), (2, -1), (-2, 3))
    ],
    "aten.select.int": [({"self": X, "dim": 1, "index": 0}, X[:, 0])],
    "aten.split_with_sizes_copy.default": [
        ({"self": X, "split_sizes": [1, 3, 2], "dim": -1}, X.split([1, 3, 2], -1))
    ],
    "aten.split_with_sizes.default": [
        ({"self": X, "split_sizes": [4, 2], "dim": 2}, X.split([4, 2], 2))
    ],
    "aten.split_copy.Tensor": [({"self": X, "split_size": 4, "dim": 2}, X.split(4, 2))],
    "aten.split.Tensor": [({"self": X, "split_size": 2, "dim": 0}, X.split(2, 0))],
    "aten.chunk.default": [({"self": X, "chunks": 2, "dim": 1}, X.chunk(2, 1))],
    "aten.unbind_copy.int": [({"self": X, "dim": 0}, X.unbind(0))],
    "aten.unbind.int": [({"self": X, "dim": -1}, X.unbind(-1))],
    "aten.cat.default": [
        ({"tensors": [X, X[:, :1], X], "dim": 1}, torch.cat([X, X[:, :1], X], 1)),
        ({"tensors": [X, X[:0]], "dim": 0}, X),
        ({"tensors": [X], "dim": -1}, X),
    ],
    "aten.stack.default": [
        ({"tensors": [X, X + 1], "dim": dim}, torch.stack([X, X + 1], dim)) for dim in (0, 1, -1)
    ],
    "aten.full.default": [
        ({"size": [2, 3], "fill_value": fill}, torch.full((2, 3), fill))
        for fill in (1.5, 0.0, -0.0, float("-inf"), float("inf"))
    ],
    "aten.full_like.default": [({"self": X, "fill_value": 3}, torch.full_like(X, 3))],
    "aten.scalar_tensor.default": [({"s": 2.5}, torch.tensor(2.5))],
    "aten.repeat.default": [
        ({"self": X, "repeats": [2, 1, 3]}, X.repeat(2, 1, 3)),
        ({"self": X, "repeats": [2, 1, 2, 1]}, X.repeat(2, 1, 2, 1)),
    ],
}


@pytest.mark.parametrize("op", CASES)
def test_it_is_torchs(device, op):
    for args, expected in CASES[op]:
        wanted = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        results = run_op(device, op, args, wanted)
        for result, want in zip(results, wanted, strict=True):
            assert torch.equal(torch.as_tensor(result), want), (args, result)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "op", ["aten.cat.default", "aten.slice_copy.Tensor", "aten.repeat.default"]
)
def test_other_dtypes(device, op, dtype):
    x = (X * 3).to(dtype)
    args = {
        "aten.cat.default": ({"tensors": [x, x], "dim": 1}, torch.cat([x, x], 1)),
        "aten.slice_copy.Tensor": (
            {"self": x, "dim": 1, "start": 1, "end": 3, "step": 1},
            x[:, 1:3],
        ),
        "aten.repeat.default": ({"self": x, "repeats": [2, 1, 1]}, x.repeat(2, 1, 1)),
    }
    given, expected = args[op]
    (y,) = run_op(device, op, given, expected)
    assert torch.equal(torch.as_tensor(y), expected) and torch.as_tensor(y).dtype == dtype


def test_a_live_slice_of_a_constant(device):
    """As RoPE tables are read: rows pos .. pos + S, with a check on the host."""
    chain = Chain()
    pos = chain.int_input("pos", 0, 15)
    S = chain.dim_of("S", 0, 1, 8)
    x = chain.input("x", (S, 4))
    table = chain.constant(torch.randn(16, 4))
    args = {"self": table, "dim": 0, "start": pos, "end": pos + S, "step": 1}
    (rows,) = chain.call("aten.slice_copy.Tensor", args, [(x.dtype, (S, 4))])
    (y,) = chain.call("aten.add.Tensor", {"self": x, "other": rows}, [(x.dtype, (S, 4))])
    chain.output(y)
    graph = chain.graph(device)
    for at, size in ((0, 1), (3, 5), (8, 8), (15, 1)):
        a = torch.randn(size, 4)
        expected = a + table.constant[at : at + size]
        assert torch.equal(torch.as_tensor(graph.execute([at, a.numpy()])[0]), expected)
    with pytest.raises(ValueError, match=r"14.*3.*16"):
        graph.execute([14, torch.randn(3, 4).numpy()])


def test_a_live_index(device):
    chain = Chain()
    index = chain.int_input("index", 0, 5)
    x = chain.input("x", (6, 3))
    args = {"self": x, "dim": 0, "index": index}
    (row,) = chain.call("aten.select_copy.int", args, [(x.dtype, (3,))])
    chain.output(row)
    graph = chain.graph(device)
    a = torch.randn(6, 3)
    for at in (0, 5, 2):
        assert torch.equal(torch.as_tensor(graph.execute([at, a.numpy()])[0]), a[at])


def test_a_written_slice_of_a_state_is_in_place(device):
    """``cache[:, a:b] = k``: one dispatch that writes b - a rows, and an older version that is
    read later survives as a copy."""
    for read_old in (False, True):
        chain = Chain()
        pos = chain.int_input("pos", 0, 6)
        k = chain.input("k", (2, 4))
        state = chain.state(torch.zeros(8, 4), "cache")
        args = {"self": state, "src": k, "dim": 0, "start": pos, "end": pos + 2, "step": 1}
        output = [(state.dtype, (8, 4))]
        (new,) = chain.call("aten.slice_scatter.default", args, output, {0: "self"})
        (y,) = chain.call("aten.mul.Tensor", {"self": new, "other": 2.0}, [(k.dtype, (8, 4))])
        chain.output(y)
        if read_old:
            (z,) = chain.call("aten.neg.default", {"self": state}, [(k.dtype, (8, 4))])
            chain.output(z)
        lowered = chain.lower()
        labels = [d.label for s in lowered.program.steps for d in s.routes[0].dispatches]
        assert any("copy_version" in label for label in labels) is read_old
        graph = chain.graph(device)
        expected = torch.zeros(8, 4)
        for at in (0, 3, 6):
            old = expected.clone()
            rows = torch.randn(2, 4)
            expected[at : at + 2] = rows
            results = graph.execute([at, rows.numpy()])
            assert torch.equal(torch.as_tensor(results[0]), expected * 2)
            if read_old:
                assert torch.equal(torch.as_tensor(results[1]), -old)


def test_sizes_are_symbols_until_they_run(device):
    """A cat of two live sizes."""
    chain = Chain()
    A = chain.dim_of("A", 0, 0, 9)
    x = chain.input("x", (A, 5))
    B = chain.dim_of("B", 0, 0, 9)
    y = chain.input("y", (B, 5))
    (z,) = chain.call("aten.cat.default", {"tensors": [x, y], "dim": 0}, [(x.dtype, (A + B, 5))])
    chain.output(z)
    graph = chain.graph(device)
    for a, b in ((1, 1), (3, 7), (0, 4), (9, 0), (0, 0)):
        one, two = torch.randn(a, 5), torch.randn(b, 5)
        (result,) = graph.execute([one.numpy(), two.numpy()])
        assert torch.equal(torch.as_tensor(result), torch.cat([one, two]))
    assert symbol(0, "A", 0, 9) == A and DTYPES[torch.float32] is x.dtype
