"""The dispatches of one attention, timed: cache writes, split, merge, prefill tile.

The layer is ``llama.sdpa_with_kv_cache`` alone, with 32 query heads and 8 KV heads of 64 and a
cache of 4,096 positions, f32. Two steps, so that the machine that measures needs neither torch nor
executorch::

    python -m executorch_wgpu.scripts.bench.sdpa --make sdpa.pte
    python -m executorch_wgpu.scripts.bench.sdpa sdpa.pte --json sdpa.json
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

HEADS, KV_HEADS, DIM, CACHE, LONGEST = 32, 8, 64, 4096, 512

#: (positions at once, position of the first)
SETTINGS = ((1, 511), (1, 2047), (128, 0), (128, 1920))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--make", is_flag=True, help="Write FILE rather than measure it.")
@click.option("--steps", default=200, show_default=True, help="Measured executes a setting.")
@click.option("--warmup", default=20, show_default=True, help="Executes before them.")
@click.option("--device", help="Part of the adapter's name (see devices).")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
    help="Everything that was measured, a document of `bench --json` a setting.",
)  # fmt: skip
def main(
    file: Path, make: bool, steps: int, warmup: int, device: str | None, json_path: Path | None
) -> None:
    """Time the dispatches of one attention at several positions."""
    if make:
        export(file)
        click.echo(f"wrote {file}, {file.stat().st_size:,} bytes")
        return
    import json

    documents = [measure(file, setting, steps, warmup, device) for setting in SETTINGS]
    print_table(documents)
    if json_path is not None:
        json_path.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
        click.echo(f"wrote {json_path}")


def export(file: Path) -> None:
    """Exports the layer. Needs torch and executorch."""
    import torch
    from executorch.exir import to_edge_transform_and_lower
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    from executorch_wgpu.backend import WgpuPartitioner

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("k_cache", "v_cache"):
                self.register_buffer(name, torch.zeros(1, CACHE, KV_HEADS, DIM))

        def forward(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, input_pos: torch.Tensor
        ) -> torch.Tensor:
            start = input_pos[0].item()
            return torch.ops.llama.sdpa_with_kv_cache(
                q, k, v, self.k_cache, self.v_cache, start, q.shape[1], None, 0.0, True
            )

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"attention": Attention()})])

        def forward(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, input_pos: torch.Tensor
        ) -> torch.Tensor:
            return self.layers[0]["attention"](q, k, v, input_pos)

    rows = 3
    inputs = (
        torch.randn(1, rows, HEADS, DIM),
        torch.randn(1, rows, KV_HEADS, DIM),
        torch.randn(1, rows, KV_HEADS, DIM),
        torch.zeros(1, dtype=torch.int64),
    )
    S = torch.export.Dim("S", min=1, max=LONGEST)
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        program = torch.export.export(
            Layer().eval(), inputs, dynamic_shapes=({1: S}, {1: S}, {1: S}, None)
        )
    lowered = to_edge_transform_and_lower(program, partitioner=[WgpuPartitioner()])
    lowered.to_executorch().save(str(file))


def measure(
    file: Path, setting: tuple[int, int], steps: int, warmup: int, device: str | None
) -> dict[str, Any]:
    """A document of what the layer costs at one setting."""
    from executorch_wgpu.scripts import measure as m
    from executorch_wgpu.scripts.bench.report import build_document

    positions, start = setting
    subject = m.load_subject(file, "forward", device, positions, start, (), warmup, True)
    if subject.profiled is None:
        raise click.ClickException("the device has no timestamps")
    m.measure([subject], steps, warmup)
    document = build_document([subject], "forward", steps, warmup)
    begin = time.process_time()
    for _ in range(steps):
        subject.plain.execute(subject.inputs)
    return {**document, "cpu_s": (time.process_time() - begin) / steps}


def print_table(documents: list[dict[str, Any]]) -> None:
    """One row a dispatch and setting, then one for the whole step."""
    from executorch_wgpu.runtime.profiling.tables import us
    from executorch_wgpu.scripts.console import Console

    console = Console()
    device = documents[0]["device"]
    copies = device["copy_bytes_per_s"]
    console.line(f"{device['adapter']}, copies at {(copies or 0) / 1e9:,.1f} GB/s")
    console.line(f"{HEADS} query heads, {KV_HEADS} KV heads of {DIM}, f32; microseconds")
    console.line()
    rows: list[tuple[str, ...]] = []
    for (positions, start), document in zip(SETTINGS, documents, strict=True):
        place = f"S = {positions}, position {start}"
        for group in document["groups"]:
            for d in group["dispatches"]:
                rows.append(
                    (
                        place, d["label"], d["route"], " x ".join(map(str, d["grid"])),
                        us(d["mean"]), us(d["p50"]), us(d["p95"]), us(d["min"]),
                        _rate(d["bytes_per_s"]),
                        f"{d['of_copy_bandwidth']:.0%}" if d["of_copy_bandwidth"] else "",
                        _rate(d["flops_per_s"]), " ".join(d["flags"]),
                    )
                )  # fmt: skip
                place = ""
            span, gap = group["totals"]["span_ns"], group["totals"]["gap_ns"]
            times = [us(span[key]) for key in ("mean", "p50", "p95", "min")]
            note = f"of it between dispatches {us(gap['p50'])}"
            rows.append(("", "first start to last end", note, "", *times, "", "", "", ""))
        executes, profiled = document["execute_s"], document["profiled_execute_s"]
        for name, spread in (("execute", executes), ("execute, profiled", profiled)):
            times = [us(spread[key] * 1e9) for key in ("mean", "p50", "p95", "min")]
            rows.append(("", name, "on the host", "", *times, "", "", "", ""))
        cpu = us(document["cpu_s"] * 1e9)
        rows.append(("", "execute, CPU time", "all threads", "", cpu, "", "", "", "", "", "", ""))
    columns = ("", "dispatch", "route", "grid", "mean>", "p50>", "p95>", "min>", "GB/s>",
               "of copy>", "GFLOP/s>", "flags")  # fmt: skip
    console.table(columns, rows)


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s / 1e9:,.1f}"


if __name__ == "__main__":
    main()
