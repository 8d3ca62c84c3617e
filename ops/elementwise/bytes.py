"""Copies and conversions of integers of 8 bits, which lie four to a word."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder, Number, linear_grid
from executorch_wgpu.ops.halves import FLOATS, is_half
from executorch_wgpu.ops.symbolic import ceil_div, product
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType

WORKGROUP = 64
BYTES = (DType.I8, DType.U8)
#: What they can become.
TARGETS = (*BYTES, *FLOATS, DType.I32, DType.I64)


def emit_byte_copy(b: Builder, source: Tensor, out: Tensor, name: str) -> None:
    """Append a dispatch that copies ``source`` (I8 or U8, broadcast, any strides) into ``out``,
    converted; by way of f32 into 16 bits. ``out`` is contiguous from offset 0: a thread owns whole
    words of it. Raises ValueError for another ``out``."""
    from executorch_wgpu.ops.elementwise.pointwise import collapse_dims, emit_copy

    if is_half(out.dtype):
        wide = b.empty(out.shape, DType.F32, f"{name}_f32")
        emit_byte_copy(b, source, wide, name)
        emit_copy(b, wide, out, f"{name}_round")
        return
    if out.dtype not in TARGETS or out.offset != 0 or not out.is_contiguous:
        raise ValueError(f"bytes into {out.dtype.name} {out.shape} with strides {out.strides}")
    source = source.expand(out.shape)
    shape, (strides,) = collapse_dims(out.shape, [source.strides])
    count = product(out.shape)
    params: dict[str, Number] = {"COUNT": count, "X_AT": source.offset}
    params |= {f"S{d}": stride for d, stride in enumerate(strides)}
    # Of an empty tensor nothing runs, but Tint refuses to compile a division by 0.
    params |= {f"D{d}": size if size != 0 else 1 for d, size in enumerate(shape) if d}
    target = "I32" if out.dtype is DType.I64 else out.dtype.name
    b.run(
        b.dispatch(
            "quant/convert.wgsl",
            name,
            reads={"x": source},
            writes={"out": out},
            params=params,
            consts={"DIMS": len(shape), "X": source.dtype.name, "TO": target},
            grid=linear_grid(ceil_div(ceil_div(count, 4), WORKGROUP)),
            workgroup=(WORKGROUP,),
        )
    )
