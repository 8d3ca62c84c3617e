"""f16 and bf16 in pointwise kernels, reductions and softmax: stored in 16 bits, computed in f32."""

from __future__ import annotations

import pytest
import torch
from test_operators import KEYWORDS, cases, operand, overload

from harness import Chain, assert_close, run_op

HALVES = [torch.float16, torch.bfloat16]


def close(actual, expected: torch.Tensor) -> None:
    """Of results in 16 bits."""
    assert_close(actual, expected, 2e-3, 1e-2)


def same_bits(actual, expected: torch.Tensor) -> None:
    found = torch.as_tensor(actual)
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16)), (found, expected)


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_is_read_as_what_it_is(device, dtype):
    """Subnormals, infinities, NaN; read one by one and four at a time."""
    for numbers in (every_pattern(dtype), every_pattern(dtype)[:-1]):
        wide = numbers.float()
        (y,) = run_op(device, "aten._to_copy.default", {"self": numbers}, wide)
        found = torch.as_tensor(y)
        assert torch.equal(found.isnan(), wide.isnan())
        assert torch.equal(found.nan_to_num(1.5), wide.nan_to_num(1.5))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_survives_a_copy_and_a_conversion_there_and_back(device, dtype):
    numbers = every_pattern(dtype)
    for part in (numbers, numbers[:-1], numbers[1:-2]):
        args = {"tensors": [part, part], "dim": 0}
        (y,) = run_op(device, "aten.cat.default", args, torch.cat([part, part]))
        same_bits(y, torch.cat([part, part]))
    finite = numbers[~numbers.isnan()]
    (y,) = run_op(device, "aten._to_copy.default", {"self": finite.float()}, finite)
    same_bits(y, finite)


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_to_nearest_even(device, dtype):
    """Beyond the largest number, what is finite stays finite; infinity stays infinity."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, generator=generator) * 10.0 ** torch.arange(-9, 11).repeat(200)
    numbers = every_pattern(dtype)[:-1].float()
    between = (numbers + numbers.roll(1)) / 2  # ties
    edges = [65503.9, 65504.0, 65519.0, 65520.0, 1e5, 3.4e38, 2.0**-25, 2.0**-24, 1e-30, 0.0]
    extremes = [float("inf"), 3.4028234663852886e38, 1e-45]
    x = torch.cat([x, between[between.isfinite()], torch.tensor(edges + extremes)])
    x = torch.cat([x, -x, torch.tensor([float("nan")])])
    want = x.to(dtype)
    largest = torch.finfo(dtype).max
    overflow = want.isinf() & x.isfinite()
    want[overflow] = x[overflow].sign().to(dtype) * largest
    for size in (len(x), len(x) - 1, len(x) // 4 * 4):
        (y,) = run_op(device, "aten._to_copy.default", {"self": x[-size:]}, want[-size:])
        found, expected = torch.as_tensor(y), want[-size:]
        assert torch.equal(found.isnan(), expected.isnan())
        same_bits(found[:-1], expected[:-1])


@pytest.mark.parametrize("target", [torch.float32, torch.int32, torch.bool, *HALVES])
@pytest.mark.parametrize("source", [torch.float32, torch.int32, torch.int64, torch.bool, *HALVES])
def test_casts(device, source, target):
    if source not in HALVES and target not in HALVES:
        pytest.skip("tested with the other dtypes")
    for shape in ((1,), (5, 33), (4, 8)):
        a = (torch.randn(shape) * 4).to(source)
        (y,) = run_op(device, "aten._to_copy.default", {"self": a}, a.to(target))
        assert torch.equal(torch.as_tensor(y), a.to(target))


@pytest.mark.parametrize("op, extra", list(cases()))
def test_pointwise(device, op, extra):
    """In both dtypes, over an odd size and whole vectors."""
    generator = torch.Generator().manual_seed(1)
    for dtype, shape in zip(HALVES, [(3, 5), (2, 12)], strict=True):
        args = {"self": operand(op, shape, generator)}
        if op == "aten.where.self":
            args = {"condition": torch.rand(shape, generator=generator) > 0.5, **args}
            args["other"] = operand(op, shape, generator)
        for name, value in extra.items():
            args[name] = operand(op, shape, generator) if value == "tensor" else value
        for name, value in args.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                args[name] = value.to(dtype)
        wide = {
            name: a.double() if isinstance(a, torch.Tensor) and a.dtype == dtype else a
            for name, a in args.items()
        }
        names = [a.name for a in overload(op)._schema.arguments]
        positional = [wide.pop(n) for n in names if n in wide and n not in KEYWORDS]
        expected = overload(op)(*positional, **wide)
        if not expected.is_floating_point():
            (y,) = run_op(device, op, args, expected)
            assert torch.equal(torch.as_tensor(y), expected)
            continue
        limit = torch.finfo(dtype).max
        (y,) = run_op(device, op, args, expected.to(dtype))
        close(y, expected.clamp(-limit, limit))


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_are_compared_in_the_dtype_of_the_tensor(device, dtype):
    a = torch.tensor([0.1, 0.2, 0.3], dtype=dtype)
    for op in ("eq", "lt", "ge"):
        expected = overload(f"aten.{op}.Scalar")(a, 0.2)
        (y,) = run_op(device, f"aten.{op}.Scalar", {"self": a, "other": 0.2}, expected)
        assert torch.equal(torch.as_tensor(y), expected)


@pytest.mark.parametrize("left", [torch.float32, torch.int32, torch.bool, *HALVES])
@pytest.mark.parametrize("shapes", [((5, 7), (7,)), ((3, 1), (1, 5)), ((2, 8), (8,)), ((9,), ())])
def test_operands_of_several_dtypes(device, left, shapes):
    for right in HALVES:
        a, b = (torch.randn(shapes[0]) * 3).to(left), torch.randn(shapes[1]).to(right)
        expected = a.double() * b.double()
        for out in (torch.float32, right):
            args = {"self": a, "other": b}
            (y,) = run_op(device, "aten.mul.Tensor", args, expected.to(out))
            (assert_close if out == torch.float32 else close)(y, expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_operands_read_through_strides(device, dtype):
    """Permuted, sliced from an odd element with a step, and expanded: one dispatch."""
    for rows, columns in ((6, 8), (7, 5), (1, 9)):
        chain = Chain()
        x = chain.input("x", (rows, columns), dtype)
        (t,) = chain.call(
            "aten.permute_copy.default", {"self": x, "dims": [1, 0]}, [(x.dtype, (columns, rows))]
        )
        args = {"self": t, "dim": 0, "start": 1, "end": None, "step": 2}
        length = len(range(1, columns, 2))
        (s,) = chain.call("aten.slice_copy.Tensor", args, [(x.dtype, (length, rows))])
        (y,) = chain.call("aten.mul.Tensor", {"self": s, "other": s}, [(x.dtype, (length, rows))])
        chain.output(y)
        graph = chain.graph(device)
        assert sum(len(s.routes[0].dispatches) for s in graph.program.steps) == 1
        a = torch.randn(rows, columns).to(dtype)
        close(graph.execute([a])[0], a.double().t()[1::2] ** 2)


@pytest.mark.parametrize("op", ["mean.dim", "sum.dim_IntList", "amax.default"])
@pytest.mark.parametrize("dims", [[-1], [0], [0, 2], None])
def test_reductions(device, op, dims):
    for dtype, shape in zip(HALVES, [(4, 7, 33), (2, 3, 4)], strict=True):
        a = torch.randn(shape).to(dtype)
        given = dims if dims is not None or op != "amax.default" else []
        expected = overload(f"aten.{op}")(a.double(), given, False)
        args = {"self": a, "dim": given, "keepdim": False}
        for out in (dtype, torch.float32):
            (y,) = run_op(device, f"aten.{op}", args, expected.to(out))
            (assert_close if out == torch.float32 else close)(y, expected)


@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize("op", ["_softmax", "_log_softmax"])
def test_softmax(device, op, dim):
    """Rows of an odd length share words."""
    for dtype, shape in zip(HALVES, [(3, 5, 33), (4, 130)], strict=True):
        a = (torch.randn(shape) * 10).to(dtype)
        expected = overload(f"aten.{op}.default")(a.double(), dim, False)
        args = {"self": a, "dim": dim, "half_to_float": False}
        for out in (dtype, torch.float32):
            (y,) = run_op(device, f"aten.{op}.default", args, expected.to(out))
            (assert_close if out == torch.float32 else close)(y, expected)
