"""Rotary embeddings in one dispatch, in both ways that pairs are laid out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex, halved, is_binary
from executorch_wgpu.ops.call import OpCall, OpChain, Value
from executorch_wgpu.ops.halves import is_float


def fuse_rope(chain: OpChain) -> None:
    """
    Before, Meta's llama (pairs are neighbours; ``re``, ``im`` are slices of x seen as [.., P, 2])::

        re * cos - im * sin --unsqueeze--+
        re * sin + im * cos --unsqueeze--cat(-1)--view--> y

    Before, Hugging Face (pairs are P apart)::

        x ------------------------------mul(cos)--+
        x --slice(P:)--neg--+                     add--> y
        x --slice(:P)-------cat(-1)-----mul(sin)--+

    After::

        x, cos, sin --wgpu.rope--> y
    """
    index = ChainIndex(chain)
    fused: dict[int, OpCall] = {}
    for call in chain.calls:
        match = _interleaved(index, call) or _rotate_half(index, call)
        if match is not None:
            fused[id(call)] = OpCall(
                "wgpu.rope", match, call.outputs, replace(call.origin, op="rope")
            )
    chain.calls = [fused.get(id(call), call) for call in chain.calls]


# -- Meta's llama --------------------------------------------------------------------------------


def _interleaved(index: ChainIndex, call: OpCall) -> dict[str, Any] | None:
    if call.op != "aten.view_copy.default" or not is_float(call.outputs[0].dtype):
        return None
    joined = index.made_by(call["self"], "aten.cat.default", "aten.stack.default")
    if joined is None or len(joined["tensors"]) != 2:
        return None
    pairs = joined.outputs[0].shape
    dim = joined["dim"] % len(pairs)
    if dim != len(pairs) - 1 or pairs[-1] != 2:
        return None
    parts = joined["tensors"]
    if joined.op == "aten.cat.default":
        parts = [_without_last(index, part) for part in parts]
    real, imaginary = parts
    difference = index.made_by(real, "aten.sub.Tensor")
    total = index.made_by(imaginary, "aten.add.Tensor")
    if difference is None or total is None or not _plain(difference) or not _plain(total):
        return None
    # real = re * cos - im * sin names the four; imaginary must be re * sin + im * cos.
    for re, cos in _factors(index, difference["self"]):
        for im, sin in _factors(index, difference["other"]):
            x = _pair_source(index, re, im)
            if x is None or not _is_sum(index, total, (re, sin), (im, cos)):
                continue
            if call.outputs[0].shape != (*pairs[:-2], pairs[-2] * 2) or x.shape != pairs:
                continue
            whole = index.made_by(x, "aten.view_copy.default")
            source = whole["self"] if whole is not None else None
            if isinstance(source, Value) and source.shape == call.outputs[0].shape:
                return {"x": source, "cos": cos, "sin": sin, "interleaved": True}
    return None


def _without_last(index: ChainIndex, value: Any) -> Any:
    """The operand of an unsqueeze (or a view that adds a last dimension of 1)."""
    call = index.made_by(value, "aten.unsqueeze_copy.default", "aten.view_copy.default")
    if call is None or not isinstance(call["self"], Value):
        return None
    return call["self"] if value.shape == (*call["self"].shape, 1) else None


def _pair_source(index: ChainIndex, re: Value, im: Value) -> Value | None:
    """x when re = x[..., 0] and im = x[..., 1]."""
    sources = [_picked(index, value) for value in (re, im)]
    if None in sources:
        return None
    (x, first), (other, second) = sources  # type: ignore[misc]
    return x if x is other and (first, second) == (0, 1) else None


def _picked(index: ChainIndex, value: Value) -> tuple[Value, int] | None:
    """(x, i) when ``value`` is x[..., i], as select or as slice and squeeze."""
    select = index.made_by(value, "aten.select_copy.int")
    if select is not None:
        x = select["self"]
        if select["dim"] % x.rank == x.rank - 1 and isinstance(select["index"], int):
            return x, select["index"] % 2
        return None
    squeeze = index.made_by(
        value, "aten.squeeze_copy.dims", "aten.squeeze_copy.dim", "aten.view_copy.default"
    )
    cut = None if squeeze is None else index.made_by(squeeze["self"], "aten.slice_copy.Tensor")
    if squeeze is None or cut is None:
        return None
    x = cut["self"]
    rank = x.rank
    same = value.shape == x.shape[:-1] and squeeze["self"].shape == (*x.shape[:-1], 1)
    start = cut["start"]
    if not same or cut["dim"] % rank != rank - 1 or cut["step"] != 1:
        return None
    if start is None:
        start = 0
    return (x, start % 2) if isinstance(start, int) else None


# -- Hugging Face --------------------------------------------------------------------------------


def _rotate_half(index: ChainIndex, call: OpCall) -> dict[str, Any] | None:
    if call.op != "aten.add.Tensor" or not is_float(call.outputs[0].dtype) or not _plain(call):
        return None
    for straight, crossed in ((call["self"], call["other"]), (call["other"], call["self"])):
        for x, cos in _factors(index, straight):
            if x.shape != call.outputs[0].shape:
                continue
            for rotated, sin in _factors(index, crossed):
                if _is_rotated(index, rotated, x) and _full_width(x, cos, sin):
                    return {"x": x, "cos": cos, "sin": sin, "interleaved": False}
    return None


def _full_width(x: Value, cos: Value, sin: Value) -> bool:
    """The kernel takes halves of cos and sin: they must not be broadcast along the last dim."""
    return all(t.rank > 0 and t.shape[-1] == x.shape[-1] for t in (cos, sin))


def _is_rotated(index: ChainIndex, value: Value, x: Value) -> bool:
    """Whether ``value`` is cat(-x[..., P:], x[..., :P])."""
    cat = index.made_by(value, "aten.cat.default")
    half = halved(x.shape[-1]) if x.rank else None
    if cat is None or half is None or len(cat["tensors"]) != 2 or value.shape != x.shape:
        return False
    if cat["dim"] % x.rank != x.rank - 1:
        return False
    first, second = cat["tensors"]
    negated = index.made_by(first, "aten.neg.default")
    if negated is None:
        return False
    return _is_half(index, negated["self"], x, half) and _is_half(index, second, x, 0)


def _is_half(index: ChainIndex, value: Any, x: Value, start: int) -> bool:
    cut = index.made_by(value, "aten.slice_copy.Tensor")
    if cut is not None:
        same = cut["self"] is x and cut["dim"] % x.rank == x.rank - 1 and cut["step"] == 1
        begins = 0 if cut["start"] is None else cut["start"]
        return same and begins == start and value.shape[-1] * 2 == x.shape[-1]
    split = index.made_by(value, "aten.split_with_sizes_copy.default", "aten.split_copy.Tensor")
    if split is None or split["self"] is not x or split["dim"] % x.rank != x.rank - 1:
        return False
    sizes = [v.shape[-1] for v in split.outputs]
    position = split.outputs.index(value)
    return len(sizes) == 2 and sizes[0] == sizes[1] and position == (1 if start else 0)


# -- arithmetic ----------------------------------------------------------------------------------


def _plain(call: OpCall) -> bool:
    return call.args.get("alpha", 1) == 1


def _factors(index: ChainIndex, value: Any) -> list[tuple[Value, Value]]:
    """Both orders of the operands of a product of tensors; none for anything else."""
    call = index.made_by(value, "aten.mul.Tensor")
    if call is None:
        return []
    a, b = call["self"], call["other"]
    if not (isinstance(a, Value) and isinstance(b, Value)):
        return []
    if not is_float(a.dtype) or not is_float(b.dtype):
        return []
    return [(a, b), (b, a)]


def _is_sum(
    index: ChainIndex, call: OpCall, one: tuple[Value, Value], two: tuple[Value, Value]
) -> bool:
    """Whether ``call`` adds these two products, in any order."""
    products = [index.made_by(call[name], "aten.mul.Tensor") for name in ("self", "other")]
    return any(is_binary(a, *one) and is_binary(b, *two) for a, b in (products, products[::-1]))
