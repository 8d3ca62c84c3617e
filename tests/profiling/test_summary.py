"""Many steps: statistics, groups, roll-ups, rates, and the tables made of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from steps import DISPATCHES, GAP_US, step

from executorch_wgpu.runtime.profiling import document, tables
from executorch_wgpu.runtime.profiling.records import StepProfile
from executorch_wgpu.runtime.profiling.stamps import OVERLAP, PINNED
from executorch_wgpu.runtime.profiling.summary import (
    KEEP,
    Summary,
    layer_of,
    module_paths,
    pattern_parts,
    stats,
)

SUM_US = sum(us for _, _, _, us, _, _ in DISPATCHES)


def summary_of(*steps: StepProfile, warmup: int = 0) -> Summary:
    summary = Summary(warmup)
    for one in steps:
        summary.add(one)
    return summary


def test_stats() -> None:
    assert stats(np.array([3.0, 1.0, 2.0])) == {"mean": 2, "p50": 2, "p95": 2.9, "min": 1}
    assert stats(np.zeros(0)) == {"mean": 0, "p50": 0, "p95": 0, "min": 0}


def test_paths() -> None:
    assert pattern_parts("layers.3.attention.wq") == ("layers.*", "attention", "wq")
    assert pattern_parts("") == ()
    assert pattern_parts("0.a") == ("0", "a")
    assert module_paths("layers.3.attention") == ["layers.3", "layers.3.attention"]
    assert layer_of("model.layers.12.mlp.0.up") == "model.layers.12"
    assert layer_of("norm") == "" and layer_of("layers.0") == "layers.0"


def test_totals_and_host() -> None:
    [group] = summary_of(*(step(i, 1.0 + i) for i in range(3))).groups
    found = group.describe()
    assert (found["method"], found["steps"], found["routes"]) == ("forward", 3, ["decode"])
    assert found["scalars"] == {"pos": [0, 2]}
    totals = found["totals"]
    assert totals["sum_ns"]["min"] == pytest.approx(SUM_US * 1e3)
    assert totals["sum_ns"]["p50"] == pytest.approx(2 * SUM_US * 1e3)
    gaps = (len(DISPATCHES) - 1) * GAP_US * 1e3
    assert totals["gap_ns"]["mean"] == pytest.approx(gaps)
    assert totals["span_ns"]["min"] == pytest.approx(SUM_US * 1e3 + gaps)
    assert totals["overlap_ns"]["mean"] == 0
    assert totals["copies_ns"]["mean"] == 2000
    assert found["host"]["encode"] == {"mean": 10_000, "p50": 10_000, "p95": 10_000, "min": 10_000}
    assert totals["wall_ns"]["min"] == sum(found["host"][name]["min"] for name in found["host"])


def test_overlap_is_beside_the_total() -> None:
    [group] = summary_of(step(overlap=True, flags=(OVERLAP,))).groups
    found = group.describe()
    assert found["totals"]["overlap_ns"]["mean"] == pytest.approx(10_000)
    assert found["flags"] == {OVERLAP: 1}
    assert found["dispatches"][1]["flags"] == {OVERLAP: 1}


def test_warmup_is_apart() -> None:
    [group] = summary_of(step(0, 100.0), step(1), step(2), warmup=1).groups
    found = group.describe()
    assert (found["steps"], found["warmup"]["steps"]) == (2, 1)
    assert found["warmup"]["span_ns"] > 50 * found["totals"]["span_ns"]["p95"]
    [group] = summary_of(step(0, 2.0), warmup=1).groups
    only = group.describe()
    assert (only["steps"], only["warmup"]["steps"]) == (1, 0)
    assert only["totals"]["sum_ns"]["mean"] == pytest.approx(2 * SUM_US * 1e3)


def test_steps_that_ran_something_else_are_another_group() -> None:
    other = StepProfile("forward", 1, (), step().passes[:2], step().host)
    first, second = summary_of(step(), other, step(2)).groups
    assert (first.steps, second.steps) == (2, 1)
    assert len(second.describe()["dispatches"]) == 2


def test_kernels_operators_layers() -> None:
    [group] = summary_of(step(0), step(1, 3.0)).groups
    found = group.describe(copy_bandwidth=1e12)
    linear, sdpa, norm = found["kernels"]
    assert [k["kernel"] for k in found["kernels"]] == ["linear", "sdpa", "norm"]
    assert (linear["dispatches"], sdpa["dispatches"]) == (4, 2)
    assert linear["mean"] == pytest.approx(2 * 84e3)
    assert (linear["min"], linear["p50"]) == (pytest.approx(84e3), pytest.approx(168e3))
    assert linear["share"] == pytest.approx(84 / SUM_US)
    assert linear["bytes"] == 32000
    assert linear["bytes_per_s"] == pytest.approx(64000 / (4 * 84e-6))
    assert linear["flops_per_s"] == pytest.approx(2 * linear["bytes_per_s"])
    assert linear["of_copy_bandwidth"] == pytest.approx(linear["bytes_per_s"] / 1e12)
    assert sdpa["bytes"] is sdpa["bytes_per_s"] is sdpa["of_copy_bandwidth"] is None
    assert norm["flops_per_s"] is None
    assert sum(k["share"] for k in found["kernels"]) == pytest.approx(1)
    assert found["operators"][0]["operator"] == "aten.linear.default"
    assert [(r["layer"], r["dispatches"]) for r in found["layers"]] == [
        ("layers.0", 3),
        ("layers.1", 3),
    ]
    assert found["layers"][1]["mean"] == pytest.approx(2 * 66e3)


def test_modules_roll_up() -> None:
    [group] = summary_of(step()).groups
    rows = {row["module"]: row for row in group.describe()["modules"]}
    assert list(rows) == [
        "(model)",
        "layers.*",
        "layers.*.attention",
        "layers.*.mlp",
        "layers.*.mlp.up",
    ]
    assert rows["(model)"]["mean"] == pytest.approx(SUM_US * 1e3)
    assert rows["(model)"]["own_ns"] == pytest.approx(4e3)
    assert rows["layers.*.attention"]["mean"] == pytest.approx(64e3)
    assert rows["layers.*"]["own_ns"] == 0
    assert [rows[name]["instances"] for name in rows] == [1, 2, 2, 2, 2]
    assert [rows[name]["depth"] for name in rows] == [0, 1, 2, 2, 3]


def test_only_so_many_steps_are_kept() -> None:
    summary = Summary()
    one = step()
    short = StepProfile(one.method, 0, (), one.passes[:1], one.host)
    for _ in range(KEEP + 5):
        summary.add(short)
    [group] = summary.groups
    assert group.steps == KEEP + 5 and len(group._rows) == KEEP


def test_tables() -> None:
    [group] = summary_of(step(0), step(1, flags=(PINNED,))).groups
    found = group.describe(copy_bandwidth=1e12)
    short, long = tables.tables(found, everything=False), tables.tables(found)
    assert [t.title for t in short] == ["one step", "by kernel", "by module"]
    assert [t.title for t in long] == [
        "one step",
        "by kernel",
        "by operator",
        "by module",
        "by layer",
        "every dispatch",
    ]
    for table in long:
        text = tables.as_text(table).splitlines()
        assert len(text) == len(table.rows) + 2
        assert all(len(row) == len(table.columns) for row in table.rows)
    kernel = tables.as_text(short[1]).splitlines()
    assert kernel[2].split()[:3] == ["linear", "4", "84.0"]
    assert "GB/s" in kernel[0] and "of copy" in kernel[0]
    assert "GB/s" not in tables.as_text(tables.without_empty_columns(short[0]))
    text = "\n".join(tables.notes(found))
    assert "2 steps, 7 dispatches each; pos = 0 to 1" in text
    assert "1 dispatches flagged pinned" in text


def test_tsv() -> None:
    [group] = summary_of(step()).groups
    head, *rows = tables.as_tsv([group.describe(), group.describe()]).splitlines()
    names = head.split("\t")
    assert len(rows) == 2 * (len(DISPATCHES) + 1)
    first = dict(zip(names, rows[0].split("\t"), strict=True))
    assert first["label"] == "layers.0.attention/linear"
    assert float(first["mean_ns"]) == 10_000
    assert (first["grid"], first["workgroup_size"], first["bytes"]) == ("1x1x1", "64x1x1", "4000.0")
    assert dict(zip(names, rows[-1].split("\t"), strict=True))["flops"] == ""


def test_the_document_is_json() -> None:
    groups = [g.describe() for g in summary_of(step()).groups]
    text = document.to_json(document.document({"adapter": "none"}, groups, method="forward"))
    found = json.loads(text)
    assert found["format"] == document.FORMAT
    assert found["groups"][0]["dispatches"][0]["grid"] == [1, 1, 1]
    assert found["groups"][0]["timeline"]["host"][0]["start_ns"] == 0
