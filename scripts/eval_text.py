"""``executorch-wgpu eval``: perplexity of a text under a model's ``.pte``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from executorch_wgpu.scripts.console import Console


@click.command("eval")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--text",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of UTF-8 text.",
)
@click.option("--max-tokens", type=click.IntRange(2), help="Of the text; default: all.")
@click.option("--window", type=click.IntRange(2), help="Tokens; default: the model's context.")
@click.option("--device", help="Part of an adapter's name (see `devices`), gpu or cpu.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def eval_text(
    file: Path,
    text: Path,
    max_tokens: int | None,
    window: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Perplexity of a text under the model in FILE, best exported with --all-logits: without it,
    every token is a call of its own."""
    from executorch_wgpu.scripts.perplexity import perplexity
    from executorch_wgpu.scripts.progress import Progress
    from executorch_wgpu.scripts.run_text import load_generator, load_text_of

    try:
        tokenizer = load_text_of(file)
        ids = tokenizer.encode(text.read_text())[:max_tokens]
        model = load_generator(file, None, device, sample_on_host=True).model
        begin = time.perf_counter()
        with Progress() as progress, progress.step("eval", len(ids), "tokens") as advance:
            result = perplexity(
                step_of(model),
                ids,
                window=min(window or model.max_context, model.max_context),
                chunk=model.max_seq_len if gives_all(model) else 1,
                advance=advance,
            )
    except (ValueError, ModuleNotFoundError) as error:
        raise click.ClickException(str(error)) from error
    seconds = time.perf_counter() - begin
    if as_json:
        fields = {"tokens": result.tokens, "nll": result.nll, "perplexity": result.perplexity}
        click.echo(json.dumps(fields | {"seconds": seconds}))
        return
    Console().facts(
        [
            ("perplexity", f"{result.perplexity:.4f}"),
            ("nll", f"{result.nll:.5f} nats a token"),
            ("tokens", f"{result.tokens:,} predicted, {len(ids) / seconds:,.1f} a second"),
        ]
    )


def gives_all(model: Any) -> bool:
    """Whether a model gives the logits of every token."""
    return not model.method.metadata.outputs[0].shape[1].is_static


def step_of(model: Any) -> Any:
    """What :func:`.perplexity.perplexity` calls, of a ``LanguageModel`` on ``forward``."""
    import numpy as np

    def step(tokens: Sequence[int], position: int) -> Any:
        inputs = [np.array([tokens], np.int64), np.array([position], np.int64)]
        (logits,) = model.method.execute(inputs)
        return logits[0]

    return step
