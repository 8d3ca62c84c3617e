"""Quantized weights and activations: packed layouts, products and look-ups straight from them,
and the quantize and dequantize operators themselves."""

from executorch_wgpu.ops.quant import affine, choose, embedding, linear  # noqa: F401
