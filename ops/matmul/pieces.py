"""A constant that is larger than one binding may be, cut into pieces of whole rows.

WebGPU promises bindings of 128 MiB; the output matrix of a language model with a large vocabulary
has up to 1 GiB. Where the device allows larger bindings it is bound whole. Elsewhere each piece
is bound by a dispatch of its own: one more dispatch costs microseconds where reading 128 MiB
costs, on such a device, milliseconds, and every kernel stays what it is."""

from __future__ import annotations

from dataclasses import dataclass

from executorch_wgpu.ops.symbolic import Sym
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS

#: Bytes that every device can bind at once. Tests make it small.
BINDING_LIMIT = DEFAULT_LIMITS["max-storage-buffer-binding-size"]

#: Pieces start at multiples of so many rows.
ROWS_STEP = 64

_ALIGNMENT = DEFAULT_LIMITS["min-storage-buffer-offset-alignment"]


@dataclass(frozen=True)
class Piece:
    """Rows ``first`` .. ``first + count`` of a matrix. ``byte_offset``/``byte_size``: the binding
    that holds them. ``offset``: where the first of them starts within the binding, in
    elements."""

    first: int
    count: int
    byte_offset: int
    byte_size: int
    offset: int


def whole_limits(tensor: Tensor) -> tuple[tuple[str, int], ...]:
    """What a route that binds ``tensor``'s storage whole needs of the device."""
    # More than the default even where a test made BINDING_LIMIT small.
    least = DEFAULT_LIMITS["max-storage-buffer-binding-size"] + 1
    return (("max-storage-buffer-binding-size", max(tensor.storage.size_bytes, least)),)


def row_pieces(tensor: Tensor, dim: int) -> list[Piece] | None:
    """The pieces in which ``tensor`` has to be bound where a binding takes BINDING_LIMIT bytes,
    cut along ``dim``; None when it needs no pieces, or none can be made: only a constant whose
    ``dim`` has the largest stride (rows that lie one after another) is cut, and 64 of its rows
    have to fit a binding."""
    storage = tensor.storage
    if storage.size_bytes <= BINDING_LIMIT or storage.kind is not BufferKind.CONSTANT:
        return None
    sizes = [*tensor.shape, *tensor.strides, tensor.offset]
    if any(isinstance(value, Sym) for value in sizes):
        return None
    width = tensor.dtype.storage_bytes
    stride, rows = int(tensor.strides[dim]), int(tensor.shape[dim])
    # Elements from the start of a row to its last element.
    reach = sum(
        (int(n) - 1) * int(s)
        for d, (n, s) in enumerate(zip(tensor.shape, tensor.strides, strict=True))
        if d != dim
    )
    if reach >= stride or rows == 0:
        return None
    # A binding starts at a multiple of 256 bytes, up to 252 before the row. After 64 elements
    # of 4 bytes anything starts such a multiple later, so that pieces differ only in what they
    # bind and share their pipelines.
    room = BINDING_LIMIT - _ALIGNMENT
    most = room // (stride * width) // ROWS_STEP * ROWS_STEP
    if most == 0:
        return None
    pieces = []
    for first in range(0, rows, most):
        count = min(most, rows - first)
        begin = (int(tensor.offset) + first * stride) * width
        end = begin + ((count - 1) * stride + reach + 1) * width
        byte_offset = begin // _ALIGNMENT * _ALIGNMENT
        # Up to whole vec4s of what follows may be read along with the last row: never needed.
        byte_size = min((end - byte_offset + 15) // 16 * 16, storage.size_bytes - byte_offset)
        pieces.append(Piece(first, count, byte_offset, byte_size, (begin - byte_offset) // width))
    return pieces
