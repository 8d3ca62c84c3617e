"""Matrix products: mm, addmm, bmm, linear."""

from executorch_wgpu.ops.matmul import operators  # noqa: F401
