"""LayerNorm (Ba et al. 2016): y = (x - mean) / sqrt(variance + eps) * weight + bias over the last
dimensions."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Bind, Builder, linear_grid
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import FLOATS, codec, element, is_half
from executorch_wgpu.ops.norm.rms_norm import row_workgroup
from executorch_wgpu.ops.registry import all_of, only_dtypes, register
from executorch_wgpu.ops.symbolic import Scalar, product
from executorch_wgpu.ops.tensor import Tensor


def _reason(call: OpCall) -> str | None:
    shape = call["normalized_shape"]
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        return "a layer norm over live or empty dimensions"
    return None


def _flat(b: Builder, tensor: Tensor, shape: tuple[Scalar, ...]) -> Tensor:
    """``tensor`` as ``shape`` with neighbours in the last dimension, copied where it must be."""
    flat = tensor.try_view(shape)
    if flat is None or (flat.strides[-1] != 1 and flat.shape[-1] != 1):
        flat = materialize(b, tensor).try_view(shape)
        assert flat is not None  # a contiguous tensor has every view
    return flat


@register(
    "aten.native_layer_norm.default",
    supports=all_of(only_dtypes(FLOATS), _reason),
    converts=True,
)
def layer_norm(b: Builder, call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    """``input`` [..., *normalized_shape], ``weight`` and ``bias`` [*normalized_shape] or None,
    ``eps``: float. Returns the result, the means and the factors 1 / sqrt(variance + eps), both
    [..., 1 ...]. One dispatch."""
    x: Tensor = call["input"]
    dim = product(call["normalized_shape"])
    assert isinstance(dim, int)
    lead = x.shape[: x.rank - len(call["normalized_shape"])]
    rows = _flat(b, x, (product(lead), dim))
    given = {name: call[name] for name in ("weight", "bias") if call[name] is not None}
    factors = {name: _flat(b, tensor, (dim,)) for name, tensor in given.items()}
    values = call.outputs
    y = b.empty(x.shape, values[0].dtype, "layer_norm")
    mean, factor = (b.empty(v.shape, v.dtype, "layer_norm") for v in values[1:])
    aligned = all(t.offset % 4 == 0 for t in (rows, *factors.values()))
    vec = 4 if dim % 4 == 0 and aligned and rows.strides[0] % 4 == 0 else 1

    def alone(tensor: Tensor) -> Bind:
        return Bind(
            tensor, "atomic<u32>" if is_half(tensor.dtype) else element(tensor.dtype, False)
        )

    workgroup = row_workgroup(dim)
    b.run(
        b.dispatch(
            "norm/layer_norm.wgsl",
            "layer_norm",
            reads={
                name: Bind(tensor, element(tensor.dtype, vec == 4))
                for name, tensor in {"x": rows, **factors}.items()
            },
            writes={
                "y": Bind(y, element(y.dtype, True)) if vec == 4 else alone(y),
                "means": alone(mean),
                "factors": alone(factor),
            },
            params={
                "ROWS": rows.shape[0],
                "DIM": dim // vec,
                "ROW_STRIDE": rows.strides[0] // vec,
                "START": rows.offset // vec,
                "EPS": float(call["eps"]),
            },
            consts={
                "VEC": vec,
                "WEIGHT": "weight" in factors,
                "BIAS": "bias" in factors,
                "WEIGHT_START": f"{factors['weight'].offset // vec}u"
                if "weight" in factors
                else "",
                "BIAS_START": f"{factors['bias'].offset // vec}u" if "bias" in factors else "",
                "X": codec(rows.dtype),
                "W": codec(factors["weight"].dtype) if "weight" in factors else "",
                "B": codec(factors["bias"].dtype) if "bias" in factors else "",
                "Y": codec(y.dtype),
                "M": codec(mean.dtype),
                "R": codec(factor.dtype),
            },
            grid=linear_grid(rows.shape[0]),
            workgroup=(workgroup,),
            workgroup_bytes=8 * workgroup,
            flops=8 * x.numel,
        )
    )
    return y, mean, factor
