"""``executorch-wgpu bench``: what one execute costs, on the host and on the GPU. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

_OUT = click.Path(dir_okay=False, path_type=Path, allow_dash=True)
_PATH = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--method", "method_name", default="forward", show_default=True, metavar="NAME")
@click.option("--steps", default=50, show_default=True, help="Measured executes.")
@click.option("--warmup", default=5, show_default=True, help="Executes before them.")
@click.option("--seq-len", default=1, show_default=True, help="Every live size of an input.")
@click.option(
    "--input-pos", default=0, show_default=True, help="Every live int or element of an input."
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A live scalar, or a tensor."
)
@click.option("--device", help="Part of an adapter's name (see `devices`), gpu or cpu.")
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Measure the same method of another .pte turn by turn with it; ratios are FILE over this.",
)
@click.option("--load", is_flag=True, help="Only how long it takes to load, first and again.")
@click.option("--cold", is_flag=True, help="With --load: the system forgets the file before.")
@click.option("--no-device-time", is_flag=True, help="Only wall times; nothing is profiled.")
@click.option("--all", "everything", is_flag=True, help="Also operators, layers, every dispatch.")
@click.option(
    "--json", "json_path", type=_OUT, is_flag=False, flag_value="-", metavar="[PATH]",
    help="Everything as JSON, to PATH or in place of the tables.",
)  # fmt: skip
@click.option("--tsv", type=_PATH, metavar="PATH", help="Every dispatch, tab-separated.")
@click.option("--trace", type=_PATH, metavar="PATH", help="For Perfetto; .gz compresses.")
@click.option("--etdump", type=_PATH, metavar="PATH", help="For executorch.devtools.Inspector.")
@click.option("--html", type=_PATH, metavar="PATH", help="A page to look at.")
def bench(
    file: Path,
    method_name: str,
    steps: int,
    warmup: int,
    seq_len: int,
    input_pos: int,
    settings: tuple[str, ...],
    device: str | None,
    against: Path | None,
    load: bool,
    cold: bool,
    no_device_time: bool,
    everything: bool,
    json_path: Path | None,
    tsv: Path | None,
    trace: Path | None,
    etdump: Path | None,
    html: Path | None,
) -> None:
    """Measure what one execute costs.

    A method of FILE, a .pte, is executed over and over on random inputs, in turn without and with
    timestamps around every dispatch. Live scalars that are out of their bounds are moved to the
    nearest bound; nothing is initialised between executes, so states hold what earlier ones left.

    docs/PROFILING.md says how to read the numbers."""
    from executorch_wgpu.scripts import measure as m
    from executorch_wgpu.scripts.bench.report import build_document, print_report

    if load:
        _bench_load(file, method_name, device, cold, json_path)
        return
    if cold:
        raise click.UsageError("--cold goes with --load")
    if steps < 1:
        raise click.BadParameter("at least 1", param_hint="--steps")
    if warmup < 0:
        raise click.BadParameter("at least 0", param_hint="--warmup")
    subject = m.load_subject(
        file, method_name, device, seq_len, input_pos, settings, warmup, not no_device_time
    )
    subjects = [subject]
    if against is not None:
        used = subject.plain.device  # the same one
        subjects.append(
            m.load_subject(
                against,
                method_name,
                used,
                seq_len,
                input_pos,
                settings,
                warmup,
                not no_device_time,
            )
        )
    wanted = {"--tsv": tsv, "--trace": trace, "--etdump": etdump, "--html": html}
    missing = [option for option, path in wanted.items() if path is not None]
    if missing and subject.profiled is None:
        why = "with --no-device-time" if no_device_time else "on this device: it has no timestamps"
        raise click.UsageError(f"nothing to write for {missing[0]} {why}")
    m.measure(subjects, steps, warmup)
    result = build_document(subjects, method_name, steps, warmup)
    _export(subject, result, tsv, trace, etdump, html)
    if json_path is not None:
        from executorch_wgpu.runtime.profiling.document import to_json

        text = to_json(result)
        if str(json_path) == "-":
            click.echo(text, nl=False)
            return
        json_path.write_text(text, encoding="utf-8")
    print_report(subject, result, everything)
    for path in (json_path, tsv, trace, etdump, html):
        if path is not None:
            click.echo(f"wrote {path}")


def _bench_load(
    file: Path, method_name: str, device: str | None, cold: bool, json_path: Path | None
) -> None:
    from executorch_wgpu.scripts.bench.about import about
    from executorch_wgpu.scripts.bench.loading import measure_loads, print_loads

    graph, found = measure_loads(file, method_name, device, cold)
    text = json.dumps({"file": file.name, **about(graph.device), **found}, indent=1)
    if json_path is not None and str(json_path) == "-":
        click.echo(text)
        return
    print_loads(found)
    if json_path is not None:
        json_path.write_text(text + "\n", encoding="utf-8")
        click.echo(f"wrote {json_path}")


def _export(
    subject: Any,
    result: dict[str, Any],
    tsv: Path | None,
    trace: Path | None,
    etdump: Path | None,
    html: Path | None,
) -> None:
    """Writes what was asked for."""
    if tsv is not None:
        from executorch_wgpu.runtime.profiling.tables import as_tsv

        tsv.write_text(as_tsv(result["groups"]), encoding="utf-8")
    if trace is not None:
        from executorch_wgpu.runtime.profiling.trace import write_trace

        about = {"file": result["file"], "adapter": result["device"]["adapter"]}
        write_trace(trace, list(subject.steps), about)
    if etdump is not None:
        from executorch_wgpu.runtime.profiling.etdump import etdump as to_etdump

        etdump.write_bytes(to_etdump(list(subject.steps), subject.instruction))
    if html is not None:
        from executorch_wgpu.runtime.profiling.page import render

        html.write_text(render(result), encoding="utf-8")
