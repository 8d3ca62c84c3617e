"""A profile as tables: for a terminal, for a file of tab-separated values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .stamps import MEANING


@dataclass(frozen=True, slots=True)
class Table:
    """``columns`` whose name ends in ``>`` are right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


#: Columns that every table of times ends with.
_TIMES = ("mean us>", "p50>", "p95>", "min>", "share>", "GB/s>", "of copy>", "GFLOP/s>")


def us(ns: float | None) -> str:
    """Nanoseconds as microseconds, three digits or one decimal."""
    if ns is None:
        return ""
    value = ns / 1e3
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def tables(group: Mapping[str, Any], everything: bool = True) -> list[Table]:
    """The tables of one group, from ``Group.describe``: totals, kernels, modules, and with
    ``everything`` also operators, layers and single dispatches."""
    found = [_totals(group), _counted(group, "kernel")]
    if everything:
        found.append(_counted(group, "operator"))
    modules = tuple(
        (
            "  " * r["depth"] + r["module"],
            str(r["instances"]),
            str(r["dispatches"]),
            us(r["own_ns"]),
            *_times(r),
        )
        for r in group["modules"]
    )
    columns = ("module", "instances>", "dispatches>", "own us>", *_TIMES)
    found.append(Table("by module", columns, modules))
    if everything:
        if len(group["layers"]) > 1:
            found.append(_counted(group, "layer"))
        found.append(_dispatches(group))
    return [table for table in found if table.rows]


def _counted(group: Mapping[str, Any], what: str) -> Table:
    rows = tuple((r[what], str(r["dispatches"]), *_times(r)) for r in group[f"{what}s"])
    return Table(f"by {what}", (what, "dispatches>", *_TIMES), rows)


def _times(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        us(row["mean"]),
        us(row["p50"]),
        us(row["p95"]),
        us(row["min"]),
        f"{row['share']:.1%}",
        _rate(row["bytes_per_s"]),
        "" if row["of_copy_bandwidth"] is None else f"{row['of_copy_bandwidth']:.0%}",
        _rate(row["flops_per_s"]),
    )


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return ""
    giga = per_s / 1e9
    return f"{giga:,.0f}" if giga >= 100 else f"{giga:.1f}" if giga >= 1 else f"{giga:.3f}"


def _dispatches(group: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            r["label"],
            r["operator"],
            r["route"],
            " x ".join(map(str, r["grid"])),
            " x ".join(map(str, r["workgroup_size"])),
            *_times(r),
            " ".join(r["flags"]),
        )
        for r in group["dispatches"]
    )
    columns = ("dispatch", "operator", "route", "grid", "workgroup", *_TIMES, "flags")
    return Table("every dispatch", columns, rows)


def _totals(group: Mapping[str, Any]) -> Table:
    totals, host = group["totals"], group["host"]
    lines = [
        ("on the GPU, first start to last end", totals["span_ns"]),
        ("  sum of all dispatches", totals["sum_ns"]),
        ("  between dispatches, nothing ran", totals["gap_ns"]),
        ("  beside other dispatches", totals["overlap_ns"]),
        ("  copies of outputs, after them", totals["copies_ns"]),
        ("on the host, arguments to outputs", totals["wall_ns"]),
        *((f"  {name}", host[name]) for name in host),
    ]
    rows = tuple(
        (name, *(us(s[key]) for key in ("mean", "p50", "p95", "min"))) for name, s in lines
    )
    return Table("one step", ("", "mean us>", "p50>", "p95>", "min>"), rows)


def notes(group: Mapping[str, Any]) -> list[str]:
    """What a reader has to know of this group's numbers."""
    found = []
    scalars = ", ".join(
        f"{name} = {lo}" if lo == hi else f"{name} = {lo} to {hi}"
        for name, (lo, hi) in group["scalars"].items()
    )
    count = f"{group['steps']} step{'' if group['steps'] == 1 else 's'}"
    found.append(
        f"{count}, {len(group['dispatches'])} dispatches each; {scalars or 'nothing live'}"
    )
    warmup = group["warmup"]
    if warmup["steps"]:
        found.append(
            f"warm-up apart: {warmup['steps']} before them, mean {us(warmup['wall_ns'])} us on the "
            f"host, {us(warmup['span_ns'])} us on the GPU"
        )
    for flag, times in sorted(group["flags"].items()):
        found.append(f"{times} dispatches flagged {flag}: {MEANING.get(flag, flag)}")
    return found


# -- text ------------------------------------------------------------------------------------


def as_text(table: Table) -> str:
    """Aligned columns."""
    table = without_empty_columns(table)
    names = [name.removesuffix(">") for name in table.columns]
    widths = [max(map(len, cells)) for cells in zip(names, *table.rows, strict=True)]
    align = [str.rjust if name.endswith(">") else str.ljust for name in table.columns]

    def line(cells: Iterable[str]) -> str:
        pairs = zip(align, cells, widths, strict=True)
        return "  ".join(f(cell, width) for f, cell, width in pairs).rstrip()

    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    return "\n".join([line(names), rule, *map(line, table.rows)])


def without_empty_columns(table: Table) -> Table:
    """The same table without the columns in which no row says anything."""
    kept = [i for i in range(len(table.columns)) if any(row[i] for row in table.rows)]
    return Table(
        table.title,
        tuple(table.columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in table.rows),
    )


#: Columns of the TSV file: key in the described dispatch.
_TSV = ("label", "kernel", "operator", "module", "route", "grid", "workgroup_size", "start_ns",
        "end_ns", "mean", "p50", "p95", "min", "share", "bytes", "bytes_per_s", "of_copy_bandwidth",
        "flops", "flops_per_s", "debug_handle", "id", "flags")  # fmt: skip


def as_tsv(groups: Sequence[Mapping[str, Any]]) -> str:
    """Every dispatch and copy of every group, one a line; times in nanoseconds."""
    lines = ["\t".join(("method", "group", *(f"{k}_ns" if k in _STATS else k for k in _TSV)))]
    for number, group in enumerate(groups):
        for row in (*group["dispatches"], *group["copies"]):
            cells = [group["method"], str(number), *(_cell(row[key]) for key in _TSV)]
            lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


_STATS = ("mean", "p50", "p95", "min")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1 else f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(value)
    return " ".join(str(value).split())
