"""A constant that is larger than one binding may be, cut into pieces of whole rows.

WebGPU promises bindings of 128 MiB in buffers of 256 MiB; the output matrix of a language model
with a large vocabulary has up to 1 GiB. Where the device allows that, the constant is one buffer,
bound whole. Elsewhere each piece is a buffer of its own with a dispatch of its own: one more
dispatch costs microseconds where reading 128 MiB costs, on such a device, milliseconds, and every
kernel stays what it is. The file holds the bytes once, and a device gets the buffers it uses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.symbolic import Sym
from executorch_wgpu.ops.tensor import Shape, Tensor
from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS

#: Bytes that every device can bind at once. Tests make it small.
BINDING_LIMIT = DEFAULT_LIMITS["max-storage-buffer-binding-size"]

#: Pieces start at multiples of so many rows. A vector of elements of 16 bits or more that goes with
#: the rows can then be bound from the piece's first row on: bindings start at multiples of 256
#: bytes. Pieces differ in nothing but what they bind, and share their pipelines.
ROWS_STEP = 128


@dataclass(frozen=True)
class Piece:
    """Some rows of a tensor, from row ``first`` on, in a storage of their own."""

    first: int
    tensor: Tensor


def whole_limits(tensor: Tensor) -> tuple[tuple[str, int], ...]:
    """What a route that binds ``tensor``'s storage whole needs of the device."""
    # More than the default even where a test made BINDING_LIMIT small.
    least = DEFAULT_LIMITS["max-storage-buffer-binding-size"] + 1
    return (("max-storage-buffer-binding-size", max(tensor.storage.size_bytes, least)),)


def row_pieces(b: Builder, tensor: Tensor, dim: int, group: int = 1) -> list[Piece] | None:
    """The pieces of ``tensor`` where a binding takes BINDING_LIMIT bytes, cut along ``dim``; None
    when it needs no pieces, or none can be made: only a constant whose ``dim`` has the largest
    stride (rows that lie one after another) is cut, and 128 of its rows (times ``group``: as many
    rows go with one element of such a vector) have to fit a binding."""
    storage = tensor.storage
    if storage.size_bytes <= BINDING_LIMIT or storage.kind is not BufferKind.CONSTANT:
        return None
    sizes, strides = _static(tensor.shape), _static(tensor.strides)
    start, width = tensor.offset, tensor.dtype.storage_bytes
    if sizes is None or strides is None or isinstance(start, Sym):
        return None
    rows, stride = sizes[dim], strides[dim]
    # Elements from the start of a row to the end of its last element.
    row = 1 + sum(
        (n - 1) * s for d, (n, s) in enumerate(zip(sizes, strides, strict=True)) if d != dim
    )
    step = ROWS_STEP * group
    most = BINDING_LIMIT // (max(stride, 1) * width) // step * step
    if row > stride or most == 0 or (start * width) % 4 or (stride * ROWS_STEP * width) % 4:
        return None
    pieces = []
    for first in range(0, rows, most):
        count = min(most, rows - first)
        size = (((count - 1) * stride + row) * width + 3) // 4 * 4
        part = b.part_of_constant(storage, (start + first * stride) * width, size)
        shape = (*sizes[:dim], count, *sizes[dim + 1 :])
        pieces.append(Piece(first, replace(tensor, shape=shape, offset=0, storage=part)))
    return pieces


def _static(values: Shape) -> list[int] | None:
    """Sizes that do not live; None where one does."""
    fixed = [value for value in values if isinstance(value, int)]
    return fixed if len(fixed) == len(values) else None
