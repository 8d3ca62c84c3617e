"""The demo: it passes, exports once, and would notice a wrong result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from executorch_wgpu.runtime import UnsupportedDeviceError
from executorch_wgpu.runtime.device import default_device
from executorch_wgpu.scripts import demo

pytest.importorskip("executorch.extension.llm.custom_ops")
pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        default_device()
    except UnsupportedDeviceError as error:
        pytest.skip(str(error))
    from executorch_wgpu.scripts.recipes import smollm2

    try:
        smollm2.find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return tmp_path_factory.mktemp("demo")


def run(*words: object) -> Result:
    return CliRunner().invoke(demo.main, [str(word) for word in words])


def test_demo(
    out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # What two of its layers say makes no sense, but the way to it is the same.
    monkeypatch.setattr(demo, "LAYERS", 2)
    first = run("--out", out)
    assert first.exit_code == 0, first.output
    assert "exporting and lowering" in first.output
    for part in ("adapter", "dispatch list", "largest error", "layers.0.attention"):
        assert part in first.output
    assert first.output.count("decode  ") == 16

    again = run("--out", out)
    assert again.exit_code == 0, again.output
    assert again.output.count("is up to date") == 2
    assert f"$ executorch-wgpu run {out / 'smollm2.pte'} --chat" in again.output
    answered = capfd.readouterr()
    assert answered.err.count("time to first token") == 2
    assert len(answered.out) > 2

    # No result is within nothing of eager's.
    monkeypatch.setattr(demo, "ABSOLUTE", 1e-12)
    monkeypatch.setattr(demo, "RELATIVE", 1e-12)
    wrong = run("--out", out)
    assert wrong.exit_code == 1
    assert "FAILED" in wrong.output


def test_source_key_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    kernel = tmp_path / "ops" / "norm" / "norm.wgsl"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("one")
    first = demo.source_key()
    assert demo.source_key() == first
    kernel.write_text("two")
    second = demo.source_key()
    assert second != first
    kernel.rename(kernel.with_name("other.wgsl"))
    assert demo.source_key() != second


def test_quiet_holds_back_what_native_code_writes(capfd: Any) -> None:
    with demo.quiet():
        os.write(2, b"noise\n")
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"


def test_quiet_shows_it_when_the_block_fails(capfd: Any) -> None:
    with pytest.raises(RuntimeError), demo.quiet():
        os.write(2, b"the reason\n")
        raise RuntimeError
    assert "the reason" in capfd.readouterr().err
