"""Many steps together: what each dispatch, kernel, operator, module and layer costs.

Steps that ran the same passes form a :class:`Group` (prefill and decode of one method are two), and
:meth:`Group.describe` says everything about it in plain data: what the tables, the page and the
JSON file show.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..query_pool import ShaderDuration
from .records import PHASES, StepProfile, gpu_offset_ns

#: Steps of a group whose times are kept; means and percentiles are over the last so many.
KEEP = 2048

Numbers = npt.NDArray[np.float64]


def stats(values: Numbers) -> dict[str, float]:
    """Mean, median, 95th percentile and least of some numbers, all 0 for none."""
    if not values.size:
        return {"mean": 0.0, "p50": 0.0, "p95": 0.0, "min": 0.0}
    p50, p95 = np.percentile(values, (50, 95))
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p95": float(p95),
        "min": float(values.min()),
    }


class Summary:
    """Collects profiled steps of one method.

    Args:
        warmup: the first so many steps of each group are set apart.
    """

    def __init__(self, warmup: int = 0) -> None:
        self._warmup = warmup
        self._groups: dict[tuple[tuple[str, str], ...], Group] = {}

    def add(self, step: StepProfile) -> None:
        """One more step."""
        key = tuple([(p.delegate_id or p.label, p.route) for p in step.passes])
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(step, self._warmup)
        group.add(step)

    @property
    def groups(self) -> list[Group]:
        """Steps by what they ran, in the order of their first."""
        return list(self._groups.values())


class Group:
    """Steps that ran the same passes, on whatever grids."""

    def __init__(self, first: StepProfile, warmup: int = 0) -> None:
        self.last = first
        self.steps = 0
        self._warmup = warmup
        self._warm: list[StepProfile] = []
        self._rows: deque[Numbers] = deque(maxlen=KEEP)
        self._bytes: deque[Numbers] = deque(maxlen=KEEP)
        self._flops: deque[Numbers] = deque(maxlen=KEEP)
        self._totals: deque[Numbers] = deque(maxlen=KEEP)
        self._host: deque[Numbers] = deque(maxlen=KEEP)
        self._flags: list[Counter[str]] = [Counter() for _ in first.passes]
        self._scalars: dict[str, tuple[int, int]] = {}

    def add(self, step: StepProfile) -> None:
        """One more step of this group."""
        self.last = step
        for name, value in step.scalars:
            lo, hi = self._scalars.get(name, (value, value))
            self._scalars[name] = (min(lo, value), max(hi, value))
        if len(self._warm) < self._warmup:
            self._warm.append(step)
            return
        both = step.totals
        self.steps += 1
        self._rows.append(np.array([p.duration_ns for p in step.passes]))
        self._bytes.append(_known([p.bytes for p in step.passes]))
        self._flops.append(_known([p.flops for p in step.passes]))
        copies = sum(p.duration_ns for p in step.copies)
        self._totals.append(
            np.array(
                [both.span_ns, both.sum_ns, both.gap_ns, both.overlap_ns, copies, step.wall_ns],
                np.float64,
            )
        )
        phases = dict.fromkeys(PHASES, 0.0)
        for phase in step.host:
            phases[phase.name] = phases.get(phase.name, 0.0) + phase.duration_ns
        self._host.append(np.array(list(phases.values())[: len(PHASES)]))
        for count, p in zip(self._flags, step.passes, strict=True):
            count.update(p.flags)

    # -- everything about it ---------------------------------------------------------------

    def describe(self, copy_bandwidth: float | None = None) -> dict[str, Any]:
        """Plain data, times in nanoseconds and rates a second.

        Args:
            copy_bandwidth: of the device, in bytes read and written a second; None when unknown.
        """
        if not self.steps:  # nothing but warm-up: better than nothing
            all_of_it = Group(self.last)
            for step in self._warm:
                all_of_it.add(step)
            return all_of_it.describe(copy_bandwidth) if all_of_it.steps else {}
        passes = self.last.passes
        totals = _columns(self._totals, 6)
        names = ("span_ns", "sum_ns", "gap_ns", "overlap_ns", "copies_ns", "wall_ns")
        data = _Columns(self, copy_bandwidth)
        flags: Counter[str] = Counter()
        for count in self._flags:
            flags.update(count)
        dispatched = [i for i, p in enumerate(passes) if p.kind == "dispatch"]
        return {
            "method": self.last.method,
            "routes": [r for r in dict.fromkeys(p.route for p in passes) if r not in ("", "only")],
            "scalars": {name: list(bounds) for name, bounds in self._scalars.items()},
            "steps": self.steps,
            "warmup": {
                "steps": len(self._warm),
                "wall_ns": float(np.mean([float(step.wall_ns) for step in self._warm] or [0.0])),
                "span_ns": float(np.mean([step.span_ns for step in self._warm] or [0.0])),
            },
            "totals": {name: stats(totals[:, i]) for i, name in enumerate(names)},
            "host": {
                name: stats(column)
                for name, column in zip(PHASES, _columns(self._host, len(PHASES)).T, strict=True)
            },
            "flags": dict(flags),
            "dispatches": [self._pass(data, i) for i in dispatched],
            "copies": [self._pass(data, i) for i, p in enumerate(passes) if p.kind == "copy"],
            "kernels": data.by(dispatched, "kernel", lambda p: p.kernel_name),
            "operators": data.by(dispatched, "operator", lambda p: p.op or "(none)"),
            "layers": data.by(
                [i for i in dispatched if layer_of(passes[i].module_path)],
                "layer",
                lambda p: layer_of(p.module_path),
                ordered=True,
            ),
            "modules": data.modules(dispatched),
            "timeline": self._timeline(),
        }

    def _timeline(self) -> dict[str, Any]:
        """The last step on the host's clock from its begin on: ``gpu_offset_ns`` is what to add to
        the times of its passes."""
        begin = self.last.host[0].start_ns if self.last.host else 0
        return {
            "host": [
                {"name": p.name, "start_ns": p.start_ns - begin, "end_ns": p.end_ns - begin}
                for p in self.last.host
            ],
            "gpu_offset_ns": gpu_offset_ns(self.last) - begin,
        }

    def _pass(self, data: _Columns, i: int) -> dict[str, Any]:
        p = self.last.passes[i]
        return {
            "id": p.delegate_id,
            "label": p.label,
            "kernel": p.kernel_name,
            "operator": p.op,
            "module": p.module_path,
            "route": p.route,
            "step": p.step,
            "debug_handle": None if p.debug_handle < 0 else p.debug_handle,
            "grid": list(p.global_workgroups),
            "workgroup_size": list(p.local_workgroup_size),
            "bindings": list(p.bindings),
            "start_ns": p.start_ns,
            "end_ns": p.end_ns,
            "flags": dict(self._flags[i]),
            **data.numbers([i]),
        }


class _Columns:
    """Sums of passes over the kept steps."""

    def __init__(self, group: Group, copy_bandwidth: float | None) -> None:
        count = len(group.last.passes)
        self._passes = group.last.passes
        self._durations = _columns(group._rows, count)
        self._bytes = _columns(group._bytes, count)
        self._flops = _columns(group._flops, count)
        self._copy_bandwidth = copy_bandwidth
        kinds = [p.kind == "dispatch" for p in self._passes]
        self._whole = float(self._durations[:, kinds].sum()) if count else 0.0

    def numbers(self, indices: Sequence[int]) -> dict[str, Any]:
        """Times, costs and rates of some passes together. ``share``: of all dispatches' time."""
        chosen = self._durations[:, indices]
        moved, per_s = self._rate(self._bytes, indices)
        flops, flops_per_s = self._rate(self._flops, indices)
        bandwidth = self._copy_bandwidth
        return {
            **stats(chosen.sum(axis=1)),
            "share": float(chosen.sum()) / self._whole if self._whole else 0.0,
            "bytes": moved,
            "bytes_per_s": per_s,
            "of_copy_bandwidth": per_s / bandwidth if per_s and bandwidth else None,
            "flops": flops,
            "flops_per_s": flops_per_s,
        }

    def _rate(self, costs: Numbers, indices: Sequence[int]) -> tuple[float | None, float | None]:
        """(mean a step, a second) of what is known of these passes; None when nothing is."""
        chosen = costs[:, indices]
        known = ~np.isnan(chosen)
        if not known.any():
            return None, None
        total = float(chosen[known].sum())
        time = float(self._durations[:, indices][known].sum())
        return total / len(chosen), total * 1e9 / time if time else None

    def by(
        self,
        indices: Iterable[int],
        name: str,
        of: Callable[[ShaderDuration], str],
        ordered: bool = False,
    ) -> list[dict[str, Any]]:
        """One row for each value of ``of``, the slowest first or (``ordered``) as they come."""
        found: dict[str, list[int]] = {}
        for i in indices:
            found.setdefault(of(self._passes[i]), []).append(i)
        rows = [
            {name: key, "dispatches": len(own), **self.numbers(own)} for key, own in found.items()
        ]
        return rows if ordered else sorted(rows, key=lambda row: -row["mean"])

    def modules(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """One row a module path with its layers' numbers as ``*``, each with all that is below it;
        a tree in depth-first order, the slowest first. ``own_ns``: what runs in the module itself
        rather than in one below it."""
        below: dict[tuple[str, ...], list[int]] = {}
        own: dict[tuple[str, ...], list[int]] = {}
        places: dict[tuple[str, ...], set[str]] = {}
        for i in indices:
            path = self._passes[i].module_path
            parts = pattern_parts(path)
            own.setdefault(parts, []).append(i)
            for depth in range(len(parts) + 1):
                below.setdefault(parts[:depth], []).append(i)
                places.setdefault(parts[:depth], set()).add(_prefix(path, parts[:depth]))
        rows: list[dict[str, Any]] = []

        def visit(parts: tuple[str, ...]) -> None:
            rows.append(
                {
                    "module": ".".join(parts) or "(model)",
                    "depth": len(parts),
                    "instances": len(places[parts]),
                    "dispatches": len(below[parts]),
                    **self.numbers(below[parts]),
                    "own_ns": self.numbers(own[parts])["mean"] if parts in own else 0.0,
                }
            )
            children = [p for p in below if len(p) == len(parts) + 1 and p[:-1] == parts]
            for child in sorted(children, key=lambda c: -self.numbers(below[c])["mean"]):
                visit(child)

        if below:
            visit(())
        return rows


_NUMBER = re.compile(r"\d+")


def pattern_parts(path: str) -> tuple[str, ...]:
    """``layers.3.attention.wq`` as (``layers.*``, ``attention``, ``wq``): a number belongs to the
    name before it."""
    parts: list[str] = []
    for part in filter(None, path.split(".")):
        if _NUMBER.fullmatch(part) and parts:
            parts[-1] += ".*"
        else:
            parts.append(part)
    return tuple(parts)


def module_paths(path: str) -> list[str]:
    """``layers.3.attention.wq`` as [``layers.3``, ``layers.3.attention``,
    ``layers.3.attention.wq``]: the modules around something, from the outermost to its own."""
    parts = pattern_parts(path)
    return [_prefix(path, parts[: depth + 1]) for depth in range(len(parts))]


def layer_of(path: str) -> str:
    """``layers.3`` of ``layers.3.attention``: the path up to its first number; "" without one."""
    found = re.match(r"(.*?\.\d+)(?:\.|$)", path)
    return found[1] if found else ""


def _prefix(path: str, parts: tuple[str, ...]) -> str:
    """The real path that a pattern's first parts stand for."""
    length = sum(part.count(".") + 1 for part in parts)
    return ".".join(path.split(".")[:length])


def _known(values: Sequence[int | None]) -> Numbers:
    return np.array([np.nan if value is None else float(value) for value in values], np.float64)


def _columns(rows: Iterable[Numbers], width: int) -> Numbers:
    kept = list(rows)
    return np.stack(kept) if kept else np.zeros((0, width))
