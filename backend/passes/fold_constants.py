"""Fold conversions of scalar constants."""

from __future__ import annotations

from executorch_wgpu.ops.call import OpChain, Value
from executorch_wgpu.serialization.dispatch_list import DType

_CONVERSIONS = (
    "aten._to_copy.default",
    "dim_order_ops._to_dim_order_copy.default",
    "aten.clone.default",
    "dim_order_ops._clone_dim_order.default",
    "aten.alias_copy.default",
    "aten.lift_fresh_copy.default",
)


def fold_scalar_constants(chain: OpChain) -> None:
    """
    Before: ``x * 2`` as the exporter writes it::

        c: i64[] constant --_to_copy--> f32[] --+
                                      x: f32 ---mul--> y

    After: the converted number is itself a constant, which pointwise kernels take as a literal.
    ``scalar_tensor(s)`` becomes one too.
    """
    import torch

    dtypes = {
        DType.F32: torch.float32,
        DType.F16: torch.float16,
        DType.BF16: torch.bfloat16,
        DType.I32: torch.int32,
        DType.I64: torch.int64,
        DType.BOOL: torch.bool,
        DType.I8: torch.int8,
        DType.U8: torch.uint8,
    }
    states = set(chain.states)
    for call in chain.calls:
        if call.op == "aten.scalar_tensor.default":
            value = call.outputs[0]
            value.constant = torch.full((), call["s"], dtype=dtypes[value.dtype])
        if call.op not in _CONVERSIONS or call.mutates:
            continue
        source = call["self"]
        if not isinstance(source, Value) or source.constant is None or source in states:
            continue
        if source.rank == 0:
            value = call.outputs[0]
            value.constant = source.constant.to(dtypes[value.dtype])
    # A value with a constant needs no producer.
    chain.calls = [
        call
        for call in chain.calls
        if not (
            call.op in (*_CONVERSIONS, "aten.scalar_tensor.default")
            and call.outputs[0].constant is not None
        )
    ]
