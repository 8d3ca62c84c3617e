"""Benchmarks. ``executorch-wgpu bench`` measures a user's file (``command.py``); the others run as
``python -m executorch_wgpu.scripts.bench.NAME``:

* ``model``: steps of a published model's shape, from a dispatch list without weights;
* ``table``: all of docs/PERFORMANCE.md's rows beside their goals, in one run;
* ``kernels``: every family of kernels alone, at such a model's shapes;
* ``llama``: export and run of a whole model with random weights; writes those dispatch lists;
* ``sdpa``: the dispatches of one attention layer;
* ``passes``: what each pass of the lowering brings;
* ``bridge``: what a call through ExecuTorch's runtime costs.

They print; tests assert no times."""
