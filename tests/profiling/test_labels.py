"""Labels everywhere: every dispatch of every registered operator says which operator it does the
work of, in which module, through which route, and what it moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchao.quantization.quant_primitives  # noqa: F401  (registers torchao's operators)
from torch.ao.quantization.fx import _decomposed  # noqa: F401

from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpChain
from executorch_wgpu.ops.elementwise.formula import Formula, Line
from executorch_wgpu.ops.quant.layout import pack_codes
from executorch_wgpu.serialization.dispatch_list import NONE, DType, Program

from harness import DTYPES, Chain  # isort: skip

MODULE = "layers.3.attention"

X, Y = torch.rand(2, 3, 4) + 0.5, torch.rand(2, 3, 4) + 0.5
B = torch.ones(2, 3, 4, dtype=torch.bool)
M, N = torch.rand(5, 4), torch.rand(4, 6)
TABLE, TOKENS = torch.rand(7, 4), torch.tensor([[1, 2, 0]])
#: Integers of 8 bits, a scale and a zero point for all, for each row of 4, for each index of the
#: middle dimension.
I8, BYTE = torch.ones(2, 3, 4, dtype=torch.int8), (-128, 127, torch.int8)
ONE = (torch.tensor([0.5]), torch.tensor([0]))
EACH = (torch.rand(2, 3, 1), torch.zeros(2, 3, 1, dtype=torch.int64))
CHANNELS = (torch.rand(3), torch.zeros(3, dtype=torch.int64))
ROW = [1, 1, 4]

#: Arguments of ATen operators by position; by default one tensor for each that is required, and 2
#: for each number.
ARGUMENTS: dict[str, list[Any]] = {
    "aten._log_softmax.default": [X, -1, False],
    "aten._softmax.default": [X, -1, False],
    "aten._unsafe_view.default": [X, [2, 12]],
    "aten.addmm.default": [torch.rand(6), M, N],
    "aten.bmm.default": [torch.rand(2, 3, 4), torch.rand(2, 4, 5)],
    "aten.cat.default": [[X, Y], 1],
    "aten.chunk.default": [X, 2, 2],
    "aten.clamp.default": [X, 0.0, 1.0],
    "aten.embedding.default": [TABLE, TOKENS],
    "aten.expand.default": [torch.rand(1, 3, 4), [2, 3, 4]],
    "aten.expand_copy.default": [torch.rand(1, 3, 4), [2, 3, 4]],
    "aten.full.default": [[2, 3], 1.5],
    "aten.full_like.default": [X, 1.5],
    "aten.index.Tensor": [TABLE, [TOKENS]],
    "aten.index_select.default": [TABLE, 0, TOKENS[0]],
    "aten.linear.default": [M, torch.rand(6, 4), torch.rand(6)],
    "aten.logical_and.default": [B, B],
    "aten.logical_not.default": [B],
    "aten.logical_or.default": [B, B],
    "aten.mean.dim": [X, [1], True],
    "aten.mm.default": [M, N],
    "aten.native_layer_norm.default": [X, [4], None, None, 1e-5],
    "aten.permute.default": [X, [2, 0, 1]],
    "aten.permute_copy.default": [X, [2, 0, 1]],
    "aten.repeat.default": [X, [1, 2, 1]],
    "aten.reshape.default": [X, [6, 4]],
    "aten.scalar_tensor.default": [1.5],
    "aten.select.int": [X, 1, 2],
    "aten.select_copy.int": [X, 1, 2],
    "aten.slice.Tensor": [X, 1, 0, 2],
    "aten.slice_copy.Tensor": [X, 1, 0, 2],
    "aten.slice_scatter.default": [X, torch.rand(2, 2, 4), 1, 0, 2],
    "aten.split.Tensor": [X, 2, 2],
    "aten.split_copy.Tensor": [X, 2, 2],
    "aten.split_with_sizes.default": [X, [1, 3], 2],
    "aten.split_with_sizes_copy.default": [X, [1, 3], 2],
    "aten.squeeze.dims": [torch.rand(2, 1, 4), [1]],
    "aten.squeeze_copy.dim": [torch.rand(2, 1, 4), 1],
    "aten.squeeze_copy.dims": [torch.rand(2, 1, 4), [1]],
    "aten.stack.default": [[X, Y], 1],
    "aten.sum.dim_IntList": [X, [1], True],
    "aten.t.default": [M],
    "aten.t_copy.default": [M],
    "aten.transpose.int": [X, 0, 2],
    "aten.transpose_copy.int": [X, 0, 2],
    "aten.unbind.int": [X, 1],
    "aten.unbind_copy.int": [X, 1],
    "aten.unsqueeze.default": [X, 1],
    "aten.unsqueeze_copy.default": [X, 1],
    "aten.view.default": [X, [2, 12]],
    "aten.view_copy.default": [X, [2, 12]],
    "aten.where.self": [B, X, Y],
    "quantized_decomposed.choose_qparams.tensor": [X, -128, 127, 1e-5, torch.int8],
    "quantized_decomposed.choose_qparams_per_token.default": [X, torch.int8],
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default": [X, torch.int8],
    "quantized_decomposed.choose_qparams_symmetric.tensor": [X, -128, 127, 1e-5, torch.int8],
    "quantized_decomposed.dequantize_per_channel.default": [I8, *CHANNELS, 1, *BYTE],
    "quantized_decomposed.dequantize_per_channel_group.default": [
        *(I8[0], torch.rand(3, 1), torch.zeros(3, 1, dtype=torch.int32), *BYTE, 4, torch.float32)
    ],
    "quantized_decomposed.dequantize_per_tensor.default": [I8, 0.5, 3, *BYTE],
    "quantized_decomposed.dequantize_per_tensor.tensor": [I8, *ONE, *BYTE],
    "quantized_decomposed.dequantize_per_token.default": [I8, *EACH, *BYTE, torch.float32],
    "quantized_decomposed.quantize_per_channel.default": [X, *CHANNELS, 1, *BYTE],
    "quantized_decomposed.quantize_per_channel_group.default": [
        *(M, torch.rand(5, 1), torch.zeros(5, 1, dtype=torch.int32), *BYTE, 7)
    ],
    "quantized_decomposed.quantize_per_tensor.default": [X, 0.5, 3, *BYTE],
    "quantized_decomposed.quantize_per_tensor.tensor": [X, *ONE, *BYTE],
    "quantized_decomposed.quantize_per_token.default": [X, *EACH, *BYTE],
    "torchao.choose_qparams_affine.default": [
        *(X, "ASYMMETRIC", ROW, torch.int8, -128, 127, None, None, torch.int8)
    ],
    "torchao.dequantize_affine.default": [I8, ROW, *EACH, torch.int8],
    "torchao.quantize_affine.default": [X, ROW, *EACH, torch.int8],
}


#: Arguments that have to be named.
NAMED = {"aten.div.Tensor_mode": {"rounding_mode": "floor"}}


def aten(chain: Chain, op: str) -> None:
    """One call of an ATen operator, its outputs as PyTorch's own have them."""
    namespace, name, overload = op.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    given = ARGUMENTS.get(op)
    if given is None:
        required = [
            a for a in function._schema.arguments if not a.has_default_value() and not a.kwarg_only
        ]
        given = [
            [X, Y][i % 2] if "Tensor" in str(argument.type) else 2
            for i, argument in enumerate(required)
        ]
    named = NAMED.get(op, {})
    results = function(*given, **named)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    # Some scales are of f64 in PyTorch.
    results = [r.float() if r.dtype is torch.float64 else r for r in results]
    arguments: dict[str, Any] = {}
    for position, argument in enumerate(function._schema.arguments):
        default = named.get(argument.name, argument.default_value)
        value = given[position] if position < len(given) else default
        arguments[argument.name] = convert(chain, f"{argument.name}", value)
    mutates = {0: "self"} if name == "slice_scatter" else None
    outputs = chain.call(
        op, arguments, [(DTYPES[r.dtype], tuple(r.shape)) for r in results], mutates, MODULE
    )
    chain.output(*outputs)


def convert(chain: Chain, name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return chain.input(name, tuple(value.shape), value.dtype)
    if isinstance(value, (list, tuple)):
        return [convert(chain, f"{name}{i}", item) for i, item in enumerate(value)]
    return value


def copy(chain: Chain, op: str) -> None:
    """ExecuTorch's copies between dimension orders."""
    x = chain.input("self", tuple(X.shape))
    chain.output(*chain.call(op, {"self": x, "dtype": None}, [(x.dtype, x.shape)], module=MODULE))


def rms_norm(chain: Chain, op: str) -> None:
    x, weight = chain.input("x", (2, 3, 4)), chain.constant(torch.ones(4))
    arguments = {"x": x, "weight": weight, "eps": 1e-5}
    chain.output(*chain.call(op, arguments, [(x.dtype, x.shape)], module=MODULE))


def rope(chain: Chain, op: str) -> None:
    x = chain.input("x", (1, 3, 2, 8))
    tables = {name: chain.input(name, (1, 3, 1, 4)) for name in ("cos", "sin")}
    arguments = {"x": x, **tables, "interleaved": True}
    chain.output(*chain.call(op, arguments, [(x.dtype, x.shape)], module=MODULE))


def sdpa_arguments(chain: Chain) -> tuple[dict[str, Any], Any]:
    positions = chain.int_input("S", 1, 64)
    start = chain.int_input("start_pos", 0, 63)
    query = chain.input("query", (1, positions, 4, 8))
    rest = {"attn_mask": None, "drpout_p": 0.0, "is_causal": True, "scale": None}
    return {"query": query, "start_pos": start, **rest}, positions


def cache(chain: Chain, name: str) -> Any:
    return chain.state(torch.zeros(1, 128, 2, 8), f"{MODULE}.{name}_cache")


def custom_sdpa(chain: Chain, op: str) -> None:
    arguments, _ = sdpa_arguments(chain)
    for name in ("key", "value"):
        arguments[name] = cache(chain, name)
    query = arguments["query"]
    chain.output(*chain.call(op, arguments, [(query.dtype, query.shape)], module=MODULE))


def sdpa_with_kv_cache(chain: Chain, op: str) -> None:
    arguments, positions = sdpa_arguments(chain)
    for name in ("key", "value"):
        arguments[name] = chain.input(name, (1, positions, 2, 8))
        arguments[f"{name}_cache"] = cache(chain, name)
    arguments["seq_len"] = positions
    query, old = arguments["query"], arguments["key_cache"]
    outputs = [(query.dtype, query.shape), *[(old.dtype, old.shape)] * 2]
    mutates = {1: "key_cache", 2: "value_cache"}
    chain.output(chain.call(op, arguments, outputs, mutates, MODULE)[0])


def update_cache(chain: Chain, op: str) -> None:
    positions = chain.int_input("S", 1, 64)
    start = chain.int_input("start_pos", 0, 63)
    value, old = chain.input("value", (1, positions, 2, 8)), cache(chain, "k")
    arguments = {"value": value, "cache": old, "start_pos": start}
    outputs = [(value.dtype, (1,)), (old.dtype, old.shape)]
    chain.call(op, arguments, outputs, {1: "cache"}, MODULE)


def packed(chain: Chain, k: int, rows: int = 6) -> dict[str, Any]:
    """The arguments of a weight of 4 bits."""
    weight = chain.constant(pack_codes(torch.ones(rows, k, dtype=torch.uint8), 4), "weight")
    scales = chain.constant(torch.ones(rows, 1), "scales")
    numbers = {"bits": 4, "group": k, "k": k, "zero": 8}
    return {"weight": weight, "scales": scales, "zeros": None, **numbers}


def packed_linear(chain: Chain, op: str) -> None:
    eight = "8da" in op
    arguments = {"x": chain.input("x", (2, 3, 4), torch.int8 if eight else torch.float32)}
    if eight:
        arguments |= {"x_scales": chain.input("s", (2, 3)), "x_zeros": 3}
    arguments |= packed(chain, 4)
    if "packed" in op:
        arguments["bias"] = chain.constant(torch.ones(6), "bias")
    else:
        arguments |= {"formula": None, "operands": [], "pairs": False}
    chain.output(*chain.call(op, arguments, [(DType.F32, (2, 3, 6))], module=MODULE))


def packed_embedding(chain: Chain, op: str) -> None:
    arguments = {"indices": chain.input("indices", (1, 3), torch.int64), **packed(chain, 4)}
    chain.output(*chain.call(op, arguments, [(DType.F32, (1, 3, 4))], module=MODULE))


def embedding(chain: Chain, op: str) -> None:
    """ExecuTorch's tables of bytes, of two or four elements each below 8 bits."""
    bits = {"2": 2, "4": 4, "b": 8}[op.split("embedding_")[1][0]]
    low = -(1 << (bits - 1))
    dtype = torch.int8 if bits == 8 else torch.uint8
    arguments = {
        "weight": chain.constant(torch.ones(7, 8 * bits // 8, dtype=dtype), "weight"),
        "weight_scales": chain.constant(torch.ones(7), "scales"),
        "weight_zero_points": None,
        "weight_quant_min": low,
        "weight_quant_max": -low - 1,
        "indices": chain.input("indices", (1, 3), torch.int64),
    }
    chain.output(*chain.call(op, arguments, [(DType.F32, (1, 3, 8))], module=MODULE))


def linear(chain: Chain, op: str) -> None:
    x, weight = chain.input("x", (2, 3, 4)), chain.constant(torch.ones(5, 4))
    arguments = {"x": x, "weight": weight, "formula": None, "operands": [], "pairs": False}
    chain.output(*chain.call(op, arguments, [(x.dtype, (2, 3, 5))], module=MODULE))


def pointwise(chain: Chain, op: str) -> None:
    x = chain.input("x", (2, 3, 4))
    double = Formula((x.dtype,), (Line(x.dtype, "({0} + {0})", (0,)),))
    arguments = {"formula": double, "operands": [x], "name": "double"}
    chain.output(*chain.call(op, arguments, [(x.dtype, x.shape)], module=MODULE))


def rope_update_cache(chain: Chain, op: str) -> None:
    positions = chain.int_input("S", 1, 64)
    start = chain.int_input("start_pos", 0, 63)
    q = chain.input("q", (1, positions, 4, 8))
    arguments = {name: chain.input(name, (1, positions, 2, 8)) for name in ("k", "v")}
    arguments |= {name: chain.input(name, (positions, 1, 4)) for name in ("cos", "sin")}
    arguments |= {f"{name}_cache": cache(chain, name) for name in ("k", "v")}
    arguments |= {f"{name}_{part}": None for name in ("q", "k") for part in ("norm", "eps")}
    arguments |= {"q": q, "start_pos": start, "interleaved": True}
    old = arguments["k_cache"]
    outputs = [(q.dtype, q.shape), *[(old.dtype, old.shape)] * 2]
    mutates = {1: "k_cache", 2: "v_cache"}
    chain.output(chain.call(op, arguments, outputs, mutates, MODULE)[0])


def rope_attention(chain: Chain, op: str) -> None:
    rope_update_cache(chain, op)
    (call,) = chain.chain.calls
    more = {"attn_mask": None, "is_causal": True, "scale": None, "rope_dtype": DType.F32}
    call.args |= more


def sample(chain: Chain, op: str) -> None:
    arguments = {name: chain.input(name, (1,)) for name in ("temperature", "top_p")}
    arguments |= {name: chain.int_input(name, 0, 1 << 20) for name in ("top_k", "seed", "position")}
    arguments["logits"] = chain.input("logits", (1, 1, 5000))
    chain.output(*chain.call(op, arguments, [(DType.I64, (1, 1))], module=MODULE))


OTHERS: dict[str, Callable[[Chain, str], None]] = {
    "dim_order_ops._clone_dim_order.default": copy,
    "dim_order_ops._to_dim_order_copy.default": copy,
    "llama.custom_sdpa.default": custom_sdpa,
    "llama.sdpa_with_kv_cache.default": sdpa_with_kv_cache,
    "llama.update_cache.default": update_cache,
    **{
        f"quantized_decomposed.embedding_{width}.{overload}": embedding
        for width in ("2bit", "4bit", "byte")
        for overload in ("default", "dtype")
    },
    "wgpu.embedding_q": packed_embedding,
    "wgpu.packed_embedding.default": packed_embedding,
    "wgpu.linear_q": packed_linear,
    "wgpu.linear_8da": packed_linear,
    "wgpu.packed_linear.default": packed_linear,
    "wgpu.packed_linear_8da.default": packed_linear,
    "wgpu.rms_norm": rms_norm,
    "wgpu.linear": linear,
    "wgpu.pointwise": pointwise,
    "wgpu.rope": rope,
    "wgpu.rope_attention": rope_attention,
    "wgpu.rope_update_cache": rope_update_cache,
    "wgpu.sample.default": sample,
}


def lowered(op: str) -> tuple[Program, OpChain]:
    chain = Chain()
    OTHERS.get(op, aten)(chain, op)
    return chain.lower().program, chain.chain


@pytest.mark.parametrize("op", registry.registered_ops())
def test_every_operator(op: str) -> None:
    program, _ = lowered(op)
    entry = registry.lowering_of(op)
    assert entry is not None
    routes = [route for step in program.steps for route in step.routes]
    ops = set()
    for route in routes:
        assert route.name, op
        for dispatch in route.dispatches:
            ops.add(dispatch.op)
            assert dispatch.module_path == MODULE, dispatch.label
            assert dispatch.label.startswith(f"{MODULE}/")
            assert dispatch.op in (op, "wgpu.copy_output", "wgpu.store_state"), dispatch
            assert dispatch.bytes != NONE, dispatch.label
    # A view costs nothing itself: what leaves the program is copied, and says so.
    assert ops, op
    if not entry.views and op != "aten.lift_fresh_copy.default":
        assert op in ops or ops == {"wgpu.copy_output"}


def test_the_four_kinds_of_one_sdpa() -> None:
    program, _ = lowered("llama.sdpa_with_kv_cache.default")
    found = [
        (route.name, dispatch.label.rsplit("/", 1)[1])
        for step in program.steps
        for route in step.routes
        for dispatch in route.dispatches
    ]
    assert ("only", "update_cache_k") in found and ("only", "update_cache_v") in found
    assert ("decode", "sdpa_decode_split") in found and ("decode", "sdpa_decode_reduce") in found
    assert ("prefill", "sdpa_prefill") in found
