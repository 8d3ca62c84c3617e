"""The README's table of operators, from the registry itself.

python -m executorch_wgpu.scripts.operator_table          # prints it
python -m executorch_wgpu.scripts.operator_table --write  # puts it into README.md
"""

from __future__ import annotations

from pathlib import Path

import click

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"

_FAMILIES = {
    "attention": "KV caches and attention",
    "matmul": "matrix products",
    "embedding": "rows by index",
    "quant": "quantized weights and activations",
    "norm": "norms and softmax",
    "rope": "rotary embeddings",
    "sampling": "sampling",
    "elementwise": "pointwise and reductions",
    "shape": "views, joins and copies",
}


def operator_table() -> str:
    """Markdown: one row a family, with the operators it lowers. Operators named ``wgpu.*`` are
    what graph passes make of several."""
    from executorch_wgpu.ops.registry import lowering_of, registered_ops

    families: dict[str, list[str]] = {}
    for op in registered_ops():
        entry = lowering_of(op)
        assert entry is not None
        function = getattr(entry.lower, "__func__", entry.lower)
        module = str(function.__module__)
        families.setdefault(module.split(".")[2], []).append(op)
    rows = ["| family | operators |", "|---|---|"]
    for family, title in _FAMILIES.items():
        ops = families.pop(family, [])
        if ops:
            rows.append(f"| {title} | {_compact(ops)} |")
    if families:
        raise ValueError(f"families without a title in the table: {sorted(families)}")
    return "\n".join(rows)


def _compact(ops: list[str]) -> str:
    """``aten.add.Tensor`` and ``aten.add.Scalar`` as ``aten.add``."""
    return ", ".join(
        f"`{name}`"
        for name in dict.fromkeys(op.rsplit(".", 1)[0] if op.count(".") > 1 else op for op in ops)
    )


def with_table(text: str) -> str:
    """The README's text with its table replaced by the current one."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{operator_table()}\n{END}{after}"


@click.command(help=__doc__)
@click.option("--write", is_flag=True, help="Put the table into README.md.")
def main(write: bool) -> None:
    if write:
        README.write_text(with_table(README.read_text()))
    else:
        click.echo(operator_table())


if __name__ == "__main__":
    main()
