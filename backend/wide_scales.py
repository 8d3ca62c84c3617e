"""Scales that PyTorch keeps in f64, held as f32 inside of a delegate.

``quantized_decomposed.choose_qparams`` computes a scale in f32 and gives it as f64. While only
operators that quantize and dequantize with it read it, in the same delegate, f32 holds the same
number. Across the boundary of a delegate it would be an f64: then all of them stay outside."""

from __future__ import annotations

from collections.abc import Collection

import torch

from executorch_wgpu.backend import fx_adapter as fx

#: Operators that may read one -> the position of the argument.
_READERS = {
    "quantized_decomposed.quantize_per_tensor.tensor": 1,
    "quantized_decomposed.dequantize_per_tensor.tensor": 1,
    "quantized_decomposed.quantize_per_token.default": 1,
    "quantized_decomposed.dequantize_per_token.default": 1,
}


def scale_leaves(node: torch.fx.Node, inside: Collection[torch.fx.Node] | None) -> str | None:
    """Why the scale of a ``fx.is_scale_choice`` node cannot be held as f32 in the delegate of the
    nodes ``inside`` (None: all), None when it can."""
    for part in node.users:
        if not fx.is_getitem(part) or (inside is not None and part not in inside):
            return "its results are used outside of one delegate, and f64 does not cross"
        if part.args[1] != 0:
            continue
        for user in part.users:
            if user.op != "call_function" or (inside is not None and user not in inside):
                return "its scale is used outside of one delegate, and f64 does not cross"
            name = fx.op_name(user.target)
            if [k for k, arg in enumerate(user.args) if arg is part] != [_READERS.get(name)]:
                return f"its scale, an f64, is read by {name}"
            if part in user.kwargs.values():
                return f"its scale, an f64, is read by {name}"
    return None
