"""``executorch-wgpu inspect``: what is in a ``.pte`` file. Needs neither a GPU nor torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click


@click.command("inspect")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--method", "method_name", metavar="NAME", help="Only this method.")
@click.option("--wgsl", "label", metavar="LABEL", help="Print the WGSL of a dispatch instead.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def inspect_file(file: Path, method_name: str | None, label: str | None, as_json: bool) -> None:
    """Show what a .pte file holds.

    For each method what runs on the CPU, and for each delegate its inputs, outputs, live scalars
    and their bounds, state, constants, checks and dispatches."""
    from executorch_wgpu.serialization.pte import PteFile

    with PteFile.open(file) as pte:
        names = [method_name] if method_name else list(pte.methods)
        if label is not None:
            _print_wgsl(pte, names, label)
            return
        described = describe_file(pte, names)
    described = {"file": str(file), "bytes": file.stat().st_size, **described}
    if as_json:
        click.echo(json.dumps(described, indent=2))
    else:
        _print_file(described)


def describe_file(pte: Any, names: list[str]) -> dict[str, Any]:
    """The methods of an open PteFile as plain data, see :mod:`.describe`."""
    return {
        "named_data": len(pte.named_data_keys),
        "methods": [_describe_method(pte.method(name)) for name in names],
    }


def _describe_method(method: Any) -> dict[str, Any]:
    return {
        "name": method.name,
        "runs": method.describe_instructions(),
        "cpu_operators": list(method.cpu_operators),
        "inputs": [_describe_value(value) for value in method.input_values],
        "outputs": [_describe_value(value) for value in method.output_values],
        "delegates": [
            {
                "id": delegate.id,
                "payload_bytes": len(delegate.data),
                "dispatch_list": _describe_payload(delegate),
            }
            for delegate in method.delegates
        ],
    }


def _describe_value(value: Any) -> Any:
    """A value of ExecuTorch's own table: what the file declares, upper bounds for live sizes."""
    from executorch_wgpu.serialization.pte import PteTensor

    if isinstance(value, PteTensor):
        return {"dtype": value.dtype, "shape": list(value.shape), "dynamic": value.dynamic}
    return list(value) if isinstance(value, tuple) else value


def _describe_payload(delegate: Any) -> dict[str, Any] | None:
    """None for another backend's delegate."""
    from executorch_wgpu.scripts.describe import describe_program
    from executorch_wgpu.serialization.dispatch_list import BACKEND_ID
    from executorch_wgpu.serialization.reader import deserialize

    return describe_program(deserialize(delegate.data)) if delegate.id == BACKEND_ID else None


def _print_wgsl(pte: Any, names: list[str], label: str) -> None:
    from executorch_wgpu.scripts.describe import wgsl_of
    from executorch_wgpu.serialization.dispatch_list import BACKEND_ID
    from executorch_wgpu.serialization.reader import deserialize

    programs = [
        deserialize(delegate.data)
        for name in names
        for delegate in pte.method(name).delegates
        if delegate.id == BACKEND_ID
    ]
    texts = {
        text: None for program in programs for text in wgsl_of(program, label).values()
    }  # a dict: each text once, in order
    if not texts:
        labels = sorted(
            {
                dispatch.label
                for program in programs
                for step in program.steps
                for route in step.routes
                for dispatch in route.dispatches
            }
        )
        raise click.ClickException(
            f"no dispatch is labelled {label!r}; labels: {', '.join(labels) or 'none'}"
        )
    click.echo("\n".join(texts), nl=False)


# -- text ------------------------------------------------------------------------------------


def _print_file(described: dict[str, Any]) -> None:
    from executorch_wgpu.scripts.console import Console, size

    console = Console()
    console.line(
        f"{described['file']}: {size(described['bytes'])}, "
        f"{described['named_data']} pieces of named data"
    )
    for method in described["methods"]:
        console.heading(f"method {method['name']}: {method['runs']}")
        if method["cpu_operators"]:
            console.line(f"  on the CPU: {', '.join(method['cpu_operators'])}")
        for number, delegate in enumerate(method["delegates"]):
            console.heading(
                f"delegate {number} of {method['name']}: {delegate['id']}, "
                f"{size(delegate['payload_bytes'])}"
            )
            if delegate["dispatch_list"] is None:
                console.line("  another backend's; not shown")
            else:
                print_program(console, delegate["dispatch_list"])


def print_program(console: Any, program: dict[str, Any]) -> None:
    """Print what :func:`.describe.describe_program` gives."""
    _print_summary(console, program)
    for title, columns, rows in (
        ("inputs", ["name", "dtype", "shape", "at most"], map(_value_row, program["inputs"])),
        ("outputs", ["name", "dtype", "shape", "at most"], map(_value_row, program["outputs"])),
        (
            "live scalars",
            ["name", "source", "from>", "to>"],
            ((s["name"], s["source"], s["lo"], s["hi"]) for s in program["live_scalars"]),
        ),
        (
            "state",
            ["name", "dtype", "shape", "bytes>", "starts as"],
            (_buffer_row(buffer, "zeros") for buffer in program["state"]),
        ),
        (
            "constants",
            ["name", "dtype", "shape", "bytes>", "key"],
            (_buffer_row(buffer, "") for buffer in program["constants"]),
        ),
        (
            "checks",
            ["must hold", "else"],
            ((check["holds"], _message(check)) for check in program["checks"]),
        ),
        (
            "dispatches",
            ["step>", "route", "label", "kernel>", "grid"],
            _dispatch_rows(program["steps"]),
        ),
        (
            "kernels",
            ["kernel>", "shader>", "workgroup", "shared>", "params"],
            (_kernel_row(number, kernel) for number, kernel in enumerate(program["kernels"])),
        ),
    ):
        rows = list(rows)
        if rows:
            console.heading(title)
            console.table(columns, rows)


def _print_summary(console: Any, program: dict[str, Any]) -> None:
    from executorch_wgpu.scripts.console import size

    counts, required = program["counts"], program["requires"]
    needs = [
        *required["features"],
        *(f"{name} >= {value:,}" for name, value in required["limits"].items()),
    ]
    shortest, longest = counts["dispatches_shortest"], counts["dispatches_longest"]
    ran = (
        f"{shortest}"
        if shortest == longest
        else f"{shortest} (smallest sizes), {longest} (largest)"
    )
    console.facts(
        [
            ("written by", f"{program['producer']}, format version {program['format_version']}"),
            ("requires", ", ".join(needs) or "nothing beyond WebGPU's defaults"),
            ("dispatches a call", ran),
            (
                "holds",
                f"{counts['steps']} steps, {counts['dispatches']} dispatches in all routes, "
                f"{counts['kernels']} kernels of {counts['shaders']} shaders, "
                f"{counts['expressions']} expressions, {counts['live_values']} live values",
            ),
            ("quantized", "; ".join(map(_quantized, program["quantization"])) or "nothing"),
            ("bytes", ", ".join(f"{kind} {size(n)}" for kind, n in program["bytes"].items())),
        ]
    )


def _quantized(row: dict[str, Any]) -> str:
    from executorch_wgpu.scripts.console import size

    count = f"{row['weights']} weight{'s' if row['weights'] != 1 else ''}"
    return f"{row['scheme']} {count}, {size(row['bytes'])} with scales"


def _value_row(value: dict[str, Any]) -> tuple[Any, ...]:
    if value["kind"] == "int":
        text = "not used" if value["value"] is None else value["value"]
        bounds = f"{value['lo']} .. {value['hi']}" if "lo" in value else None
        return value["name"], "int", text, bounds
    at_most = None
    if [str(n) for n in value["shape_max"]] != value["shape"]:
        at_most = _shape(value["shape_max"])
    return value["name"], value["dtype"], _shape(value["shape"]), at_most


def _buffer_row(buffer: dict[str, Any], without_key: str) -> tuple[Any, ...]:
    shape = _shape(buffer["shape"]) if "shape" in buffer else None
    key = buffer["key"] or without_key
    return buffer["name"], buffer.get("dtype"), shape, f"{buffer['bytes']:,}", key


def _shape(entries: list[Any]) -> str:
    return f"[{', '.join(str(entry) for entry in entries)}]"


def _message(check: dict[str, Any]) -> str:
    """The message with the expressions in place of their numbers."""
    message: str = check["message"]
    for number, text in enumerate(check["args"]):
        message = message.replace(f"{{{number}}}", f"{{{text}}}")
    return message


def _dispatch_rows(steps: list[list[dict[str, Any]]]) -> Iterator[tuple[Any, ...]]:
    for number, routes in enumerate(steps):
        for route in routes:
            for dispatch in route["dispatches"]:
                yield (
                    number,
                    _route_text(route) if len(routes) > 1 or route["name"] else None,
                    dispatch["label"],
                    dispatch["kernel"],
                    _times(dispatch["grid"]),
                )


def _kernel_row(number: int, kernel: dict[str, Any]) -> tuple[Any, ...]:
    shared = f"{kernel['workgroup_bytes']:,} B" if kernel["workgroup_bytes"] else None
    params = ", ".join(f"{name}={value}" for name, value in kernel["params"].items())
    return number, kernel["shader"], _times(kernel["workgroup_size"]), shared, params


def _times(sizes: list[Any]) -> str:
    """``64 x 1 x 1`` without the trailing ones; sums and products in parentheses."""
    texts = [str(size) for size in sizes]
    while len(texts) > 1 and texts[-1] == "1":
        texts.pop()
    if len(texts) == 1:
        return texts[0]
    return " x ".join(text if _is_one_term(text) else f"({text})" for text in texts)


def _is_one_term(text: str) -> bool:
    """Whether a blank stands only inside of parentheses: ``7``, ``ceil_div(a, b)``."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == " " and depth == 0:
            return False
    return True


def _route_text(route: dict[str, Any]) -> str:
    conditions = [
        *([route["when"]] if route["when"] else []),
        *route["features"],
        *(f"{name} >= {value}" for name, value in route["limits"].items()),
    ]
    name = route["name"] or "plain"
    return f"{name}: {', '.join(conditions)}" if conditions else name
