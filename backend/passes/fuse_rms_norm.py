"""RMSNorm in one dispatch."""

from __future__ import annotations

from dataclasses import replace

from executorch_wgpu.backend.passes.chain_index import (
    ChainIndex,
    last_dim,
    number_of,
    same_elements,
)
from executorch_wgpu.ops.call import OpCall, OpChain, Value
from executorch_wgpu.ops.halves import is_float


def fuse_rms_norm(chain: OpChain) -> None:
    """
    Before, in the forms that Meta's llama, Hugging Face and torch.nn.RMSNorm arrive as::

        x --mul(x, x) or pow(x, 2)--mean(-1, keepdim)--add(eps)--rsqrt--+
        x --------------------------------------------------------------mul--[mul(weight)]--> y

    After::

        x, weight, eps --wgpu.rms_norm--> y

    ``weight`` is a vector of the last dimension's size in either position; without one the
    first product is the norm. Copies that change nothing (``type_as``) are looked through. Each
    value has a float dtype of its own; in 16 bits, what lies between is not rounded.
    """
    index = ChainIndex(chain)
    fused: dict[int, OpCall] = {}
    for call in chain.calls:
        match = _normalised(index, call)
        if match is None:
            continue
        x, eps = match
        (normal,) = call.outputs
        fused[id(call)] = _norm(call, x, None, eps, normal)
        for user in index.users.get(normal, []):
            product = _weighted(index, user, normal)
            if product is not None:
                fused[id(product[0])] = _norm(product[0], x, product[1], eps, product[0].outputs[0])
    chain.calls = [fused.get(id(call), call) for call in chain.calls]


def _norm(call: OpCall, x: Value, weight: Value | None, eps: float, out: Value) -> OpCall:
    args = {"x": x, "weight": weight, "eps": eps}
    return OpCall("wgpu.rms_norm", args, (out,), replace(call.origin, op="rms_norm"))


def _normalised(index: ChainIndex, call: OpCall) -> tuple[Value, float] | None:
    """(x, eps) when ``call`` is x * rsqrt(mean(x^2) + eps)."""
    if call.op != "aten.mul.Tensor" or not is_float(call.outputs[0].dtype):
        return None
    for x, scale in ((call["self"], call["other"]), (call["other"], call["self"])):
        rsqrt = index.made_by(same_elements(index, scale), "aten.rsqrt.default")
        if rsqrt is None or not isinstance(x, Value) or x.shape != call.outputs[0].shape:
            continue
        add = index.made_by(rsqrt["self"], "aten.add.Tensor", "aten.add.Scalar")
        if add is None or add.args.get("alpha", 1) != 1:
            continue
        eps = number_of(add["other"])
        mean = index.made_by(add["self"], "aten.mean.dim")
        if eps is None or mean is None or not mean["keepdim"]:
            continue
        square = mean["self"]
        if not last_dim(mean["dim"], square.rank):
            continue
        root = same_elements(index, x)
        if _is_square(index, square, root):
            return root, eps
    return None


def _is_square(index: ChainIndex, square: Value, x: Value) -> bool:
    power = index.made_by(square, "aten.pow.Tensor_Scalar")
    if power is not None:
        return number_of(power["exponent"]) == 2 and same_elements(index, power["self"]) is x
    product = index.made_by(square, "aten.mul.Tensor")
    return product is not None and all(
        same_elements(index, product[name]) is x for name in ("self", "other")
    )


def _weighted(index: ChainIndex, call: OpCall, normal: Value) -> tuple[OpCall, Value] | None:
    """The product of ``normal`` (possibly through copies) with a vector of its last size."""
    if call.op != "aten.mul.Tensor":
        through = call.outputs[0] if len(call.outputs) == 1 else None
        if (
            through is not None
            and same_elements(index, through) is normal
            and through is not normal
        ):
            for user in index.users.get(through, []):
                found = _weighted(index, user, through)
                if found is not None:
                    return found
        return None
    for one, other in ((call["self"], call["other"]), (call["other"], call["self"])):
        if one is normal and isinstance(other, Value) and other is not normal:
            other = same_elements(index, other)
            same = call.outputs[0].shape == normal.shape and is_float(other.dtype)
            if same and other.shape == normal.shape[-1:]:
                return call, other
    return None
