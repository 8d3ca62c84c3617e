"""``executorch-wgpu run``: text from a model's ``.pte``, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from executorch_wgpu.scripts.console import Console

if TYPE_CHECKING:
    from executorch_wgpu.runtime.generate import GenerationResult, TextGenerator
    from executorch_wgpu.scripts.text import Text


@click.command("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--prompt", help="The text to continue; with --chat: the question to answer.")
@click.option("--chat", is_flag=True, help="Talk, a line a turn; Ctrl-D or /exit ends it.")
@click.option("--system", help="With --chat: what the model is told first.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(0),
    help="Default: until the model ends its text or its context is full.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0 always takes the most likely token.",
)
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--top-k", type=click.IntRange(0), default=0, show_default=True, help="0: all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds, equal text.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end of the text.")
@click.option("--sample-on-host", is_flag=True, help="Choose tokens on the host: the same ones.")
@click.option(
    "--no-pipeline", is_flag=True, help="Wait for each token before the next step: the same ones."
)
@click.option("--device", help="Part of an adapter's name (see `devices`), gpu or cpu.")
def run_text(
    file: Path,
    prompt: str | None,
    chat: bool,
    system: str | None,
    device: str | None,
    sample_on_host: bool,
    no_pipeline: bool,
    **options: Any,
) -> None:
    """Generate text with a model's FILE, streamed as it comes; statistics at the end."""
    if prompt is None and not chat:
        raise click.UsageError("give --prompt, --chat or both")
    if system is not None and not chat:
        raise click.UsageError("--system goes with --chat")
    try:
        text = load_text_of(file)
        messages = [] if system is None else [{"role": "system", "content": system}]
        question: str | list[int] | None = prompt
        if chat:  # fails at once where there is no template
            ids = text.chat([*messages, {"role": "user", "content": prompt or ""}])
            question = None if prompt is None else ids
        generator = load_generator(
            file, text, device, sample_on_host=sample_on_host, pipelined=not no_pipeline
        )
        if question is not None:
            _answer(generator, question, options)
        else:
            _talk(generator, text, messages, options)
    except (ValueError, ModuleNotFoundError) as error:
        raise click.ClickException(str(error)) from error


def load_text_of(file: Path) -> Text:
    """The tokenizer in a file. Raises ValueError where there is none."""
    from executorch_wgpu.scripts.text import load_text

    text = load_text(file)
    if text is None:
        raise ValueError(f"{file} has no tokenizer: export it with `executorch-wgpu export-llama`")
    return text


def load_generator(
    file: Path, text: Text | None, device: str | None = None, **options: Any
) -> TextGenerator:
    """A generator on the device, with a progress bar of the upload. ``options``: as of
    TextGenerator."""
    from executorch_wgpu.runtime.generate import TextGenerator
    from executorch_wgpu.scripts.progress import Progress

    with Progress() as progress, progress.step("upload", unit="bytes") as step:
        return TextGenerator(file, text, device=device, progress=step.at, **options)


def _answer(generator: TextGenerator, prompt: Any, options: dict[str, Any]) -> None:
    """Continue a prompt, and print what it took."""
    try:
        result = generator.generate(prompt, stream=_stream, **options)
    except KeyboardInterrupt:
        if generator.last is None:
            raise
        result = generator.last
    print(flush=True)
    _statistics(result)


def _talk(
    generator: TextGenerator, text: Text, opening: list[dict[str, str]], options: dict[str, Any]
) -> None:
    """Read, answer, repeat. A turn's prompt begins with the turns before it, which are in the
    caches already."""
    messages, result = list(opening), None
    while (line := _read_line()) is not None:
        if line in ("/exit", "/quit"):
            break
        if line == "/reset":
            messages = list(opening)
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        try:
            result = generator.generate(text.chat(messages), stream=_stream, **options)
        except KeyboardInterrupt:
            result = generator.last
        assert result is not None
        print(flush=True)
        if result.finish == "context":
            Console().line("(the context is full: /reset forgets the conversation)")
        messages.append({"role": "assistant", "content": result.text})
    if result is not None:
        _statistics(result)


def _read_line() -> str | None:
    """A line of input, None at its end or at Ctrl-C."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None


def _stream(piece: str) -> None:
    print(piece, end="", flush=True)


def _statistics(result: GenerationResult) -> None:
    """The figures of ExecuTorch's llama runner, on standard error."""
    lines = [*result.statistics.lines(), ("ended by", str(result.finish))]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"  {name.ljust(width)}  {value}", err=True)
