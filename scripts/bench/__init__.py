"""Benchmarks: ``executorch-wgpu bench`` for a user's file (``command.py``), and two that need no
model: ``python -m executorch_wgpu.scripts.bench.model`` for the steps of a published model's shape,
``python -m executorch_wgpu.scripts.bench.kernels`` for kernels alone. They print; tests assert no
times."""
