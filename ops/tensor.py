"""Strided tensors ahead of time: what a lowering receives, hands on and returns.

A :class:`Storage` will be (part of) one GPU buffer; a :class:`Tensor` is a strided view of it.
Permute, slice, expand and most views are new Tensors on the same Storage and cost nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executorch_wgpu.ops.symbolic import Scalar, maximum, product, upper_bound
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType


class Storage:
    """What will be one GPU buffer. Identity is the object's.

    ``size_bytes`` is the size at the upper bound, rounded up to whole words. ``data`` is the
    content of a constant or the initial content of a state (a contiguous torch tensor on the
    CPU), None for zeros or for kinds that have none. ``layout``: dtype and shape of a constant
    or state, which has one of its own. ``share``: the group in which other methods share a state
    of this name. ``data_offset``: bytes of ``data`` before the storage's content (a multiple of
    4), where it is a piece of it: storages over one ``data`` object share its bytes in the file.
    """

    __slots__ = ("data", "data_offset", "kind", "layout", "name", "share", "size_bytes")

    def __init__(
        self,
        kind: BufferKind,
        size_bytes: int,
        name: str,
        data: Any = None,
        layout: tuple[DType, tuple[int, ...]] | None = None,
        *,
        share: str = "",
        data_offset: int = 0,
    ) -> None:
        self.kind = kind
        self.layout = layout
        self.size_bytes = max(4, (size_bytes + 3) // 4 * 4)
        self.name = name
        self.data = data
        self.share = share
        self.data_offset = data_offset

    def __repr__(self) -> str:
        return f"Storage({self.kind.name}, {self.size_bytes} B, {self.name!r})"


Shape = tuple[Scalar, ...]


def contiguous_strides(shape: Sequence[Scalar]) -> Shape:
    """Row-major strides in elements. Sizes of 0 count as 1, as in PyTorch."""
    strides: list[Scalar] = []
    step: Scalar = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (maximum(size, 1) if isinstance(size, int) else size)
    return tuple(reversed(strides))


@dataclass(frozen=True, eq=False)
class Tensor:
    """A strided view of a storage: shape, strides and offset in elements."""

    dtype: DType
    shape: Shape
    strides: Shape
    offset: Scalar
    storage: Storage

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Scalar:
        """Number of elements (live where a size is)."""
        return product(self.shape)

    @property
    def max_numel(self) -> int:
        """Number of elements at the upper bound of every live size."""
        return product(upper_bound(s) for s in self.shape)  # type: ignore[return-value]

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps, starting anywhere in the storage. Dimensions of size 1 may
        have any stride."""
        want = contiguous_strides(self.shape)
        return all(
            a == b or size == 1 for size, a, b in zip(self.shape, self.strides, want, strict=True)
        )

    def with_layout(
        self, shape: Sequence[Scalar], strides: Sequence[Scalar], offset: Scalar | None = None
    ) -> Tensor:
        """Another view of the same storage."""
        return replace(
            self,
            shape=tuple(shape),
            strides=tuple(strides),
            offset=self.offset if offset is None else offset,
        )

    def permute(self, dims: Sequence[int]) -> Tensor:
        """Dimensions reordered, as ``torch.permute``."""
        return self.with_layout([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def expand(self, shape: Sequence[Scalar]) -> Tensor:
        """Broadcast to ``shape`` (right-aligned) with stride 0, as ``torch.expand``."""
        lead = len(shape) - self.rank
        strides: list[Scalar] = [0] * lead
        for want, size, stride in zip(shape[lead:], self.shape, self.strides, strict=True):
            strides.append(0 if size == 1 and want != 1 else stride)
        return self.with_layout(shape, strides)

    def slice(self, dim: int, start: Scalar, length: Scalar, step: Scalar = 1) -> Tensor:
        """``length`` elements of ``dim`` from ``start``, ``step`` apart."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[dim]
        shape[dim], strides[dim] = length, strides[dim] * step
        return self.with_layout(shape, strides, offset)

    def select(self, dim: int, index: Scalar) -> Tensor:
        """One index of ``dim``, which disappears."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + index * strides[dim]
        del shape[dim], strides[dim]
        return self.with_layout(shape, strides, offset)

    def try_view(self, shape: Sequence[Scalar]) -> Tensor | None:
        """The same elements in row-major order as ``shape`` without moving data, or None where
        strides cannot express it. Every size is given (no -1)."""
        strides = view_strides(self.shape, self.strides, tuple(shape))
        return None if strides is None else self.with_layout(shape, strides)

    def as_words(self) -> Tensor | None:
        """A tensor with elements of 16 bits as one of I32 with half as many in the last dimension,
        or None where that does not consist of whole words."""
        outer = [0 if n == 1 else s for n, s in zip(self.shape, self.strides, strict=True)][:-1]
        even = (value % 2 == 0 for value in (self.shape[-1], self.offset, *outer))
        if self.strides[-1] != 1 or not all(even):
            return None
        shape = (*self.shape[:-1], self.shape[-1] // 2)
        words = self.with_layout(shape, (*(s // 2 for s in outer), 1), self.offset // 2)
        return replace(words, dtype=DType.I32)


def view_strides(old: Shape, old_strides: Shape, new: Shape) -> Shape | None:
    """Strides under which ``new`` addresses the elements of ``old`` in row-major order; None
    when a copy is needed or the sizes' relation cannot be proven.

    Walks both shapes from the right. Old dimensions that are mutually contiguous form a block
    of some size and innermost stride; new dimensions must tile each block exactly.
    """
    blocks: list[tuple[Scalar, Scalar]] = []  # (elements, innermost stride), left to right
    for size, stride in zip(old, old_strides, strict=True):
        if size == 1:
            continue
        if blocks and blocks[-1][1] == size * stride:
            blocks[-1] = (blocks[-1][0] * size, stride)
        else:
            blocks.append((size, stride))
    strides: list[Scalar] = []
    used: Scalar = 1  # elements of the last block already covered by new dimensions
    for size in reversed(new):
        if size == 1:
            strides.append(1)
            continue
        while blocks and blocks[-1][0] == used and used != 1:
            blocks.pop()
            used = 1
        if not blocks:
            return None
        elements, stride = blocks[-1]
        if not _divides(used * size, elements):
            return None
        strides.append(stride * used)
        used = used * size
    if blocks and not (len(blocks) == 1 and blocks[0][0] == used):
        return None
    return tuple(reversed(strides))


def _divides(part: Scalar, whole: Scalar) -> bool:
    """Whether ``whole`` is provably a multiple of ``part``."""
    if part == whole:
        return True
    remainder = whole % part if not (isinstance(part, int) and part == 0) else 1
    return remainder == 0


def touched_bytes(tensors: Iterable[Tensor]) -> Scalar:
    """Bytes of these tensors, each element of memory once: what broadcasting repeats does not
    count again, nor does the same view twice."""
    total: Scalar = 0
    seen: set[tuple[Any, ...]] = set()
    for tensor in tensors:
        pairs = tuple((n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if s != 0)
        key = (id(tensor.storage), tensor.offset, pairs)
        if key not in seen:
            seen.add(key)
            total = total + product(n for n, _ in pairs) * tensor.dtype.storage_bytes
    return total


def dtype_bytes(shape: Sequence[Scalar], dtype: DType) -> int:
    """Bytes of a dense tensor at the upper bound of its sizes."""
    return int(product(max(0, upper_bound(s)) for s in shape)) * dtype.storage_bytes


def torch_dtype(dtype: DType) -> Any:
    """The dtype of the same name in torch."""
    import torch

    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "I64": "int64"}
    return getattr(torch, names.get(dtype.name, "bool"))
