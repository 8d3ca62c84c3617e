"""Every pointwise operator against fp64, every reduction, every shape operator."""

from __future__ import annotations

import pytest
import torch

from executorch_wgpu.ops.elementwise.operators import POINTWISE

from harness import DTYPES, Chain, assert_close, run_op

aten = torch.ops.aten
SHAPES = [(1,), (3,), (64,), (4, 65), (2, 3, 5, 7), (1, 1), (0, 3)]

#: Arguments beside self, by operator; what is not here is unary, or binary by its operands.
EXTRA = {
    "aten.pow.Tensor_Scalar": [
        {"exponent": e} for e in (0, 1, 2, 3, 4, 5, -1, -2, 0.5, -0.5, 7, 2.5)
    ],
    "aten.clamp.default": [
        {"min": -0.5, "max": 0.5},
        {"min": 0.0, "max": None},
        {"min": None, "max": 0.25},
        {"min": 1.0, "max": -1.0},
    ],
    "aten.elu.default": [
        {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0},
        {"alpha": 0.5, "scale": 2.0, "input_scale": 0.7},
        {"alpha": -2.0, "scale": 1.0, "input_scale": -0.5},
    ],
    "aten.hardtanh.default": [{"min_val": -1.0, "max_val": 1.0}, {"min_val": 0.0, "max_val": 6.0}],
    "aten.leaky_relu.default": [{"negative_slope": 0.01}, {"negative_slope": 0.3}],
    "aten.div.Tensor_mode": [
        {"other": "tensor", "rounding_mode": mode} for mode in (None, "floor", "trunc")
    ],
    "aten.gelu.default": [{"approximate": "none"}, {"approximate": "tanh"}],
}
#: Arguments that have to be named.
KEYWORDS = ("approximate", "rounding_mode")
#: Operators that are defined on positive numbers only.
POSITIVE = ("rsqrt", "sqrt", "log", "reciprocal")


def overload(op: str):
    namespace, name, kind = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), kind)


def cases():
    for op, entry in POINTWISE.items():
        if op in EXTRA:
            yield from ((op, extra) for extra in EXTRA[op])
        elif op.endswith(".Scalar"):
            yield from ((op, {"other": other}) for other in (2, -1.5))
        elif "other" in entry.operands and len(entry.operands) == 2:
            yield op, {"other": "tensor"}
        else:
            yield op, {}


def operand(op: str, shape, generator) -> torch.Tensor:
    if "logical" in op:
        return torch.rand(shape, generator=generator) > 0.5
    x = torch.randn(shape, generator=generator) * 3
    if any(name in op for name in POSITIVE) or "pow" in op:
        return x.abs() + 0.1
    return x


@pytest.mark.parametrize("op, extra", list(cases()))
def test_pointwise(device, op, extra):
    generator = torch.Generator().manual_seed(1)
    for shape in SHAPES:
        args = {"self": operand(op, shape, generator)}
        if op == "aten.where.self":
            args = {"condition": torch.rand(shape, generator=generator) > 0.5, **args}
            args["other"] = operand(op, shape, generator)
        for name, value in extra.items():
            args[name] = operand(op, shape, generator) if value == "tensor" else value
        wide = [
            a.double() if isinstance(a, torch.Tensor) and a.dtype == torch.float32 else a
            for a in args.values()
        ]
        names = [a.name for a in overload(op)._schema.arguments]
        kwargs = dict(zip(args, wide, strict=True))
        positional = [kwargs.pop(n) for n in names if n in kwargs and n not in KEYWORDS]
        expected = overload(op)(*positional, **kwargs)
        narrow = expected.float() if expected.is_floating_point() else expected
        (y,) = run_op(device, op, args, narrow)
        assert_close(y, expected)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_whole_quotients_are_not_one_off(device, mode):
    """Where the quotient is a whole number, a division that is off in its last bit shows."""
    quotient = torch.cat([torch.arange(-40.0, 41.0), torch.tensor([12345.0, -65537.0])])
    divisor = torch.tensor([3.0, -7.0, 0.1, -0.3, 1e-3, 49.0, 1 / 3, 1e7])
    b = divisor[:, None].expand(-1, len(quotient)).contiguous()
    a = quotient * b
    args = {"self": a, "other": b, "rounding_mode": mode}
    # In double precision, of the same a: float32's own rounding of a decides what is whole.
    exact = torch.div(a.double(), b.double(), rounding_mode=mode)
    (y,) = run_op(device, "aten.div.Tensor_mode", args, exact.float())
    assert torch.equal(torch.as_tensor(y).double(), exact)


def test_log1p_near_zero_and_minus_one(device):
    """Relative error, where the sum 1 + x has lost most digits of x."""
    small = 10.0 ** torch.linspace(-30, 0, 301)
    a = torch.cat([small, -small[:-1] * 0.999, torch.tensor([0.0, 0.03, -0.03, 1e30, -0.999])])
    expected = torch.log1p(a.double())
    (y,) = run_op(device, "aten.log1p.default", {"self": a}, expected.float())
    torch.testing.assert_close(torch.as_tensor(y).double(), expected, atol=0, rtol=1e-5)


def test_round_takes_halves_to_even(device):
    a = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388609.0, -3.7])
    (y,) = run_op(device, "aten.round.default", {"self": a}, a.round())
    assert torch.equal(torch.as_tensor(y), a.round())


@pytest.mark.parametrize("op", ["add", "sub", "mul", "maximum", "minimum", "abs", "neg"])
def test_int32(device, op):
    name = f"aten.{op}." + ("default" if op in ("maximum", "minimum", "abs", "neg") else "Tensor")
    a = torch.randint(-1000, 1000, (5, 33), dtype=torch.int32)
    b = torch.randint(-1000, 1000, (33,), dtype=torch.int32)
    args = {"self": a} if op in ("abs", "neg") else {"self": a, "other": b}
    expected = overload(name)(*args.values())
    (y,) = run_op(device, name, args, expected)
    assert torch.equal(torch.as_tensor(y), expected)


@pytest.mark.parametrize(
    "left, right",
    [
        ((1, 5, 576), (576,)),
        ((3, 1, 7), (5, 1)),
        ((), (4, 4)),
        ((2, 3, 4), (2, 1, 4)),
        ((1, 1), (1,)),
        ((8, 12), (8, 1)),
        ((4, 3, 8), (3, 8)),
    ],
)
def test_broadcasting(device, left, right):
    a, b = torch.randn(left), torch.randn(right)
    for op in ("add", "mul"):
        expected = overload(f"aten.{op}.Tensor")(a.double(), b.double())
        (y,) = run_op(device, f"aten.{op}.Tensor", {"self": a, "other": b}, expected.float())
        assert_close(y, expected)


@pytest.mark.parametrize("alpha", [1, 2, -0.5])
def test_alpha(device, alpha):
    a, b = torch.randn(3, 5), torch.randn(3, 5)
    for op in ("add", "sub"):
        expected = overload(f"aten.{op}.Tensor")(a, b, alpha=alpha)
        args = {"self": a, "other": b, "alpha": alpha}
        (y,) = run_op(device, f"aten.{op}.Tensor", args, expected)
        assert_close(y, expected)


def test_operands_read_through_strides(device):
    """A permuted, sliced and expanded operand costs one dispatch, whichever way it lies."""
    for rows, columns in ((6, 8), (7, 5), (1, 9)):
        chain = Chain()
        x = chain.input("x", (rows, columns))
        (t,) = chain.call(
            "aten.permute_copy.default", {"self": x, "dims": [1, 0]}, [(x.dtype, (columns, rows))]
        )
        args = {"self": t, "dim": 0, "start": 1, "end": None, "step": 2}
        length = len(range(1, columns, 2))
        (s,) = chain.call("aten.slice_copy.Tensor", args, [(x.dtype, (length, rows))])
        (y,) = chain.call("aten.mul.Tensor", {"self": s, "other": s}, [(x.dtype, (length, rows))])
        chain.output(y)
        lowered = chain.lower()
        assert sum(len(s.routes[0].dispatches) for s in lowered.program.steps) == 1
        a = torch.randn(rows, columns)
        assert_close(chain.graph(device).execute([a.numpy()])[0], a.t()[1::2] ** 2)


def test_more_elements_than_one_dimension_of_a_grid_holds(device):
    """65,535 workgroups a dimension: the grid folds into two."""
    count = 65_535 * 64 * 2 + 3
    a = torch.randn(count)
    (y,) = run_op(device, "aten.neg.default", {"self": a}, -a)
    assert torch.equal(torch.as_tensor(y), -a)


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_whole_reductions(device, op):
    for shape in ((4, 7, 33), (1,), (2, 3, 1025)):
        a = torch.randn(shape)
        expected = overload(f"aten.{op}.default")(a.double())
        (y,) = run_op(device, f"aten.{op}.default", {"self": a}, expected.float())
        assert_close(y, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("op", ["aten.argmax.default", "aten.argmin.default"])
@pytest.mark.parametrize("shape", [(4, 7, 33), (1, 1, 1), (3, 130, 2), (2, 3, 1025)])
def test_where_the_largest_is(device, op, shape, dtype):
    """Distinct numbers, then few of them: the first of equals."""
    distinct = torch.randperm(torch.Size(shape).numel()).reshape(shape).to(dtype) - 7
    for a in (
        distinct,
        torch.randint(-2, 2, shape).to(dtype),
        torch.full(shape, -65000.0).to(dtype),
    ):
        for dim in (0, 1, -1, None):
            # PyTorch does not promise which of equals it finds.
            best = (a.flatten() if dim is None else a).double()
            best = best if "max" in op else -best
            at = 0 if dim is None else dim
            first = (best == best.amax(at, keepdim=True)).int().argmax(at)
            keepdim = dim == 1
            expected = first.unsqueeze(1) if keepdim else first
            args = {"self": a, "dim": dim, "keepdim": keepdim}
            (y,) = run_op(device, op, args, expected)
            assert torch.equal(torch.as_tensor(y), expected)


@pytest.mark.parametrize("op", ["mean.dim", "sum.dim_IntList", "amax.default", "amin.default"])
@pytest.mark.parametrize("dims", [[-1], [0], [1], [1, 2], [0, 2], [0, 1, 2], None])
@pytest.mark.parametrize("shape", [(4, 7, 33), (1, 1, 1), (3, 130, 2), (2, 3, 1025)])
def test_reductions(device, op, dims, shape):
    a = torch.randn(shape)
    for keepdim in (False, True):
        given = dims if dims is not None or not op.startswith("am") else []
        expected = overload(f"aten.{op}")(a.double(), given, keepdim)
        args = {"self": a, "dim": given, "keepdim": keepdim}
        (y,) = run_op(device, f"aten.{op}", args, expected.float())
        assert_close(y, expected)


@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("op", ["_softmax", "_log_softmax"])
@pytest.mark.parametrize("shape", [(4, 7, 33), (1, 1), (2, 300)])
def test_softmax(device, op, dim, shape):
    a = torch.randn(shape) * 10
    expected = overload(f"aten.{op}.default")(a.double(), dim, False)
    args = {"self": a, "dim": dim, "half_to_float": False}
    (y,) = run_op(device, f"aten.{op}.default", args, expected.float())
    assert_close(y, expected)


CASTS = [torch.float32, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_casts(device, source, target):
    if (source, target) == (torch.float32, torch.int64):
        pytest.skip("left to the CPU: the GPU holds 32 bits")
    a = (torch.randn(5, 33) * 4).to(source)
    (y,) = run_op(device, "aten._to_copy.default", {"self": a}, a.to(target))
    assert torch.equal(torch.as_tensor(y), a.to(target))


def test_bits_of_nan_and_infinity_survive_copies(device):
    bits = torch.tensor(
        [0x7F800000, 0x7FC00001, 0x7F800001, 0x00000001, 0x3F800000, 0x7FFFFFFF], dtype=torch.int32
    )
    bits = torch.cat([bits, bits | torch.tensor(-(2**31), dtype=torch.int32)])
    a = bits.view(torch.float32)
    (y,) = run_op(device, "aten.cat.default", {"tensors": [a, a], "dim": 0}, torch.cat([a, a]))
    assert torch.equal(torch.as_tensor(y).view(torch.int32), torch.cat([bits, bits]))


def test_every_dtype_of_the_harness_is_known():
    assert set(CASTS) <= set(DTYPES)
