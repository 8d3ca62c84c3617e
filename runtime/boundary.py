"""What crosses the boundary of ``execute``: callers' values in, callers' values out.

Accepted for a tensor: a numpy array (any strides) or a torch tensor; for an int: a Python or numpy
integer, or an integer array or tensor of one element. torch is never imported here: a torch
tensor can only come from a caller who has imported it, so ``sys.modules`` has it.

No value is cast silently. bfloat16 is no numpy dtype: it comes in as ``ml_dtypes.bfloat16`` or as
its raw bits in ``uint16``, and goes out as ``ml_dtypes.bfloat16`` where that package is installed,
else as ``uint16`` bits (torch tensors in, torch tensors out: ``torch.bfloat16`` both ways).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executorch_wgpu.serialization.dispatch_list import DType

from .errors import InvalidInputError

Array = NDArray[Any]


class _FedBack:
    """The type of :data:`FED_BACK`."""

    def __repr__(self) -> str:
        return "FED_BACK"


#: In place of an input: the last step's output, which the program feeds back to it on the GPU.
FED_BACK = _FedBack()

_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1

_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(np.uint16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.BOOL: np.dtype(np.bool_),
    DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8),
}

#: dtype of the elements as they lie in a GPU buffer.
STORAGE: dict[DType, np.dtype[Any]] = {
    **_NUMPY,
    DType.I64: np.dtype(np.int32),
    DType.BOOL: np.dtype(np.uint32),
}

_NAMES = {
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.BOOL: "bool",
    DType.I8: "int8",
    DType.U8: "uint8",
}


def dtype_name(dtype: DType) -> str:
    """The name users know: ``float32``, ``bfloat16``, ``bool`` ..."""
    return _NAMES[dtype]


def is_torch(value: object) -> bool:
    """True for a torch tensor (also a Parameter), without importing torch."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def as_array(value: object, dtype: DType, where: str) -> Array:
    """The caller's tensor as a numpy array of the boundary dtype (BF16: ``uint16`` bits).

    Any strides; no copy where none is needed. ``where`` opens error messages, such as
    ``forward: input 0 'x'``.

    Raises:
        InvalidInputError: not a tensor, or one of another dtype.
    """
    want = dtype_name(dtype)
    came = ""
    if is_torch(value):
        came = str(value.dtype).removeprefix("torch.")  # type: ignore[attr-defined]
        value = _torch_to_numpy(value, where)
    elif isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        hint = (
            f"wrap it: numpy.asarray({value!r}, dtype=numpy.{_hint_dtype(dtype)})"
            if isinstance(value, (bool, int, float))
            else "pass a numpy array or a torch tensor"
        )
        raise InvalidInputError(
            f"{where}: expected a {want} tensor, got {type(value).__name__}; {hint}"
        )
    if dtype is DType.BF16:
        if value.dtype.name in ("bfloat16", "uint16"):
            return value.view(np.uint16)
    elif value.dtype == _NUMPY[dtype]:
        return value
    raise InvalidInputError(
        f"{where}: expected dtype {want}, got {came or value.dtype.name}; nothing is cast "
        f"silently, convert it first: x.astype('{_hint_dtype(dtype)}') (torch: x.to(torch.{want}))"
    )


def _hint_dtype(dtype: DType) -> str:
    return "float32" if dtype is DType.BF16 else _NUMPY[dtype].name


def _torch_to_numpy(value: Any, where: str) -> Array:
    torch = sys.modules["torch"]
    try:
        tensor = value.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            # numpy() refuses bfloat16; the bits travel as int16.
            return np.asarray(tensor.contiguous().view(torch.int16).numpy()).view(np.uint16)
        return np.asarray(tensor.numpy())
    except (RuntimeError, TypeError) as error:
        raise InvalidInputError(f"{where}: this tensor has no plain array: {error}") from error


def as_int(value: object, where: str) -> int:
    """The caller's int: a Python or numpy integer, or an integer tensor of one element.

    Raises:
        InvalidInputError: anything else, bools and floats included.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    original = type(value).__name__
    if is_torch(value):
        value = _torch_to_numpy(value, where)
    if isinstance(value, np.ndarray):
        if value.size == 1 and value.dtype.kind in "iu":
            return int(value.reshape(()))
        original += f" of dtype {value.dtype.name} and shape {value.shape}"
    raise InvalidInputError(
        f"{where}: expected an int (or an integer tensor of one element), got {original}"
    )


def to_storage(array: Array, dtype: DType, where: str) -> Array:
    """A contiguous array of storage elements (see ``DType``), flat, padded to whole words.

    Raises:
        InvalidInputError: an int64 element outside int32.
    """
    if dtype is DType.I64 and array.size:
        # One token, one position: looking at it directly costs a tenth of a reduction.
        one = array.size == 1
        low, high = (array.item(),) * 2 if one else (int(array.min()), int(array.max()))
        if low < _I32_MIN or high > _I32_MAX:
            bad = low if low < _I32_MIN else high
            raise InvalidInputError(
                f"{where}: element {bad} is outside the int32 range that the GPU computes in "
                f"({_I32_MIN}..{_I32_MAX})"
            )
    flat = np.ascontiguousarray(array).reshape(-1).astype(STORAGE[dtype], copy=False)
    if flat.nbytes % 4:
        missing = (4 - flat.nbytes % 4) // flat.itemsize
        flat = np.concatenate([flat, np.zeros(missing, flat.dtype)])
    return flat


def storage_bytes(count: int, dtype: DType) -> int:
    """Bytes of ``count`` elements in a buffer, rounded up to whole words."""
    return -(-count * dtype.storage_bytes // 4) * 4


def from_storage(data: memoryview, shape: tuple[int, ...], dtype: DType) -> Array:
    """A fresh array of the boundary dtype (I64 widened, BOOL as bool; BF16 as ``uint16`` bits)
    from the bytes of a buffer; ``data`` may be longer and may be unmapped afterwards."""
    count = 1
    for size in shape:
        count *= size
    if not count:
        return np.empty(shape, _NUMPY[dtype])
    stored = np.frombuffer(data, dtype=STORAGE[dtype], count=count)
    return stored.astype(_NUMPY[dtype], copy=True).reshape(shape)


def to_caller(array: Array, bfloat16: bool, torch_out: bool) -> Any:
    """The result in the caller's terms: a numpy array, or a torch tensor when torch came in.
    ``bfloat16``: the ``uint16`` elements are its bits."""
    if torch_out:
        torch = sys.modules["torch"]
        if bfloat16:
            # torch has little for uint16; the bits travel as int16.
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    if bfloat16:
        try:
            import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            return array
        return array.view(ml_dtypes.bfloat16)
    return array
