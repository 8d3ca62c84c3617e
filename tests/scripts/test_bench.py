"""``bench`` and ``devices``, on a real adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click import BadParameter
from click.testing import Result
from pte_files import MethodSpec, write_pte
from pte_maker import MAX_S, WEIGHT, WIDTH, make_program

from executorch_wgpu.runtime import Runtime, UnsupportedDeviceError
from executorch_wgpu.runtime.device import default_device
from executorch_wgpu.scripts.measure import choose_scalars, random_inputs

Cli = Callable[..., Result]


@pytest.fixture(scope="module", autouse=True)
def adapter() -> Any:
    try:
        return default_device().adapter
    except UnsupportedDeviceError as error:
        pytest.skip(str(error))


def test_devices(cli: Cli, adapter: Any) -> None:
    result = cli("devices")
    assert result.exit_code == 0, result.output
    assert adapter.info["device"] in result.output
    assert "timestamp-query" in result.output


def test_devices_json(cli: Cli, adapter: Any) -> None:
    result = cli("devices", "--json")
    assert result.exit_code == 0, result.output
    listed = json.loads(result.output)
    (mine,) = [entry for entry in listed if entry["summary"] == adapter.summary]
    assert mine["usable"]
    assert mine["limits"]["max-buffer-size"] == adapter.limits["max-buffer-size"]


def test_the_program_runs(tiny: Path) -> None:
    """The file that these tests use is sound: its results are right, step after step."""
    method = Runtime.get().load_program(tiny).load_method("forward")
    rng = np.random.default_rng(0)
    cache = np.zeros((32, WIDTH), np.float32)
    position = 0
    for rows in (5, 1, 1, 8):
        x = rng.standard_normal((rows, WIDTH), np.float32)
        cache[position : position + rows] = x
        [y] = method.execute([x, np.array([position])])
        expected = np.broadcast_to(WEIGHT * cache.sum(0), (rows, WIDTH))
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        position += rows


def test_bench_text(cli: Cli, tiny: Path) -> None:
    result = cli("bench", tiny, "--steps", 3, "--warmup", 1)
    assert result.exit_code == 0, result.output
    for part in ("S = 1, input_pos = 0", "2 a call", "encode + submit", "wait + read"):
        assert part in result.output
    assert "what profiling adds" in result.output
    assert "column_sums" in result.output and "layers.*" in result.output
    assert "layers.0/column_sums" not in result.output


def test_bench_all(cli: Cli, tiny: Path) -> None:
    result = cli("bench", tiny, "--steps", 2, "--all")
    assert result.exit_code == 0, result.output
    assert "layers.0/column_sums" in result.output and "llama.update_cache" in result.output


def test_bench_without_device_time(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    result = cli("bench", tiny, "--steps", 2, "--no-device-time")
    assert result.exit_code == 0, result.output
    assert "Not profiled" in result.output and "what profiling adds" not in result.output
    result = cli("bench", tiny, "--no-device-time", "--trace", tmp_path / "t.json")
    assert result.exit_code == 2 and "nothing to write for --trace" in result.output


def test_bench_json(cli: Cli, tiny: Path) -> None:
    result = cli("bench", tiny, "--steps", 4, "--seq-len", 1000, "--set", "input_pos=3", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["scalars"] == {"S": MAX_S, "input_pos": 3}
    assert (found["steps"], found["warmup"], found["dispatches"]) == (4, 5, 2)
    for key in ("execute_s", "encode_submit_s", "wait_read_s"):
        spread = found[key]
        assert 0 < spread["min"] <= spread["p50"] <= spread["p95"]
    [group] = found["groups"]
    assert (group["steps"], group["warmup"]["steps"]) == (4, 5)
    assert [d["kernel"] for d in group["dispatches"]] == ["append", "column_sums"]
    assert found["against"] is None


def test_bench_load(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    result = cli("bench", tiny, "--load", "--cold", "--json", tmp_path / "l.json")
    assert result.exit_code == 0, result.output
    assert "forgotten before" in result.output and "again, beside it" in result.output
    found = json.loads((tmp_path / "l.json").read_text())
    assert found["adapter"] and found["file_bytes"] == tiny.stat().st_size
    parts = ["device", "file", "choosing", "pipelines", "buffers", "binding"]
    assert len(found["loads"]) == 3
    for load in found["loads"]:
        assert list(load["parts"]) == parts
        assert 0 < sum(load["parts"].values()) <= load["total_s"]
    result = cli("bench", tiny, "--load", "--json")
    assert json.loads(result.output)["cold"] is False
    assert cli("bench", tiny, "--cold").exit_code == 2


def test_bench_load_of_constants(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "constants.pte"
    path.write_bytes(write_pte([MethodSpec("get_size", [7], [], [0])]))
    result = cli("bench", path, "--method", "get_size", "--load")
    assert result.exit_code == 1 and "computes nothing" in result.output


def test_bench_exports(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    names = {"json": "o.json", "tsv": "o.tsv", "trace": "o.json.gz", "etdump": "o.etdp",
             "html": "o.html"}  # fmt: skip
    words = [word for key, name in names.items() for word in (f"--{key}", tmp_path / name)]
    result = cli("bench", tiny, "--steps", 2, *words)
    assert result.exit_code == 0, result.output
    for name in names.values():
        assert f"wrote {tmp_path / name}" in result.output.replace("\n", "")
        assert (tmp_path / name).stat().st_size > 100
    assert json.loads((tmp_path / "o.json").read_text())["steps"] == 2
    head, *rows = (tmp_path / "o.tsv").read_text().splitlines()
    assert head.split("\t")[:3] == ["method", "group", "label"]
    assert len(rows) == 3 and all(row.count("\t") == head.count("\t") for row in rows)


def test_bench_against(cli: Cli, tiny: Path) -> None:
    result = cli("bench", tiny, "--steps", 3, "--against", tiny, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["against"]
    assert set(found["kernels"]) == {"append", "column_sums"}
    for ratio in (found["execute"], found["span"], found["kernels"]["append"]["ratio"]):
        assert 0 < ratio["p5"] <= ratio["p50"] <= ratio["p95"]
    result = cli("bench", tiny, "--steps", 2, "--against", tiny)
    assert "ratio p50" in result.output


@pytest.mark.parametrize("setting", ["T=3", "S", "S=three", "S=9", "input_pos=-1"])
def test_bad_setting(cli: Cli, tiny: Path, setting: str) -> None:
    result = cli("bench", tiny, "--set", setting)
    assert result.exit_code == 2
    assert "--set" in result.output


def test_a_refused_call_is_one_line(cli: Cli, tiny: Path) -> None:
    result = cli("bench", tiny, "--seq-len", 2, "--input-pos", 31)
    assert result.exit_code == 1
    assert "input_pos 31 + 2 rows exceed the cache of 32 rows" in result.output


def test_unknown_device(cli: Cli, tiny: Path) -> None:
    result = cli("bench", tiny, "--device", "no such adapter")
    assert result.exit_code == 1
    assert "no such adapter" in result.output


def test_no_steps(cli: Cli, tiny: Path) -> None:
    assert cli("bench", tiny, "--steps", 0).exit_code == 2


def test_choose_scalars() -> None:
    program = make_program()
    assert choose_scalars(program, 1, 0, ()) == [1, 0]
    assert choose_scalars(program, 0, 99, ()) == [1, 31]
    assert choose_scalars(program, 4, 0, ("input_pos=2", "S=3")) == [3, 2]
    with pytest.raises(BadParameter):
        choose_scalars(program, 1, 0, ("S=0",))
    assert choose_scalars(program, 1, 0, ("x=0.5",)) == [1, 0]  # no live scalar is in it
    for setting in ("x=many", "x=nan", "input_pos=0.5", "other=1"):
        with pytest.raises(BadParameter):
            choose_scalars(program, 1, 0, (setting,))


def test_a_tensors_setting_holds_for_the_live_scalars_in_it() -> None:
    program = make_program()
    position = replace(program.symints[1], name="input_pos[0]")
    program = replace(program, symints=(program.symints[0], position))
    assert choose_scalars(program, 1, 0, ("input_pos=4",)) == [1, 4]
    assert choose_scalars(program, 1, 0, ("input_pos[0]=5",)) == [1, 5]
    with pytest.raises(BadParameter):
        choose_scalars(program, 1, 0, ("input_pos=32",))


def test_random_inputs() -> None:
    x, position = random_inputs(make_program(), [3, 7])
    assert x.shape == (3, WIDTH)
    assert x.dtype == np.float32
    assert position.tolist() == [7]
    assert position.dtype == np.int64
    again, _ = random_inputs(make_program(), [3, 7])
    np.testing.assert_array_equal(x, again)
    filled, position = random_inputs(make_program(), [3, 7], settings=("x=0.25",))
    assert (filled == 0.25).all() and position.tolist() == [7]
