"""Views by strides against torch's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executorch_wgpu.ops.symbolic import symbol
from executorch_wgpu.ops.tensor import Storage, Tensor, contiguous_strides, view_strides
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType


def tensor(shape, strides=None, offset=0):
    storage = Storage(BufferKind.SCRATCH, 4096, "t")
    return Tensor(
        DType.F32, tuple(shape), tuple(strides or contiguous_strides(shape)), offset, storage
    )


@st.composite
def strided(draw):
    """A torch tensor whose layout came from permutes, slices and expands, and a target shape."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    x = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    x = x.permute(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        dim = draw(st.integers(0, x.dim() - 1))
        start = draw(st.integers(0, x.shape[dim] - 1))
        x = x.narrow(dim, start, draw(st.integers(1, x.shape[dim] - start)))
    if draw(st.booleans()):
        x = x.unsqueeze(0).expand(draw(st.integers(1, 3)), *x.shape)
    sizes, rest = [], x.numel()
    while rest > 1 and len(sizes) < 4:
        divisor = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        sizes.append(divisor)
        rest //= divisor
    return x, [*sizes, rest]


@given(strided())
def test_view_strides_agree_with_torch(case):
    x, target = case
    strides = view_strides(tuple(x.shape), x.stride(), tuple(target))
    if strides is None:
        return  # a copy is always right; that views are found is tested below
    seen = x.as_strided(target, [s if n != 1 else 0 for s, n in zip(strides, target, strict=True)])
    assert torch.equal(seen, x.reshape(target))


@given(strided())
def test_a_view_is_found_wherever_torch_finds_one(case):
    x, target = case
    try:
        x.view(target)
    except RuntimeError:
        return
    assert view_strides(tuple(x.shape), x.stride(), tuple(target)) is not None


def test_live_sizes_split_and_merge():
    S = symbol(0, "S", 1, 64)
    x = tensor((1, S, 576))
    heads = x.try_view((1, S, 9, 64))
    assert heads is not None and heads.strides[1:] == (576, 64, 1)
    flat = heads.permute((0, 2, 1, 3)).permute((0, 2, 1, 3)).try_view((S, 576))
    assert flat is not None and flat.strides == (576, 1)
    assert heads.permute((0, 2, 1, 3)).try_view((S, 576)) is None
    rows = x.try_view((S * 576,))
    assert rows is not None and rows.strides == (1,)


@pytest.mark.parametrize(
    "shape, new", [((2, 3), (7,)), ((6,), (4,)), ((), (2,)), ((4,), ()), ((2, 2), (3,))]
)
def test_wrong_sizes_have_no_view(shape, new):
    assert view_strides(shape, contiguous_strides(shape), new) is None
