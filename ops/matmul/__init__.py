"""Matrix products: mm, addmm, bmm, linear."""

from executorch_wgpu.ops.matmul import fused, operators  # noqa: F401
