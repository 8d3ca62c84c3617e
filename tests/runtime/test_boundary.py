"""What crosses the boundary: every dtype both ways, numpy and torch, and each kind of mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import Build, R, W, chain

from executorch_wgpu.runtime import boundary
from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.serialization.dispatch_list import DType, Input, SymSource, ValueKind

MAX = 64


def copy_program(dtype: DType) -> Any:
    """y = x for any dtype, word by word, of shape [n, 3] with n up to 64."""
    b = Build()
    n, three = b.sym("n", SymSource.INPUT_DIM, 0, 0, 0, MAX), b.const(3)
    size = boundary.storage_bytes(MAX * 3, dtype)
    x, y = b.input("x", dtype, [n, three], size), b.output("y", dtype, [n, three], size)
    wgsl = (
        "@group(1) @binding(0) var<storage, read> x: array<u32>;\n"
        "@group(1) @binding(1) var<storage, read_write> y: array<u32>;\n"
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {\n"
        "    if (id.x < arrayLength(&y)) { y[id.x] = x[id.x]; }\n}\n"
    )
    grid = (b.const(3), b.const(1), b.const(1))
    b.simple(b.dispatch(b.kernel(wgsl, (R, W)), [x, y], grid, "copy"))
    return b.program()


def sample(dtype: DType, n: int) -> np.ndarray:
    values = np.arange(n * 3).reshape(n, 3) - 4
    if dtype is DType.BF16:
        return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype is DType.BOOL:
        return values % 2 == 0
    kinds = {DType.F32: "f4", DType.F16: "f2", DType.I32: "i4", DType.I64: "i8"}
    return values.astype({**kinds, DType.I8: "i1", DType.U8: "u1"}[dtype])


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("n", [0, 1, 5, MAX])
def test_numpy_round_trip(device: Any, dtype: DType, n: int) -> None:
    x = sample(dtype, n)
    [y] = WebGPUGraph(device, copy_program(dtype)).execute([x])
    assert y.shape == x.shape
    if dtype is DType.BF16:
        assert y.dtype.name in ("uint16", "bfloat16")
        y = y.view(np.uint16)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(x, y)
    y[:] = 0  # the caller's own memory


@pytest.mark.parametrize("dtype", list(DType))
def test_torch_round_trip(device: Any, dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    names = ("float32", "float16", "bfloat16", "int32", "int64", "bool", "int8", "uint8")
    kinds = dict(zip(DType, names, strict=True))
    graph = WebGPUGraph(device, copy_program(dtype))
    for n in (0, 5):
        x = (torch.arange(n * 3).reshape(n, 3) - 4).to(getattr(torch, kinds[dtype]))
        [y] = graph.execute([x])
        assert y.dtype == x.dtype and torch.equal(x, y)


def test_strides_and_read_only_arrays(device: Any) -> None:
    torch = pytest.importorskip("torch")
    graph = WebGPUGraph(device, copy_program(DType.F32))
    x = np.arange(60, dtype=np.float32).reshape(6, 10)
    for view in (x[::2, 1:4], x[::-1, 7:], np.asfortranarray(x[:, :3]), x.T[:5, :3]):
        np.testing.assert_array_equal(graph.execute([view])[0], view)
    frozen = x[:, :3].copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(graph.execute([frozen])[0], frozen)
    t = torch.arange(12.0, requires_grad=True).reshape(3, 4).T
    assert torch.equal(graph.execute([t])[0], t)
    swapped = frozen.astype(">f4")
    with pytest.raises(InvalidInputError):
        graph.execute([swapped])


def test_ml_dtypes_bfloat16(device: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(9).reshape(3, 3).astype(ml_dtypes.bfloat16)
    [y] = WebGPUGraph(device, copy_program(DType.BF16)).execute([x])
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(x, y)


def test_int64_beyond_int32_is_refused(device: Any) -> None:
    graph = WebGPUGraph(device, copy_program(DType.I64), label="forward")
    x = np.array([[1, 2**31 - 1, -(2**31)]])
    np.testing.assert_array_equal(graph.execute([x])[0], x)
    for bad in (2**31, -(2**31) - 1):
        with pytest.raises(InvalidInputError, match=f"^forward: input 0 'x': element {bad} is out"):
            graph.execute([np.array([[1, bad, 0]])])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(4), "expected dtype float32, got float64; nothing is cast silently"),
        (np.zeros(4, np.float16), "got float16"),
        (np.zeros(4, np.int32), "got int32"),
        (
            3,
            r"expected a float32 tensor, got int; wrap it: numpy.asarray\(3, dtype=numpy.float32\)",
        ),
        (2.5, "got float; wrap it"),
        ([1.0, 2.0], "expected a float32 tensor, got list; pass a numpy array or a torch tensor"),
        (None, "got NoneType"),
        (np.zeros((2, 2), np.float32), r"expected 1 dimensions, got 2 \(shape \(2, 2\)\)"),
        (np.float32(1), r"expected 1 dimensions, got 0"),
        (np.zeros(5, np.float32), r"size of dimension 0 is 5, expected 0 to 4 \(n\)"),
    ],
)
def test_mistakes_with_a_tensor(device: Any, value: object, message: str) -> None:
    graph = WebGPUGraph(device, chain(1, 4, dynamic=True), label="forward")
    with pytest.raises(InvalidInputError, match=f"^forward: input 0 'x': .*{message}"):
        graph.execute([value])
    assert isinstance(InvalidInputError("x"), ValueError)


def test_mistakes_with_torch(device: Any) -> None:
    torch = pytest.importorskip("torch")
    graph = WebGPUGraph(device, chain(1, 4))
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        with pytest.raises(InvalidInputError, match=f"got {str(dtype)[6:]}; nothing is cast"):
            graph.execute([torch.zeros(4).to(dtype)])
    with pytest.raises(InvalidInputError, match="has no plain array"):
        graph.execute([torch.zeros(4).to_sparse()])


def test_a_fixed_shape_and_the_number_of_inputs(device: Any) -> None:
    graph = WebGPUGraph(device, chain(1, 4), label="forward")
    with pytest.raises(InvalidInputError, match=r"expected shape \(4,\), got \(3,\)"):
        graph.execute([np.zeros(3, np.float32)])
    with pytest.raises(InvalidInputError, match=r"^forward: expected 1 inputs \(x\), got 0$"):
        graph.execute([])
    with pytest.raises(InvalidInputError, match="got 2"):
        graph.execute([np.zeros(4, np.float32)] * 2)


def int_program() -> Any:
    b = Build()
    b.inputs.append(Input("pos", ValueKind.INT, 0))
    b.sym("pos", SymSource.INT_ARG, 0, 0, 2, 9)
    b.inputs.append(Input("ids", ValueKind.TENSOR, b.tensor(DType.I64, [b.const(0)], -1)))
    return b.program()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1, r"value is 1, expected 2 to 9 \(pos\)"),
        (10, "value is 10"),
        (2**70, "expected 2 to 9"),
        (3.0, "expected an int .* got float"),
        (True, "got bool"),
        ("3", "got str"),
        (None, "got NoneType"),
        (np.float32(3), "got float32"),
        (np.array([1, 2]), r"got ndarray of dtype int64 and shape \(2,\)"),
        (np.array([3.0]), "of dtype float64"),
    ],
)
def test_mistakes_with_an_int(device: Any, value: object, message: str) -> None:
    graph = WebGPUGraph(device, int_program(), label="forward")
    ids = np.zeros(0, np.int64)
    assert graph.execute([3, ids]) == []
    with pytest.raises(InvalidInputError, match=f"^forward: input 0 'pos': .*{message}"):
        graph.execute([value, ids])


def test_torch_ints(device: Any) -> None:
    torch = pytest.importorskip("torch")
    graph = WebGPUGraph(device, int_program())
    for value in (torch.tensor(3), torch.tensor([3]), torch.tensor([[3]], dtype=torch.int32)):
        assert graph.execute([value, np.zeros(0, np.int64)]) == []


def test_an_element_of_an_empty_tensor(device: Any) -> None:
    b = Build()
    n = b.sym("n", SymSource.INPUT_DIM, 0, 0, 0, 4)
    b.input("ids", DType.I64, [n], None)
    b.sym("last", SymSource.TENSOR_ELEMENT, 0, -1, 0, 100)
    graph = WebGPUGraph(device, b.program(), label="forward")
    assert graph.execute([np.array([5])]) == []
    with pytest.raises(InvalidInputError, match=r"element \[-1\] is needed, but the tensor has 0"):
        graph.execute([np.zeros(0, np.int64)])
