"""Views, slices, joins and state of 16-bit elements: bits move, and odd rows share words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_shape import CASES

from harness import Chain, run_op

HALVES = [torch.float16, torch.bfloat16]


def bits(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Every bit pattern: NaN with payloads, infinities, subnormals."""
    words = np.random.default_rng([seed, *shape]).integers(0, 1 << 16, shape, np.uint16)
    return torch.from_numpy(words.view(np.int16)).view(dtype)


def same_bits(actual, expected: torch.Tensor) -> None:
    found = torch.as_tensor(actual)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert torch.equal(
        found.contiguous().view(torch.int16), expected.contiguous().view(torch.int16)
    )


@pytest.mark.parametrize("op", CASES)
def test_it_is_torchs(device, op):
    """The cases of the other dtypes."""
    for number, (args, expected) in enumerate(CASES[op]):
        dtype = HALVES[number % 2]

        def convert(item, dtype=dtype):
            if isinstance(item, torch.Tensor):
                return item.to(dtype) if item.dtype == torch.float32 else item
            return [convert(i) for i in item] if isinstance(item, (list, tuple)) else item

        given = {name: convert(arg) for name, arg in args.items()}
        wanted = convert(list(expected) if isinstance(expected, (tuple, list)) else [expected])
        results = run_op(device, op, given, wanted)
        for result, want in zip(results, wanted, strict=True):
            assert torch.equal(torch.as_tensor(result), want), (args, result)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sizes", [(3, 5), (4, 7), (1, 1), (6, 2)])
def test_rows_of_odd_length_are_joined(device, dtype, sizes):
    a, b = (bits(9, size, 3, dtype=dtype, seed=k) for k, size in enumerate(sizes))
    for dim in (1, 2):
        parts = [a, b] if dim == 1 else [a, bits(9, sizes[0], 4, dtype=dtype)]
        want = torch.cat(parts, dim)
        same_bits(run_op(device, "aten.cat.default", {"tensors": parts, "dim": dim}, want)[0], want)
    for dim in (0, 1, -1):
        for parts in ([a, a.flip(0)], [a, a, a.flip(0)]):
            args = {"tensors": parts, "dim": dim}
            want = torch.stack(parts, dim)
            same_bits(run_op(device, "aten.stack.default", args, want)[0], want)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 6, 8), (1, 3, 2)])
def test_copies_of_tensors_that_lie_in_every_way(device, dtype, shape):
    x = bits(*shape, dtype=dtype)
    for dims in ([2, 0, 1], [0, 2, 1], [2, 1, 0]):
        want = x.permute(dims)
        (y,) = run_op(device, "aten.permute_copy.default", {"self": x, "dims": dims}, want)
        same_bits(y, want)
    for dim, start, step in ((0, 0, 2), (1, 1, 1), (2, 1, 2)):
        index = (slice(None),) * dim + (slice(start, None, step),)
        args = {"self": x, "dim": dim, "start": start, "end": None, "step": step}
        same_bits(run_op(device, "aten.slice_copy.Tensor", args, x[index])[0], x[index])
    args = {"self": x, "repeats": [2, 1, 3]}
    same_bits(run_op(device, "aten.repeat.default", args, x.repeat(2, 1, 3))[0], x.repeat(2, 1, 3))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("row", [(4,), (5,), (3, 3)])
def test_a_slice_of_a_state_is_written_without_its_neighbours(device, dtype, row):
    """At a live position, rows of even and odd length, from values of 16 and of 32 bits."""
    for source in (dtype, torch.float32):
        chain = Chain()
        pos = chain.int_input("pos", 0, 60)
        S = chain.dim_of("S", 0, 1, 40)
        src = chain.input("src", (S, *row), source)
        shape = (64, *row)
        start = torch.ones(shape, dtype=dtype)
        state = chain.state(start, "cache")
        args = {"self": state, "src": src, "dim": 0, "start": pos, "end": pos + S, "step": 1}
        output = [(state.dtype, shape)]
        (new,) = chain.call("aten.slice_scatter.default", args, output, {0: "self"})
        chain.output(new)
        graph = chain.graph(device)
        expected = start.clone()
        for at, size in ((0, 1), (3, 5), (24, 40), (1, 1), (7, 33)):
            if source == dtype:
                rows = bits(size, *row, dtype=dtype, seed=at)
            else:
                rows = torch.randn(size, *row)
            expected[at : at + size] = rows
            same_bits(graph.execute([at, rows])[0], expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_parts_of_one_dimension_are_written_by_many_threads(device, dtype):
    """Columns 1, 4, 7 ... of rows of 2,001: no two elements of a thread's neighbours in a word
    get lost."""
    x, columns = bits(300, 2001, dtype=dtype), bits(300, 667, dtype=dtype, seed=1)
    want = x.clone()
    want[:, 1::3] = columns
    args = {"self": x, "src": columns, "dim": 1, "start": 1, "end": 2001, "step": 3}
    for _ in range(3):
        same_bits(run_op(device, "aten.slice_scatter.default", args, want)[0], want)


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers(device, dtype):
    for fill in (1.5, -0.0, 1e-7, float("inf"), float("-inf")):
        want = torch.full((3, 5), fill, dtype=dtype)
        args = {"size": [3, 5], "fill_value": fill}
        same_bits(run_op(device, "aten.full.default", args, want)[0], want)
