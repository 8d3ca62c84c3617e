"""Where each operator goes and why, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from executorch_wgpu.backend import fx_adapter as fx


@dataclass(frozen=True)
class ExplanationRow:
    """Operators of one kind that go to one place for one reason. ``place``: ``wgpu 0`` (the
    delegate's number) or ``cpu``; ``modules``: where they are, shortened."""

    op: str
    count: int
    place: str
    reason: str
    modules: str


@dataclass(frozen=True)
class Explanation:
    """Rows of an explanation; ``str`` gives the table. ``delegates``: number of partitions."""

    rows: tuple[ExplanationRow, ...]
    delegates: int

    @property
    def on_cpu(self) -> tuple[ExplanationRow, ...]:
        """The rows that stay on ExecuTorch's CPU kernels."""
        return tuple(row for row in self.rows if row.place == "cpu")

    def __str__(self) -> str:
        taken = sum(row.count for row in self.rows if row.place != "cpu")
        total = sum(row.count for row in self.rows)
        head = f"{taken} of {total} operators in {self.delegates} WebGPU delegate(s)"
        table = [("operator", "count", "place", "reason", "modules")]
        table += [(r.op, str(r.count), r.place, r.reason, r.modules) for r in self.rows]
        widths = [max(len(row[k]) for row in table) for k in range(5)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join([head, *(line.rstrip() for line in lines)])


def explain_plan(
    program: ExportedProgram,
    groups: Sequence[Sequence[torch.fx.Node]],
    reasons: Mapping[torch.fx.Node, str],
) -> Explanation:
    """The table of a partition plan; getitems and the host's int arithmetic are not counted,
    but for those with a reason against them."""
    place = {node: f"wgpu {k}" for k, nodes in enumerate(groups) for node in nodes}
    rows: dict[tuple[str, str, str], list[str]] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or fx.is_getitem(node):
            continue
        quiet = fx.is_symbolic(node) or fx.is_assert(node) or fx.is_scalar_read(node)
        if quiet and node not in reasons:
            continue
        name = fx.op_name(node.args[0] if fx.is_mutation(node) else node.target)
        key = (name, place.get(node, "cpu"), "" if node in place else reasons.get(node, ""))
        rows.setdefault(key, []).append(fx.module_path(node))
    found = [
        ExplanationRow(op, len(paths), where, reason, _shortened(paths))
        for (op, where, reason), paths in rows.items()
    ]
    found.sort(key=lambda row: (row.place != "cpu", row.op))
    return Explanation(tuple(found), len(groups))


def _shortened(paths: Sequence[str]) -> str:
    distinct = sorted(set(paths))
    text = ", ".join(path or "(top)" for path in distinct[:2])
    return text + (f", ... ({len(distinct)} modules)" if len(distinct) > 2 else "")
