"""Progress: a line a step where nobody watches, bars where somebody does."""

from __future__ import annotations

import io
import os
import pty
import select

import pytest

from executorch_wgpu.scripts.console import quiet
from executorch_wgpu.scripts.progress import Progress, WriteProgress


def test_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress, quiet():
        with progress.step("load", 3, "weights") as advance:
            advance(1)
            advance(2)
        with progress.step("export"):
            pass
        with progress.step("upload", unit="bytes") as step:
            step.at(1 << 20, 5 << 20)
            step.at(5 << 20, 5 << 20)
        assert list(progress.over("go", "abc", 3, "letters")) == ["a", "b", "c"]
    lines = capfd.readouterr().err.splitlines()
    # Also while standard error is held back.
    assert [" ".join(line.split()) for line in lines] == [
        "load 0.0 s 3 weights",
        "export 0.0 s",
        "upload 0.0 s 5 MiB",
        "go 0.0 s 3 letters",
    ]
    assert set(progress.seconds) == {"load", "export", "upload", "go"}


def test_a_step_that_fails_is_no_step_done(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress, pytest.raises(OSError), progress.step("write", 9, "bytes"):
        raise OSError
    assert capfd.readouterr().err == "" and progress.seconds == {}


def test_bars() -> None:
    """On a terminal, which hands over what it gets in pieces, when it likes."""
    leader, follower = pty.openpty()
    saved = os.dup(2)
    os.dup2(follower, 2)
    try:
        with Progress() as progress, progress.step("write", 4 << 20, "bytes") as advance:
            advance(1 << 20)
            advance(3 << 20)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    shown = b""
    while not (b"write" in shown and b"4/4 MiB" in shown):
        assert select.select([leader], [], [], 20)[0], shown
        shown += os.read(leader, 1 << 16)
    os.close(follower)
    os.close(leader)


def test_written_bytes() -> None:
    file, seen = io.BytesIO(), []
    writer = WriteProgress(file, seen.append)
    content = bytes(range(256)) * (1 << 17)
    assert writer.write(content) == 1 << 25
    assert file.getvalue() == content
    assert len(seen) > 1 and sum(seen) == 1 << 25
