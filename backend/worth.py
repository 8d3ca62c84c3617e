"""Whether a part of a graph is worth a delegate of its own.

A delegate's call has a price: submitting, waiting and reading back, and moving what crosses its
boundary. A part that ExecuTorch's CPU kernels finish sooner is left to them. Both sides are
estimated at the largest sizes that the program allows, since those are where it matters.

The price of the call itself counts for parts of light operators only. A part with a matrix product
or attention is judged by what it moves: its weights would move to the CPU with it, and what a toy
model splits into is what the real one splits into.

The figures are rough, and lean towards the GPU: they are to catch the add between two operators
that are on the CPU, not to predict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from executorch_wgpu.backend import fx_adapter as fx
from executorch_wgpu.backend.graph_reader import GraphReader, Part
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.symbolic import bounds
from executorch_wgpu.ops.tensor import dtype_bytes

#: Nanoseconds a byte that crosses the boundary: 5 GB/s, in or out, copies included.
_BYTE_NS = 0.2

#: Nanoseconds an element on the CPU, executorch 1.5 on one core of a server: the plain
#: operators, those with a transcendental function, and one multiply-add of a matrix product.
_ELEMENT_NS, _FUNCTION_NS, _MAC_NS = 1.3, 8.0, 0.2

_FUNCTIONS = (
    *("exp", "log", "sigmoid", "tanh", "gelu", "silu", "softmax", "erf", "sin", "cos", "pow"),
    *("rsqrt", "sqrt", "elu", "norm", "rms"),
)
#: The operand whose last dimension is summed over.
_PRODUCTS = {"mm": "self", "bmm": "self", "addmm": "mat1", "linear": "input"}


def why_not_worth(reader: GraphReader, part: Part, call_cost_us: float) -> str | None:
    """Why a part is better left on the CPU, with both times; None when it is not.

    ``reader`` has read ``part``; ``call_cost_us``: the price of a call that moves nothing.
    """
    calls = [reader.reader.call(node) for node in part.nodes if not fx.is_getitem(node)]
    moved = sum(_bytes(reader, [*part.inputs(), *part.outputs()]))
    gpu_us = moved * _BYTE_NS / 1000
    if not any(_is_heavy(call) for call in calls):
        gpu_us += call_cost_us
    cpu_us = sum(_cpu_ns(call) for call in calls) / 1000
    if cpu_us > gpu_us:
        return None
    return (
        f"too small: the CPU takes about {_text(cpu_us)} us, a delegate's call about "
        f"{_text(gpu_us)} us (call_cost_us={call_cost_us:g})"
    )


def _kind(call: OpCall) -> str:
    """``add`` of ``aten.add.Tensor``."""
    return call.op.split(".")[1] if "." in call.op else call.op


def _is_heavy(call: OpCall) -> bool:
    kind = _kind(call)
    return kind in _PRODUCTS or kind == "convolution" or "sdpa" in kind or "linear" in kind


def _text(us: float) -> str:
    return f"{us:.0f}" if us >= 10 else f"{us:.1g}"


def _bytes(reader: GraphReader, nodes: Iterable[torch.fx.Node]) -> Iterable[int]:
    for node in nodes:
        value = reader.reader.value(node)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Value):
                yield dtype_bytes(one.shape, one.dtype)


def _elements(value: Value) -> int:
    return math.prod(max(bounds(size)[1], 0) for size in value.shape)


def _cpu_ns(call: OpCall) -> float:
    name = _kind(call)
    written = sum(_elements(value) for value in call.outputs)
    if name in _PRODUCTS:
        depth = call.args.get(_PRODUCTS[name])
        if isinstance(depth, Value) and depth.shape:
            return written * bounds(depth.shape[-1])[1] * _MAC_NS
    if name == "convolution":
        weight = call.args.get("weight")
        if isinstance(weight, Value) and weight.shape:
            return written * _elements(weight) / max(bounds(weight.shape[0])[1], 1) * _MAC_NS
    if "sdpa" in name:
        query = call.args.get("query")
        keys = call.args.get("key_cache", call.args.get("key"))
        if isinstance(query, Value) and isinstance(keys, Value):
            return 2 * _elements(query) * bounds(keys.shape[1])[1] * _MAC_NS
    read = max((_elements(value) for value in call.input_values()), default=0)
    each = _FUNCTION_NS if any(word in name for word in _FUNCTIONS) else _ELEMENT_NS
    return max(written, read) * each
