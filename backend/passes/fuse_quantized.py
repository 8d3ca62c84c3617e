"""Linear layers and embeddings over quantized constants, straight from packed weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.linear_forms import linear_parts, transposed, without_views
from executorch_wgpu.backend.passes.make_linear import bias_arguments
from executorch_wgpu.backend.passes.quantized import CASTS, PackedWeights
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Value
from executorch_wgpu.ops.halves import is_float
from executorch_wgpu.serialization.dispatch_list import DType

#: Operators of modules that hold packed weights (ops/quant/torch_ops.py): the same by our names.
_PACKED = {
    "wgpu.packed_linear.default": "wgpu.linear_q",
    "wgpu.packed_linear_8da.default": "wgpu.linear_8da",
    "wgpu.packed_embedding.default": "wgpu.embedding_q",
}


def fuse_quantized(chain: OpChain) -> None:
    """
    Before, weight only (any dequantize of torchao or quantized_decomposed; the integers are a
    constant [N, K], one scale for a row or for a group of it)::

        w: int8 --dequantize--[permute]--+
        x: f32 --------------------------mm, addmm or linear--> y

    After::

        x, packed w, scales, zeros, formula (of the sum and the bias) --wgpu.linear_q--> y

    Before, with activations quantized a token at a time, or with one scale::

        x --choose_qparams--+
        x ------------------quantize: int8--dequantize--+
        w: int8 --dequantize--[permute]-----------------linear--> y

    After::

        x --choose_qparams--quantize: int8--+
        packed w, scales, zeros, formula ---wgpu.linear_8da--> y

    Before, and with tables: ``dequantize(w), indices --embedding``; after:
    ``packed w, indices --wgpu.embedding_q``. One constant is packed once, so a tied embedding stays
    tied. What the packed layout cannot hold stays as it was: dequantize is an operator, too.
    """
    index = ChainIndex(chain)
    weights = PackedWeights(index)
    fused: dict[int, OpCall] = {}
    for call in chain.calls:
        found = _embedding(weights, call) or _linear(index, weights, call)
        if found is not None and registry.unsupported_reason(found) is None:
            fused[id(call)] = found
        elif call.op in _PACKED:
            name, args = _PACKED[call.op], dict(call.args)
            if "bias" in args:
                args |= bias_arguments(args.pop("bias"))
            origin = replace(call.origin, op=name.split(".")[1])
            fused[id(call)] = OpCall(name, args, call.outputs, origin)
    chain.calls = [fused.get(id(call), call) for call in chain.calls]


def _embedding(weights: PackedWeights, call: OpCall) -> OpCall | None:
    if call.op != "aten.embedding.default":
        return None
    packed = weights.arguments(call["weight"])
    if packed is None:
        return None
    args = {**packed, "indices": call["indices"]}
    origin = replace(call.origin, op="embedding_q")
    return OpCall("wgpu.embedding_q", args, call.outputs, origin)


def _linear(index: ChainIndex, weights: PackedWeights, call: OpCall) -> OpCall | None:
    parts = linear_parts(index, call, _matrix)
    if parts is None:
        return None
    x, weight, bias = parts
    packed = weights.arguments(weight)
    if packed is None:
        return None
    origin = replace(call.origin, op="linear_q")
    activations = _activations(index, x)
    if activations is not None:
        args = {**activations, **packed, **bias_arguments(bias)}
        found = OpCall("wgpu.linear_8da", args, call.outputs, origin)
        if registry.unsupported_reason(found) is None:
            return found
    args = {"x": x, **packed, **bias_arguments(bias)}
    return OpCall("wgpu.linear_q", args, call.outputs, origin)


def _matrix(index: ChainIndex, value: Any) -> Value | None:
    """w when ``value`` is w transposed; integers may have been transposed before they became
    floats."""
    found = transposed(index, value)
    if found is not None:
        return found
    cast = index.made_by(value, *CASTS)
    source = None if cast is None else transposed(index, cast["self"])
    if source is None or source.constant is None:
        return None
    # As the exporter would have written it the other way round.
    result = Value(value.dtype, source.shape, source.name)
    index.producer[result] = OpCall(cast.op, {**cast.args, "self": source}, (result,), cast.origin)
    return result


def _activations(index: ChainIndex, x: Value) -> dict[str, Any] | None:
    """The int8 tensor that ``x`` is the dequantized form of, one scale a row or one for all."""
    x = without_views(index, x)
    call = index.producer.get(x)
    if call is None:
        return None
    if call.op == "torchao.dequantize_affine.default":
        source, block = call["input"], list(call["block_size"])
        whole = block == list(source.shape)
        token = block[:-1] == [1] * (source.rank - 1) and block[-1] == source.shape[-1]
        if not whole and not token:
            return None
        scales, zeros = call["scale"], call["zero_point"]
    elif call.op == "quantized_decomposed.dequantize_per_token.default":
        source, scales, zeros = call["input"], call["scales"], call["zero_points"]
    elif call.op in (
        "quantized_decomposed.dequantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_tensor.tensor",
    ):
        source, scales, zeros = call["input"], call["scale"], call["zero_point"]
    else:
        return None
    if source.dtype is not DType.I8 or not is_float(call.outputs[0].dtype):
        return None
    if isinstance(zeros, Value) and is_float(zeros.dtype) and not _chosen(index, zeros):
        return None  # zero points that may be no integers
    return {"x": source, "x_scales": scales, "x_zeros": 0 if zeros is None else zeros}


def _chosen(index: ChainIndex, zeros: Value) -> bool:
    """Whether an operator that chooses zero points made ``zeros``: they are integers."""
    call = index.producer.get(zeros)
    return call is not None and "choose_qparams" in call.op
