"""The parts of the bridge into ExecuTorch's own runtime: building the C++ shim, and one delegate's
calls. See :mod:`executorch_wgpu.runtime.executorch_bridge`. Nothing here imports executorch."""
