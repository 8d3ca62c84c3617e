"""``wgpu.rope_update_cache``: q and k rotated and k and v written into their caches, in one
dispatch, with a norm of q and k in front where there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executorch_wgpu.ops.attention.update_cache import cache_reason, check_cache
from executorch_wgpu.ops.builder import Bind, Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.halves import FLOATS, codec, codecs, is_half
from executorch_wgpu.ops.norm.rms_norm import rms_norm
from executorch_wgpu.ops.registry import all_of, only_dtypes, register
from executorch_wgpu.ops.symbolic import ceil_div
from executorch_wgpu.ops.tensor import Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS

#: Threads of a workgroup, at least; more where a head takes more.
WORKGROUP = 64
#: The largest head dimension: 256 threads with two pairs each.
MAX_DIM = 1024

_MAX_BINDINGS = DEFAULT_LIMITS["max-storage-buffers-per-shader-stage"]


def reason(call: OpCall) -> str | None:
    """Why ``wgpu.rope_update_cache`` is not supported, None when it is."""
    q, k, v = (call[name] for name in ("q", "k", "v"))
    for name in ("k", "v"):
        found = cache_reason(call[name], call[f"{name}_cache"], call["start_pos"])
        if found is not None:
            return f"{name}: {found}"
    if q.rank != 4 or q.shape[:2] != k.shape[:2] or k.shape != v.shape:
        return f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}"
    if call["k_cache"] is call["v_cache"]:
        return "one cache for both keys and values"
    heads, dim = q.shape[2:]
    if not all(isinstance(n, int) for n in (heads, dim, *k.shape[2:])) or k.shape[3] != dim:
        return "live or different numbers of heads or head dimensions"
    if dim % 2 or not 2 <= dim <= MAX_DIM:
        return f"a head dimension of {dim}"
    if dim % 4 and any(is_half(value.dtype) for value in call.outputs):
        return f"a head dimension of {dim} in 16 bits"  # a thread writes whole words
    width = dim // 2 if call["interleaved"] else dim
    for name in ("cos", "sin"):
        table = call[name]
        if not 1 <= table.rank <= 4 or table.shape[-1] != width:
            return f"{name} of shape {list(table.shape)}"
        if table.rank > 1 and table.shape[-2] != 1:
            return f"{name} for each head"
        sizes = zip(table.shape[:-2], q.shape[4 - table.rank : 2], strict=True)
        if any(size != 1 and size != want for size, want in sizes):
            return f"{name} of shape {list(table.shape)} for q {list(q.shape)}"
    for name in ("q_norm", "k_norm"):
        weight = call[name]
        if weight is not None and weight.shape != (dim,):
            return f"{name} of shape {list(weight.shape)}"
    return None


@register("wgpu.rope_update_cache", supports=all_of(only_dtypes(FLOATS), reason))
def rope_update_cache(b: Builder, call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    """(q rotated, k cache, v cache).

    ``q`` [B, S, Hq, D], ``k`` and ``v`` [B, S, Hkv, D], any strides; ``cos``, ``sin`` and
    ``interleaved`` as of ``wgpu.rope``, without a head dimension of their own; ``k_cache``,
    ``v_cache`` and ``start_pos`` as of ``llama.update_cache``. ``q_norm``, ``k_norm``: weights [D]
    of an RMSNorm over D before the rotation, with ``q_eps`` and ``k_eps``; None for no norm. Each
    tensor has a float dtype of its own.
    """
    dispatch, out = rope_cache_dispatch(b, call)
    b.run(dispatch)
    return out, call["k_cache"], call["v_cache"]


def rope_cache_dispatch(b: Builder, call: OpCall) -> tuple[DispatchSpec, Tensor]:
    """The dispatch of ``wgpu.rope_update_cache`` and the rotated q; norms of q and k may come
    before it as steps of their own."""
    call = _with_few_buffers(b, call)
    q, k = call["q"], call["k"]
    heads, dim = int(q.shape[2]), int(q.shape[3])
    kv_heads = int(k.shape[2])
    out = b.empty(q.shape, call.outputs[0].dtype, "rope")
    start = check_cache(b, k, call["k_cache"], call["start_pos"])
    check_cache(b, call["v"], call["v_cache"], call["start_pos"])
    rows = k.shape[1]
    pairs = 2 if dim % 4 == 0 else 1
    units = dim // 2 // pairs
    lanes = 1 << (units - 1).bit_length()
    total = q.shape[0] * rows * (heads + 2 * kv_heads)
    params: dict[str, Number] = {"TOTAL": total, "POSITIONS": rows}
    reads: dict[str, Bind] = {}
    consts: dict[str, Any] = {}
    for name in ("q", "k", "v"):
        consts[name.upper()] = _operand(params, reads, name, call[name])
    for name in ("cos", "sin"):
        table = call[name]
        view = table.expand((*q.shape[:3], table.shape[-1]))
        consts[name.upper()] = _operand(params, reads, name, view)
    for name in ("q_norm", "k_norm"):
        weight = call[name]
        consts[name.upper()] = weight is not None
        if weight is not None:
            view = weight.expand((1, 1, 1, dim))
            consts[f"{name.upper()}_WEIGHT"] = _operand(params, reads, name, view)
            params[f"{name.upper()}_EPS"] = float(call[f"{name[0]}_eps"])
    writes = {"q_out": Bind(out)}
    consts["Q_OUT"] = _address(params, "q_out", out)
    for name in ("k_cache", "v_cache"):
        part = call[name].slice(1, start, rows)
        consts[name.upper()] = _address(params, name, part)
        writes[name] = Bind(part)
    small = [call[n] for n in ("q", "k", "v", "cos", "sin", "q_norm", "k_norm")]
    touched = [t for t in (*small, *(bind.tensor for bind in writes.values())) if t is not None]
    dtypes = [t.dtype for t in touched]
    workgroup = max(WORKGROUP, lanes)
    norm = any(call[name] is not None for name in ("q_norm", "k_norm"))
    bits = is_half(call["v"].dtype) and call["v"].dtype is call["v_cache"].dtype
    dispatch = b.dispatch(
        "rope/rope_cache.wgsl",
        "rope_update_cache_kv",
        reads=reads,
        writes=writes,
        params=params,
        consts={
            **consts,
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "DIM": dim,
            "UNITS": units,
            "LANES": lanes,
            "PAIRS": pairs,
            "INTERLEAVED": bool(call["interleaved"]),
            "V_BITS": bits,
            "CODECS": [*codecs(*dtypes), *(["bits"] if bits else [])],
        },
        grid=linear_grid(ceil_div(total, workgroup // lanes)),
        workgroup=(workgroup,),
        workgroup_bytes=4 * workgroup if norm else 0,
        bytes=touched_bytes(touched),
    )
    return dispatch, out


def _with_few_buffers(b: Builder, call: OpCall) -> OpCall:
    """The call with norms as dispatches of their own where the kernel would bind too much: q, k
    and v are parts of one buffer as a rule, and of three at the worst."""
    found = [call[name] for name in ("q", "k", "v", "cos", "sin", "q_norm", "k_norm")]
    if len({(x.storage, x.dtype) for x in found if x is not None}) + 3 <= _MAX_BINDINGS:
        return call
    args = dict(call.args)
    for name in ("q", "k"):
        weight = args[f"{name}_norm"]
        if weight is not None:
            norm = {"x": args[name], "weight": weight, "eps": args[f"{name}_eps"]}
            value = Value(DType.F32, args[name].shape)
            args[name] = rms_norm(b, OpCall("wgpu.rms_norm", norm, (value,)))
            args[f"{name}_norm"] = None
    return replace(call, args=args)


def _operand(
    params: dict[str, Number], reads: dict[str, Bind], name: str, tensor: Tensor
) -> dict[str, str]:
    """Bind what is read, tensors in one storage once, and describe its address."""
    for variable, other in reads.items():
        if other.tensor.storage is tensor.storage and other.tensor.dtype is tensor.dtype:
            return _address(params, name, tensor, variable)
    reads[name] = Bind(tensor)
    return _address(params, name, tensor)


def _address(
    params: dict[str, Number], name: str, tensor: Tensor, variable: str = ""
) -> dict[str, str]:
    """Parameters of the address of element (batch, position, head, d) of a tensor of rank 4."""
    prefix = name.upper()
    params[f"{prefix}_AT"] = tensor.offset
    for axis, size, stride in zip("BSHD", tensor.shape, tensor.strides, strict=True):
        params[f"{prefix}_{axis}_STEP"] = 0 if size == 1 else stride
    return {"name": variable or name, "prefix": prefix, "codec": codec(tensor.dtype)}
