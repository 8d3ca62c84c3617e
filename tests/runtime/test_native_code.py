"""C that is compiled on first use: where it is kept, who may have put it there, doing without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executorch_wgpu.runtime.bridge import compile as building
from executorch_wgpu.runtime.native_code import _library, library_of

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="nothing is compiled on Windows"),
    pytest.mark.skipif(building.find_compiler() is None, reason="no compiler"),
]

SEVEN = "int answer(void) { return 7; }\n"
DECLARATION = "int answer(void);"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXECUTORCH_WGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "answer.c"
    path.write_text(SEVEN)
    return path


def answer(source: Path) -> int | None:
    built = library_of(source, DECLARATION, "there is no answer")
    return None if built is None else built[1].answer()


def kept(source: Path) -> list[Path]:
    return sorted(source.with_name("cache").rglob("*.so"))


def built(source: Path) -> Path:
    """Where it is kept. Not loaded: a process that has would be given the same by that name."""
    return Path(_library(SimpleNamespace(dlopen=str), source))


def plant(source: Path) -> Path:
    """Code that answers 6 where that of ``source`` is kept, in place of what was built."""
    path = built(source)
    code = source.with_name("planted.c")
    code.write_text(SEVEN.replace("7", "6"))
    compiler = building.find_compiler() or []
    new = path.with_name("new")
    subprocess.run(
        [*compiler, "-x", "c", "-shared", "-fPIC", str(code), "-o", str(new)], check=True
    )
    os.replace(new, path)
    return path


def leftovers(source: Path) -> list[str]:
    return [p.name for p in source.parent.glob("executorch-wgpu-*")] + [
        p.name for p in source.parent.rglob(".build-*")
    ]


def test_built_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.umask(0)
    try:
        assert answer(source) == 7
    finally:
        os.umask(old)
    [path] = kept(source)
    for part in (path, path.parent, path.parent.parent):
        assert part.stat().st_mode & 0o077 == 0, part
    # Kept, it needs no compiler.
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert answer(source) == 7 and not leftovers(source)
    source.write_text(SEVEN.replace("7", "8"))
    assert answer(source) is None


@pytest.mark.parametrize("where", ["file", "folder", "above"])
def test_what_others_may_have_put_there_is_not_loaded(source: Path, where: str) -> None:
    path = plant(source)
    opened = {"file": path, "folder": path.parent, "above": path.parent.parent}[where]
    before = opened.stat().st_mode
    opened.chmod(0o777)
    assert building.others_may_write(path)
    assert answer(source) == 7 and not leftovers(source)
    if where != "file":
        assert kept(source) == [path]
        opened.chmod(before & 0o755)
        path.chmod(0o755)
        assert answer(source) == 6  # the test would see it


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("where", ["file", "folder"])
def test_what_another_user_owns_is_not_loaded(source: Path, where: str) -> None:
    path = plant(source)
    os.chown(path if where == "file" else path.parent, 12345, 12345)
    assert answer(source) == 7 and not leftovers(source)


def test_a_link_into_a_folder_of_others(source: Path) -> None:
    elsewhere = source.with_name("elsewhere")
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    source.with_name("cache").symlink_to(elsewhere)
    assert answer(source) == 7
    assert not list(elsewhere.rglob("*.so"))


def test_a_sticky_folder_above(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /tmp: others may write to it, and cannot touch what is this user's."""
    folder = source.with_name("cache")
    folder.mkdir()
    folder.chmod(0o1777)
    assert answer(source) == 7
    assert len(kept(source)) == 1


def test_a_file_that_does_not_load_is_built_again(source: Path) -> None:
    path = built(source)
    new = path.with_name("new")
    new.write_bytes(b"cut short")
    os.replace(new, path)
    assert answer(source) == 7
    assert path.read_bytes()[:4] != b"cut "


def no_folder(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.with_name("cache").write_text("a file")


def no_home(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Any:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EXECUTORCH_WGPU_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)


@pytest.mark.parametrize("lacks", [no_folder, no_home])
def test_without_a_cache(source: Path, monkeypatch: pytest.MonkeyPatch, lacks: Any) -> None:
    lacks(source, monkeypatch)
    assert answer(source) == 7 and not leftovers(source)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "c++ 'no end", "false"])
def test_without_a_compiler(source: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert answer(source) is None and not leftovers(source)


def test_an_error_in_it(source: Path) -> None:
    source.write_text("no C")
    assert answer(source) is None and not leftovers(source) and not kept(source)


def test_processes_that_build_at_once(source: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from executorch_wgpu.runtime.native_code import *; "
        f"print(library_of(Path(sys.argv[1]), {DECLARATION!r}, '')[1].answer())"
    )
    command = [sys.executable, "-c", code, str(source)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=100)[0] for process in running] == ["7\n"] * 3
    assert len(kept(source)) == 1 and not leftovers(source)
