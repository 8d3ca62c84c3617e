"""``llama.update_cache``: new keys or values go into a cache, in place."""

from __future__ import annotations

from dataclasses import replace

import torch

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.elementwise.pointwise import emit_copy
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import Scalar, Sym, equal, less_equal, maximum
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType

#: What ``llama.update_cache`` returns: one element without meaning, which nobody reads. A
#: constant costs no dispatch, and no buffer either while nothing binds it.
_DUMMY = torch.zeros(1)


def name_of(dtype: DType) -> str:
    """A dtype as messages spell it."""
    return dtype.name.lower()


def differs(a: Scalar, b: Scalar) -> bool:
    """Whether two sizes cannot be equal, whatever the live scalars are."""
    same = equal(a, b)
    return not isinstance(same, Sym) and not same


def require_equal(b: Builder, a: Scalar, c: Scalar, message: str) -> None:
    """Two sizes that must agree: nothing where that is proven, else a check at each execute, with
    the sizes as {0} and {1} of ``message``."""
    if a != c:
        b.check(equal(a, c), message, a, c)


def overflow_reason(start: Scalar, length: Scalar, capacity: Scalar) -> str | None:
    """Why ``length`` positions from ``start`` can never fit a cache, or None."""
    if not isinstance(fits := less_equal(start + length, capacity), Sym) and not fits:
        return f"input_pos {start} + {length} tokens exceeds the cache of {capacity} positions"
    if not isinstance(positive := less_equal(0, start), Sym) and not positive:
        return f"input_pos {start} is negative"
    return None


def check_positions(b: Builder, start: Scalar, length: Scalar, capacity: Scalar) -> Scalar:
    """Refuse an execute whose positions ``start .. start + length`` leave the cache. Returns
    ``start`` in a form that is known not to be negative, as unsigned addresses need it."""
    b.check(less_equal(0, start), "input_pos {0} is negative", start, specific=True)
    tokens = "1 token" if length == 1 else "{1} tokens"
    b.check(
        less_equal(start + length, capacity),
        f"input_pos {{0}} + {tokens} exceeds the cache of {{2}} positions",
        start,
        length,
        capacity,
        specific=True,
    )
    return maximum(start, 0)


def write_cache(b: Builder, cache: Tensor, value: Tensor, start: Scalar, name: str) -> None:
    """Copy ``value`` [B, S, H, D] (any strides) into positions start .. start + S of ``cache``
    [B, C, H, D]. Between equal dtypes words are moved as integers, so that every bit of a NaN
    survives."""
    part = cache.slice(1, start, value.shape[1])
    if value.dtype is cache.dtype is DType.F32:
        value, part = (replace(x, dtype=DType.I32) for x in (value, part))
    emit_copy(b, value, part, name)


def _label(cache: Tensor) -> str:
    """``update_cache_k`` / ``_v`` where the cache's own name says which it is."""
    last = cache.storage.name.rsplit(".", 1)[-1]
    return f"update_cache_{last[0]}" if last[:1] in ("k", "v") else "update_cache"


def cache_reason(value: Value, cache: Value, start: Scalar) -> str | None:
    """Why ``value`` cannot be written into ``cache``, or None."""
    if not is_float(value.dtype) or not is_float(cache.dtype):
        return f"{name_of(value.dtype)} values in a {name_of(cache.dtype)} cache are not supported"
    if value.rank != 4 or cache.rank != 4:
        return f"value of {value.rank} and cache of {cache.rank} dimensions, both must have 4"
    for d in (0, 2, 3):
        if differs(value.shape[d], cache.shape[d]):
            return f"value {list(value.shape)} and cache {list(cache.shape)} differ in size {d}"
    return overflow_reason(start, value.shape[1], cache.shape[1])


def _reason(call: OpCall) -> str | None:
    if "cache" not in call.mutates.values():
        return "the cache is not mutated by this call"
    return cache_reason(call["value"], call["cache"], call["start_pos"])


def check_cache(b: Builder, value: Tensor, cache: Tensor, start: Scalar) -> Scalar:
    """The checks that :func:`cache_reason` could not settle ahead of time; returns ``start`` as
    :func:`check_positions` does."""
    for d in (0, 2, 3):
        require_equal(
            b, value.shape[d], cache.shape[d], f"size {d} is {{0}} but {{1}} in the cache"
        )
    return check_positions(b, start, value.shape[1], cache.shape[1])


@register("llama.update_cache.default", supports=_reason, converts=True)
def update_cache(b: Builder, call: OpCall) -> tuple[Tensor, Tensor]:
    """(dummy, cache). The dummy is a constant zero of shape [1]."""
    value, cache = call["value"], call["cache"]
    start = check_cache(b, value, cache, call["start_pos"])
    write_cache(b, cache, value, start, _label(cache))
    return b.constant(_DUMMY, DType.F32, "update_cache.dummy"), cache
