"""Profiled steps made up, with times that are easy to add."""

from __future__ import annotations

from executorch_wgpu.runtime.profiling.records import PHASES, HostPhase, StepProfile
from executorch_wgpu.runtime.query_pool import ShaderDuration

#: (module, kernel, operator, microseconds, bytes, flops)
DISPATCHES = [
    ("layers.0.attention", "linear", "aten.linear.default", 10.0, 4000, 8000),
    ("layers.0.attention", "sdpa", "llama.custom_sdpa.default", 20.0, None, None),
    ("layers.0.mlp.up", "linear", "aten.linear.default", 30.0, 12000, 24000),
    ("layers.1.attention", "linear", "aten.linear.default", 12.0, 4000, 8000),
    ("layers.1.attention", "sdpa", "llama.custom_sdpa.default", 22.0, None, None),
    ("layers.1.mlp.up", "linear", "aten.linear.default", 32.0, 12000, 24000),
    ("", "norm", "rms_norm", 4.0, 800, None),
]
GAP_US = 1.0


def step(
    number: int = 0, scale: float = 1.0, *, flags: tuple[str, ...] = (), overlap: bool = False
) -> StepProfile:
    """All of :data:`DISPATCHES`, ``scale`` times as long, then a copy. ``overlap``: the second one
    begins with the first."""
    at, passes = 0.0, []
    for i, (module, kernel, op, us, moved, flops) in enumerate(DISPATCHES):
        start, end = at, at + us * 1000 * scale
        if overlap and i == 1:
            start = passes[0].start_ns
        passes.append(
            ShaderDuration(
                i, kernel, (i + 1, 1, 1), (64, 1, 1), start, end, end - start,
                flags if i == 1 else (), "dispatch", f"{module}/{kernel}" if module else kernel,
                op, module, "decode" if kernel == "sdpa" else "only", i, 100 + i,
                f"{module}/{kernel}" if module else kernel, (f"reads w{i} (64 B)",), moved, flops,
            )
        )  # fmt: skip
        at = end + GAP_US * 1000
    copy = ShaderDuration(
        len(passes), "read back y", start_ns=at, end_ns=at + 2000.0, duration_ns=2000.0,
        kind="copy", label="read back y", bytes=128,
    )  # fmt: skip
    begin = 100_000_000 * number
    host = []
    for name in PHASES:
        duration = round(at) + 5000 if name == "wait" else 10_000
        host.append(HostPhase(name, begin, begin + duration))
        begin += duration
    return StepProfile("forward", number, (("pos", number),), (*passes, copy), tuple(host))
