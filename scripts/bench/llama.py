"""A published model's shape with random weights: export it, load it in another process, decode.

    python -m executorch_wgpu.scripts.bench.llama llama3_2_1b --dtype f16

prints what each takes: seconds, bytes on disk, in the process and on the GPU, ms a token. Weights
are random, so the text is not; the shapes, and with them the times, are the model's own.

    python -m executorch_wgpu.scripts.bench.llama llama3_2_1b --quantize 4w:32 \\
        --embedding-quantize 4:32 --list 1b.list

writes the dispatch list alone, without weights. Where what measures lies behind a narrow line and
has to load the file itself,

    python -m executorch_wgpu.scripts.bench.llama llama3_2_1b --quantize 4w:32 \\
        --embedding-quantize 4:32 --weights tiled --part export --out 1b.pte && xz -9 1b.pte

writes one as large as any that shrinks to some MB, with as many constants, no two of them equal.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click

from executorch_wgpu.scripts.console import Console, duration, quiet, size


@click.command()
@click.argument("name")
@click.option("--dtype", type=click.Choice(["f32", "f16", "bf16"]), default="f16")
@click.option("--kv-dtype", type=click.Choice(["f32", "f16", "bf16"]), default="f32")
@click.option("--quantize", default="none", help="Of linear layers: 4w:32, 8w, 8da4w:128 ...")
@click.option("--embedding-quantize", default="none", help="Of the embedding table: 4:32, 8 ...")
@click.option(
    "--weights",
    type=click.Choice(["random", "tiled"]),
    default="random",
    show_default=True,
    help="tiled: one random block over and over, for a file that compresses.",
)
@click.option(
    "--matrix-units",
    type=click.Choice(["precise", "fast"]),
    help="Prompts may use matrix units.",
)
@click.option("--layers", type=int, help="Fewer than the model's own.")
@click.option("--max-context", default=1024, show_default=True)
@click.option("--max-seq-len", default=128, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--new-tokens", default=8, show_default=True)
@click.option("--device", help="Part of an adapter's name, see `executorch-wgpu devices`.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep the .pte here.")
@click.option(
    "--list",
    "list_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the dispatch list of a decode step and of prompts here, and stop.",
)
@click.option(
    "--method", type=click.Choice(["forward", "generate"]), default="forward", help="With --list."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--part",
    type=click.Choice(["both", "export", "run"]),
    default="both",
    help="One of them alone, with --out; its figures are a line of JSON.",
)
def main(
    part: str, out: Path | None, list_path: Path | None, json_path: Path | None, **options: Any
) -> None:
    """Export NAME (one of recipes.families) with random weights, then run it."""
    if list_path is not None:
        list_path.write_bytes(dispatch_list(options))
        return
    if part != "both":
        if out is None:
            raise click.UsageError(f"--part {part} needs --out")
        figures = export(out, options) if part == "export" else run(out, options)
        print(json.dumps(figures))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = out or Path(folder) / f"{options['name']}.pte"
        figures = {kind: _in_process(kind, path, options) for kind in ("export", "run")}
    report(figures)
    if json_path is not None:
        json_path.write_text(json.dumps({"options": options, **figures}, indent=1) + "\n")


def _in_process(part: str, path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Run a part in a process of its own, so that its memory is its own."""
    words = [sys.executable, "-m", __spec__.name, options["name"], "--part", part, "--out", path]
    for name, value in options.items():
        if value is not None and name != "name":
            words += [f"--{name.replace('_', '-')}", value]
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


class MemoryWatch:
    """The most memory that this process has held while in the block, in bytes: ``resident`` in
    all, ``anonymous`` without the pages of mapped files. Zeros where the system does not say."""

    def __init__(self) -> None:
        self.resident = self.anonymous = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            now = memory()
            self.resident = max(self.resident, now.get("VmRSS", 0))
            self.anonymous = max(self.anonymous, now.get("RssAnon", 0))
            if self._end.wait(0.02):
                return


def memory() -> dict[str, int]:
    """This process's sizes in bytes, by their names in ``/proc/self/status``."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines if line.endswith("kB"))
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _checkpoint(options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A checkpoint and the arguments of ``pte.export_checkpoint`` that the options say."""
    import torch

    from executorch_wgpu.scripts.recipes import families

    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    layers = {} if options["layers"] is None else {"n_layers": options["layers"]}
    same = ("max_seq_len", "max_context", "quantize", "embedding_quantize")
    checkpoint = families.random_checkpoint(options["name"], **layers)
    if options["weights"] == "tiled":
        checkpoint = families.tiled(checkpoint)
    return checkpoint, {
        "dtype": dtypes[options["dtype"]],
        "kv_dtype": dtypes[options["kv_dtype"]],
        **{name: options[name] for name in same},
    }


def dispatch_list(options: dict[str, Any]) -> bytes:
    """The serialized dispatch list, without weights."""
    from executorch_wgpu.scripts.progress import Progress

    with Progress() as progress, quiet():
        with progress.step("import"):
            from executorch_wgpu.backend.options import CompileOptions
            from executorch_wgpu.scripts.recipes import pte
        checkpoint, arguments = _checkpoint(options)
        model = pte.checkpoint_model(checkpoint, **arguments, progress=progress)
        with progress.step("lower"):
            compile_options = CompileOptions(matrix_units=options.get("matrix_units") or "")
            lists = pte.dispatch_lists(model, [options["method"]], compile_options)
            return lists[options["method"]]


def export(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Write the file. Gives seconds by step, weights' bytes, peaks of memory."""
    from executorch_wgpu.scripts.progress import Progress

    with Progress() as progress, MemoryWatch() as watch:
        with progress.step("import"), quiet():
            from executorch_wgpu.scripts.recipes import pte
        base = memory().get("RssAnon", 0)
        checkpoint, arguments = _checkpoint(options)
        with quiet():
            units = options.get("matrix_units") or ""
            pte.export_checkpoint(
                checkpoint, path, **arguments, matrix_units=units, progress=progress
            )
    return {
        "seconds": progress.seconds,
        "file_bytes": path.stat().st_size,
        "peak_resident": watch.resident,
        "peak_anonymous": watch.anonymous - base,
    }


def run(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Load the file and decode."""
    import random

    with MemoryWatch() as watch:
        from executorch_wgpu.runtime.generate import TextGenerator

        base = memory().get("RssAnon", 0)
        begin = time.perf_counter()
        generator = TextGenerator(path, device=options["device"])
        loaded = time.perf_counter() - begin
        vocab = generator.model.vocab_size
        prompt = random.Random(0).choices(range(vocab), k=options["prompt_tokens"])
        # The first call compiles pipelines.
        first = generator.generate(prompt, 2, ignore_eos=True).statistics
        generator.reset()
        result = generator.generate(prompt, options["new_tokens"], ignore_eos=True).statistics
    adapter = generator.model.method.graph.device.adapter.summary
    del generator
    gc.collect()
    begin = time.perf_counter()
    TextGenerator(path, device=options["device"])
    return {
        "adapter": adapter,
        "load_seconds": loaded,
        "load_again_seconds": time.perf_counter() - begin,
        "first_token_seconds": first.time_to_first_token_ms / 1e3,
        "prefill_tokens_per_s": result.prefill_tokens_per_s,
        "ms_a_token": 1e3 / result.decode_tokens_per_s,
        "gpu_bytes": result.gpu_bytes,
        "peak_resident": watch.resident,
        "peak_anonymous": watch.anonymous - base,
    }


def report(figures: dict[str, dict[str, Any]]) -> None:
    """Both parts, for people."""
    console = Console()
    made, ran = figures["export"], figures["run"]
    console.heading("export")
    steps = ", ".join(f"{name} {duration(s)}" for name, s in made["seconds"].items())
    console.facts(
        [
            ("time", f"{duration(sum(made['seconds'].values()))} ({steps})"),
            ("file", size(made["file_bytes"])),
            ("peak memory", _memory(made, made["file_bytes"])),
        ]
    )
    console.heading(f"run on {ran['adapter']}")
    console.facts(
        [
            ("load", duration(ran["load_seconds"])),
            ("load again", f"{duration(ran['load_again_seconds'])} in the same process"),
            ("first token", f"{duration(ran['first_token_seconds'])} in the first call"),
            ("prefill", f"{ran['prefill_tokens_per_s']:,.1f} tokens/s"),
            ("decode", f"{ran['ms_a_token']:,.1f} ms a token"),
            ("GPU memory", size(ran["gpu_bytes"])),
            ("peak memory", _memory(ran, ran["gpu_bytes"])),
        ]
    )


def _memory(figures: dict[str, Any], weights: int) -> str:
    ratio = figures["peak_anonymous"] / max(1, weights)
    return (
        f"{size(figures['peak_resident'])} resident; {size(figures['peak_anonymous'])} anonymous "
        f"above the imports, {ratio:.2f} x the {'file' if 'seconds' in figures else 'GPU memory'}"
    )


if __name__ == "__main__":
    main()
