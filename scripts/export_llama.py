"""``executorch-wgpu export-llama``: a checkpoint becomes one ``.pte``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from executorch_wgpu.scripts.console import Console, quiet, size

if TYPE_CHECKING:
    from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DTYPES = click.Choice(["f32", "f16", "bf16"])


@click.command("export-llama")
@click.option("--gguf", type=_FILE, help="A GGUF file: llama (SmolLM2 too), qwen2 or qwen3.")
@click.option("--checkpoint", type=_FILE, help="Meta's consolidated.00.pth; needs --params.")
@click.option("--params", type=_FILE, help="Meta's params.json.")
@click.option(
    "--hf",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with config.json and safetensors: llama, mistral, qwen2, qwen3 or phi3.",
)
@click.option(
    "--tokenizer",
    type=_FILE,
    help="tokenizer.json or tokenizer.model, where it is not beside the weights.",
)
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .pte file."
)
@click.option(
    "--dtype",
    type=_DTYPES,
    help="Storage of matrices; default: as in the checkpoint, f32 where it is quantized.",
)
@click.option("--kv-dtype", type=_DTYPES, default="f32", show_default=True, help="Of KV caches.")
@click.option(
    "--max-context", type=click.IntRange(2), default=2048, show_default=True, help="Positions."
)
@click.option(
    "--max-seq-len",
    type=click.IntRange(2),
    default=128,
    show_default=True,
    help="Most tokens of one call; longer prompts go in chunks.",
)
@click.option(
    "--quantize",
    metavar="SCHEME",
    help="Of linear layers: 4w:32 (bits, neighbours that share a scale), 8w, 8da4w:128 (int8 "
    "activations), keep (a GGUF file's blocks as they are) or none. Default: keep without --dtype.",
)
@click.option(
    "--embedding-quantize",
    metavar="SCHEME",
    help="Of the embedding table: 4:32, 8, keep or none. Default: keep without --dtype.",
)
@click.option(
    "--matrix-units",
    type=click.Choice(["precise", "fast"]),
    help="Prompts use matrix units where a device has them (see docs/LLAMA.md).",
)
@click.option("--all-logits", is_flag=True, help="The logits of every token, for eval.")
@click.option(
    "--generate/--no-generate",
    default=True,
    show_default=True,
    help="A method that chooses tokens on the GPU, too. Without it the host does.",
)
def export_llama(
    gguf: Path | None,
    checkpoint: Path | None,
    params: Path | None,
    hf: Path | None,
    tokenizer: Path | None,
    out: Path,
    dtype: str | None,
    kv_dtype: str,
    max_context: int,
    max_seq_len: int,
    quantize: str | None,
    embedding_quantize: str | None,
    matrix_units: str | None,
    all_logits: bool,
    generate: bool,
) -> None:
    """Export a llama model with its tokenizer, as one file that `run` needs nothing else for."""
    if sum(source is not None for source in (gguf, checkpoint, hf)) != 1:
        raise click.UsageError("give one of --gguf, --checkpoint (with --params) and --hf")
    if (checkpoint is None) != (params is None):
        raise click.UsageError("--checkpoint and --params go together")
    if out.suffix != ".pte":
        raise click.UsageError(f"--out {out}: the name of a .pte file ends in .pte")
    default = "keep" if dtype is None else "none"
    from executorch_wgpu.scripts.progress import Progress

    with Progress() as progress:
        try:
            with progress.step("import"), quiet():
                import torch

                from executorch_wgpu.scripts.recipes.pte import export_checkpoint
            dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
            with quiet():
                source = open_checkpoint(gguf, checkpoint, params, hf, tokenizer)
                _check_context(source, max_context)
                export_checkpoint(
                    source,
                    out,
                    dtype=dtypes[dtype] if dtype else None,
                    kv_dtype=dtypes[kv_dtype],
                    max_seq_len=max_seq_len,
                    max_context=max_context,
                    all_logits=all_logits,
                    quantize=quantize or default,
                    embedding_quantize=embedding_quantize or default,
                    matrix_units=matrix_units or "",
                    methods=("forward", "generate") if generate else ("forward",),
                    progress=progress,
                )
        except (ValueError, ModuleNotFoundError) as error:
            raise click.ClickException(str(error)) from error
    Console().line(f"{out}: {source.name}, {size(os.stat(out).st_size)}")


def open_checkpoint(
    gguf: Path | None,
    checkpoint: Path | None,
    params: Path | None,
    hf: Path | None,
    tokenizer: Path | None,
) -> Checkpoint:
    """The checkpoint that the options name. Raises ValueError and OSError."""
    import dataclasses

    from executorch_wgpu.scripts.recipes.checkpoints import gguf as gguf_files
    from executorch_wgpu.scripts.recipes.checkpoints import hf as hf_folders
    from executorch_wgpu.scripts.recipes.checkpoints import meta
    from executorch_wgpu.scripts.text.files import from_file

    if gguf is not None:
        source = gguf_files.open_gguf(gguf)
    elif hf is not None:
        source = hf_folders.open_hf(hf)
    else:
        assert checkpoint is not None and params is not None
        source = meta.open_meta(checkpoint, params)
    if tokenizer is not None:
        source = dataclasses.replace(source, text=from_file(tokenizer))
    return source


def _check_context(source: Checkpoint, max_context: int) -> None:
    if source.context is not None and max_context > source.context:
        raise ValueError(
            f"--max-context {max_context}: {source.name} was trained for {source.context} positions"
        )
