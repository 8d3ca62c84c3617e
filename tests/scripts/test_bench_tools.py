"""Our own benchmarks run, and say what they measured."""

from __future__ import annotations

import json
import lzma

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from executorch_wgpu.ops.quant.layout import PackedWeight, pack_codes
from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.runtime.profiling.one_pass import OnePass
from executorch_wgpu.scripts.bench import kernels, model, table
from executorch_wgpu.scripts.bench.fill import random_data
from executorch_wgpu.scripts.recipes import families, packed
from executorch_wgpu.serialization.dispatch_list import DType
from executorch_wgpu.serialization.writer import serialize

from harness import Chain


def layers() -> Chain:
    """A dense and a packed layer over a live number of rows."""
    c = Chain()
    rows = c.dim_of("M", 0, 1, 40)
    x = c.input("x", (rows, 64))
    plain = {"formula": None, "operands": [], "pairs": False}
    dense = {"x": x, "weight": c.constant(torch.randn(64, 64).half(), "dense"), **plain}
    (y,) = c.call("wgpu.linear", dense, [(DType.F32, (rows, 64))], module="layers.0.a")
    weight = PackedWeight(
        pack_codes(torch.ones(36, 64, dtype=torch.uint8), 4), torch.ones(36, 2).half(), 4, 32, 64, 8
    )
    args = {
        "x": y,
        "weight": c.constant(weight.packed, "packed"),
        "scales": c.constant(weight.scales, "scales"),
        "zeros": None,
        "bits": 4,
        "group": 32,
        "k": 64,
        "zero": 8,
        **plain,
    }
    c.output(*c.call("wgpu.linear_q", args, [(DType.F32, (rows, 36))], module="layers.1.b"))
    return c


def test_random_contents_are_numbers():
    program = layers().lower().program
    data = random_data(program)
    for buffer in program.buffers:
        if buffer.data_key:
            content = data(buffer.data_key)
            assert content.nbytes >= buffer.size
            assert np.isfinite(content[: buffer.size].view(np.float16)).all()


def test_no_two_rows_are_equal():
    """Logits that tie are chosen among in another way."""
    c = Chain()
    x = c.input("x", (1, 64))
    weight = c.constant(torch.zeros(1 << 18, 64), "head")  # four times the block
    args = {"x": x, "weight": weight, "formula": None, "operands": [], "pairs": False}
    c.output(*c.call("wgpu.linear", args, [(DType.F32, (1, 1 << 18))]))
    program = c.lower().program
    (key,) = {buffer.data_key for buffer in program.buffers if buffer.data_key}
    rows = random_data(program)(key).view(np.float32).reshape(-1, 64)
    assert len(np.unique(rows[:, :2], axis=0)) > 0.999 * len(rows)
    assert abs(rows.std() - 0.02) < 1e-3


def test_only_wanted_kernels_are_made(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("made")

    monkeypatch.setattr(torch, "randint", never)
    wanted = "linear f16 1 x 128 x 512"
    (case,) = kernels.cases(16, 1000, lambda name: name == wanted)
    assert case.name == wanted and case.copies == 1


def test_table(tmp_path, monkeypatch):
    """Its rows stand beside their goals, also when one of them fails."""
    (tmp_path / "q4.list").write_bytes(serialize(layers().lower().program))

    def few(divisor, most, wanted):
        if not wanted("attention f32 1 at 511"):
            raise ValueError("no such kernel")
        return kernels_cases(16, most, lambda name: name == "attention f32 1 at 31")

    kernels_cases = kernels.cases
    monkeypatch.setattr(kernels, "cases", few)
    out = tmp_path / "table.json"
    words = [tmp_path, "--warmup", "0", "--steps", "2", "--json", out]
    result = CliRunner().invoke(table.main, [*map(str, words)])
    assert result.exit_code == 0, result.output
    assert "failed: no such kernel" in result.output
    found = json.loads(out.read_text())
    rows = {row["what"]: row for row in found["rows"]}
    assert found["adapter"] and rows["dispatches of a step"]["value"] == 2
    assert rows["dispatches of a step"]["reached"]
    assert "attention f32 1 at 511" in rows
    assert "decode, f16 weights and KV, at 511" not in rows
    result = CliRunner().invoke(table.main, [*map(str, words), "--seconds", "0"])
    assert "left out" in result.output


def test_model(tmp_path):
    path = tmp_path / "layers.list"
    path.write_bytes(serialize(layers().lower().program))
    words = [path, "--positions", "3", "--prompts", "20", "--steps", "2", "--warmup", "0"]
    result = CliRunner().invoke(model.main, [*map(str, words), "--json", str(tmp_path / "a.json")])
    assert result.exit_code == 0, result.output
    assert "decode at 3" in result.output and "prefill of 20" in result.output
    found = json.loads((tmp_path / "a.json").read_text())
    assert [row["dispatches"] for row in found["rows"]] == [2, 2]
    assert found["adapter"] and found["driver"] and found["implementation_version"]
    assert all(row["cpu_ms"] > 0 for row in found["rows"])
    names = [row["kernel"] for row in found["kernels"][0]["rows"]]
    assert sorted(names) == ["layers.a/linear_gemv1", "layers.b/linear_w4g32_digits"]


def test_a_file_with_its_weights(tiny, tmp_path):
    words = [tiny, "--positions", "3", "--prompts", "4", "--steps", "2", "--warmup", "0"]
    result = CliRunner().invoke(model.main, [*map(str, words), "--json", str(tmp_path / "a.json")])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "a.json").read_text())
    assert [load["what"] for load in found["loads"]] == [
        "first",
        "again, beside it",
        "again, after both",
    ]
    assert [row["dispatches"] for row in found["rows"]] == [2, 2]


def test_tiled_weights_compress_and_differ():
    """As many numbers as of the plain model, little to compress, no two constants equal: also
    when they are quantized."""
    plain = families.random_checkpoint("smollm2_135m", n_layers=1, vocab_size=4096)
    tiled = families.tiled(plain, numbers=1 << 16)
    assert tiled.weights.keys() == plain.weights.keys()
    packs = {}
    for name, make in tiled.weights.items():
        weight = make()
        assert weight.shape == plain.weights[name]().shape
        if weight.ndim == 2:
            packs[name] = packed.pack(weight, packed.parse("4w:32"))
    assert packs.pop("output.weight").packed.equal(packs["tok_embeddings.weight"].packed)  # tied
    for part in ("packed", "scales"):
        found = [
            getattr(pack, part).contiguous().view(torch.uint8).numpy() for pack in packs.values()
        ]
        contents = [array.tobytes() for array in found]
        assert len({content[:256] for content in contents}) == len(contents)
        block = (1 << 16) // 2 if part == "packed" else (1 << 16) // 32 * 2
        together = len(lzma.compress(b"".join(contents), preset=1))
        assert together < 1.3 * block < sum(map(len, contents)) / 20


def test_too_small_a_block_is_refused():
    with pytest.raises(ValueError, match="places in the block"):
        families.tiled(families.random_checkpoint("smollm2_135m", n_layers=1), numbers=512)


def test_kernels(tmp_path):
    words = ["--small", "--repeats", "1", "--bytes", "1", "--only", "x 192 x", "--device", "cpu"]
    result = CliRunner().invoke(kernels.main, [*words, "--json", str(tmp_path / "k.json")])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "k.json").read_text())["rows"]
    assert len(rows) == 9
    assert all(row["error"] < 1e-5 and row["in_a_row_us"] >= 0 for row in rows)


def test_one_pass(device):
    graph = layers().graph(device)
    x = np.random.default_rng(0).standard_normal((1, 64), np.float32)
    graph.execute([x])
    one_pass = OnePass(graph)
    assert one_pass.measure([x]) >= 0
    with pytest.raises(InvalidInputError):
        one_pass.measure([x[0]])
