"""What a call through ExecuTorch's own runtime costs over ours.

    python -m executorch_wgpu.scripts.bench.bridge

One small program, in both runtimes, call by call in turn so that both see the same machine. The
difference is ExecuTorch's set-up of inputs and outputs, the way into Python, and the copies.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click


def small_program() -> bytes:
    """``x * y + x`` on 32 elements, as a ``.pte``."""
    import torch
    from executorch.exir import to_edge_transform_and_lower

    from executorch_wgpu.backend import WgpuPartitioner

    class Small(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y + x

    program = torch.export.export(Small(), (torch.ones(4, 8), torch.ones(4, 8)))
    lowered = to_edge_transform_and_lower(program, partitioner=[WgpuPartitioner()])
    return bytes(lowered.to_executorch().buffer)


def in_turn(functions: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of every call of each function, called one after the other ``rounds`` times."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return times


@click.command()
@click.option("--rounds", default=2000, show_default=True, help="Calls of each runtime.")
def main(rounds: int) -> None:
    """Cost of a call through executorch.runtime over our own runtime's, in microseconds."""
    import torch
    from executorch.runtime import Runtime as Official

    import executorch_wgpu.runtime.executorch_bridge as bridge
    from executorch_wgpu.runtime import Runtime

    bridge.register()
    buffer = small_program()
    official = Official.get().load_program(buffer).load_method("forward")
    own = Runtime.get().load_program(buffer).load_method("forward")
    inputs = [torch.randn(4, 8), torch.randn(4, 8)]
    assert torch.equal(official.execute(inputs)[0], own.execute(inputs)[0])
    in_turn([lambda: official.execute(inputs), lambda: own.execute(inputs)], 100)
    ours, theirs = "executorch_wgpu.runtime", "executorch.runtime"
    a, b = in_turn([lambda: own.execute(inputs), lambda: official.execute(inputs)], rounds)
    rows = [(ours, a), (theirs, b), ("difference", [y - x for x, y in zip(a, b, strict=True)])]
    click.echo(f"{'us a call':26} {'median':>8} {'10%':>8} {'90%':>8}")
    for name, times in rows:
        tenths = statistics.quantiles(times, n=10)
        values = (statistics.median(times), tenths[0], tenths[-1])
        click.echo(f"{name:26} " + " ".join(f"{value * 1e6:8.1f}" for value in values))


if __name__ == "__main__":
    main()
