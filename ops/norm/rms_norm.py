"""RMSNorm (Zhang & Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * weight over the last dim."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Bind, Builder, DispatchSpec, Number, linear_grid
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import FLOATS, codec, element, is_half
from executorch_wgpu.ops.registry import only_dtypes, register
from executorch_wgpu.ops.symbolic import Sym, product
from executorch_wgpu.ops.tensor import Tensor


def row_workgroup(dim: object) -> int:
    """Enough lanes for a row, a power of two for the reduction."""
    if isinstance(dim, Sym):
        return 128
    assert isinstance(dim, int)
    return max(32, min(256, 1 << max(dim // 4 - 1, 1).bit_length()))


def rows_of(b: Builder, x: Tensor) -> Tensor:
    """``x`` as [rows, last dim] with the last dimension contiguous, copied where it must be."""
    shape = (product(x.shape[:-1]), x.shape[-1])
    flat = x.try_view(shape)
    if flat is None or (flat.strides[1] != 1 and flat.shape[1] != 1):
        flat = materialize(b, x, "rows").try_view(shape)
        if flat is None:
            raise AssertionError(f"{x.shape} has no view {shape}")
    return flat


@register("wgpu.rms_norm", supports=only_dtypes(FLOATS), converts=True)
def rms_norm(b: Builder, call: OpCall) -> Tensor:
    """``x`` [..., D], ``weight`` [D] or None, ``eps``: float. One dispatch."""
    out = b.empty(call["x"].shape, call.outputs[0].dtype, "rms_norm")
    rows = rows_of(b, call["x"])
    b.run(norm_dispatch(b, rows, call["weight"], float(call["eps"]), out))
    return out


def norm_dispatch(
    b: Builder, rows: Tensor, weight: Tensor | None, eps: float, out: Tensor
) -> DispatchSpec:
    """The norm of ``rows`` (see :func:`rows_of`), times ``weight`` [D], into ``out``, contiguous
    with as many elements."""
    count, dim = rows.shape
    tensors = [rows] if weight is None else [rows, weight]
    if weight is not None and weight.strides[0] != 1:
        weight = materialize(b, weight)
    vectors = dim % 4 == 0 and all(t.offset % 4 == 0 for t in tensors)
    vec = 4 if vectors and rows.strides[0] % 4 == 0 else 1
    alone = is_half(out.dtype) and vec == 1
    reads = {"x": Bind(rows, element(rows.dtype, vec == 4))}
    params: dict[str, Number] = {
        "ROWS": count,
        "DIM": dim // vec,
        "ROW_STRIDE": rows.strides[0] // vec,
        "START": rows.offset // vec,
        "EPS": eps,
    }
    weight_start = 0
    if weight is not None:
        reads["weight"] = Bind(weight, element(weight.dtype, vec == 4))
        weight_start = weight.offset // vec
    workgroup = row_workgroup(dim)
    return b.dispatch(
        "norm/rms_norm.wgsl",
        "rms_norm",
        reads=reads,
        writes={"y": Bind(out, "atomic<u32>" if alone else element(out.dtype, vec == 4))},
        params=params,
        consts={
            "VEC": vec,
            "WEIGHT": weight is not None,
            "WEIGHT_START": f"{weight_start}u",
            "X": codec(rows.dtype),
            "W": "" if weight is None else codec(weight.dtype),
            "Y": codec(out.dtype),
        },
        grid=linear_grid(count),
        workgroup=(workgroup,),
        workgroup_bytes=4 * workgroup,
        flops=(3 if weight is None else 4) * rows.numel,
    )
