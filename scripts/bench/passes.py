"""What each graph pass brings to a decode step: dispatches and time, with and without it.

    python -m executorch_wgpu.scripts.bench.passes llama3_2_1b --layers 2 --dtype f16

lowers a model of published shape with random weights once for each pass left out, and once without
all of them, and times a step of one token, in turns, so that what else the machine does meanwhile
falls on all of them. CPU time is the process's: on a software adapter it is what the kernels took,
whoever else had the cores. Results are the same whatever is left out: they are compared.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click

from executorch_wgpu.scripts.console import Console, quiet

#: Passes that join operators, or take away what would be dispatches.
MEASURED = (
    "fold_casts",
    "fuse_rms_norm",
    "fuse_rope",
    "make_linear",
    "fuse_pointwise",
    "fuse_gates",
    "fuse_epilogue",
    "join_linears",
    "fuse_norm",
    "fuse_rope_cache",
    "fuse_rope_attention",
)

#: How far results may be from those with all passes, relative to the largest.
TOLERANCE = 1e-3


@click.command()
@click.argument("name")
@click.option("--dtype", type=click.Choice(["f32", "f16", "bf16"]), default="f32")
@click.option("--layers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--vocab", type=click.IntRange(2), default=4096, show_default=True)
@click.option("--position", type=click.IntRange(0), default=127, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
@click.option("--device", help="Part of an adapter's name, see `executorch-wgpu devices`.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(
    name: str,
    dtype: str,
    layers: int,
    vocab: int,
    position: int,
    rounds: int,
    device: str | None,
    json_path: Path | None,
) -> None:
    """Lower NAME (one of recipes.families) with and without each pass, and time a decode step."""
    from executorch_wgpu.runtime.device import resolve_device

    chosen = resolve_device(device)
    edge = edge_program(name, dtype, n_layers=layers, vocab_size=vocab)
    rows = measure(edge, chosen, position, rounds)
    console = Console()
    console.heading(f"{name}, {layers} layers, {dtype}, on {chosen.adapter.summary}")
    console.table(
        ["passes", "dispatches>", "ms a step>", "CPU ms a step>"],
        [(r["passes"], r["dispatches"], f"{r['ms']:.2f}", f"{r['cpu_ms']:.2f}") for r in rows],
    )
    if json_path is not None:
        options = {"name": name, "dtype": dtype, "layers": layers, "vocab": vocab}
        document = {**options, "position": position, "rows": rows}
        json_path.write_text(json.dumps(document, indent=1) + "\n")


def edge_program(name: str, dtype: str, **overrides: Any) -> Any:
    """``forward`` in edge dialect."""
    with quiet():
        import torch
        from executorch.exir import EdgeCompileConfig, to_edge

        from executorch_wgpu.scripts.recipes import families, pte
        from executorch_wgpu.scripts.recipes.whole import export_methods

        dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        checkpoint = families.random_checkpoint(name, **overrides)
        model = pte.checkpoint_model(checkpoint, dtype=dtypes[dtype], max_context=1024)
        exported = export_methods(model, ["forward"])["forward"]
        config = EdgeCompileConfig(_check_ir_validity=False)
        return to_edge(exported, compile_config=config).exported_program()


def measure(edge: Any, device: Any, position: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each set of passes: what it is, dispatches of a step, median milliseconds, by the
    clock and of all cores.

    Raises ValueError where a result is another one without a pass.
    """
    import numpy as np

    from executorch_wgpu.backend.graph_reader import GraphReader
    from executorch_wgpu.backend.lowering import lower_chain
    from executorch_wgpu.backend.passes import run_passes
    from executorch_wgpu.runtime.device import capabilities
    from executorch_wgpu.runtime.graph import WebGPUGraph
    from executorch_wgpu.scripts.describe import dispatches_at, scalars_at

    sets = {"all": (), **{f"without {name}": (name,) for name in MEASURED}, "none": MEASURED}
    graphs: dict[str, Any] = {}
    rows = []
    inputs = [np.array([[7]], np.int64), np.array([position], np.int64)]
    expected = None
    for label, skip in sets.items():
        lowered = lower_chain(run_passes(GraphReader(edge).chain(), skip))
        program = lowered.program
        graph = graphs[label] = WebGPUGraph(device, program, lowered.data, label)
        (result,) = graph.execute(inputs)
        expected = result if expected is None else expected
        error = float(np.abs(result - expected).max() / np.abs(expected).max())
        if not error <= TOLERANCE:
            raise ValueError(f"{label}: off by {error:.1e} of the largest logit")
        found = dispatches_at(program, scalars_at(program, 1, position), capabilities(device))
        rows.append({"passes": label, "dispatches": len(found)})
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in graphs}
    for _ in range(rounds):
        for label, graph in graphs.items():
            begin = time.perf_counter(), time.process_time()
            graph.execute(inputs)
            end = time.perf_counter(), time.process_time()
            times[label].append(((end[0] - begin[0]) * 1e3, (end[1] - begin[1]) * 1e3))
    for row in rows:
        wall, cpu = zip(*times[row["passes"]], strict=True)
        row |= {"ms": statistics.median(wall), "cpu_ms": statistics.median(cpu)}
    return rows


if __name__ == "__main__":
    main()
