"""A pytest plugin that notes every error of ours which a test provokes, for error_table.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from executorch_wgpu.serialization.errors import WgpuDelegateError

ROOT = Path(__file__).resolve().parents[1]
_seen: dict[tuple[str, int], str] = {}
_names: dict[str, str | None] = {}


def _name(file: str) -> str | None:
    """The file's name within the repository; None where it is not in a package of ours."""
    if file not in _names:
        path = Path(file).resolve()
        inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in (
            *("serialization", "runtime"),
        )
        _names[file] = str(path.relative_to(ROOT)) if inside else None
    return _names[file]


def _note(self: WgpuDelegateError, *arguments: Any) -> None:
    Exception.__init__(self, *arguments)
    frame = sys._getframe(1)
    if frame.f_code.co_name == "fail" and frame.f_back is not None:
        frame = frame.f_back
    name = _name(frame.f_code.co_filename)
    if name is None or not arguments:
        return
    key, text = (name, frame.f_lineno), str(arguments[0])
    # The shortest, and of the test runs that fuzz, the first that is short.
    if key not in _seen or len(text) < len(_seen[key]):
        _seen[key] = text


def pytest_configure() -> None:
    """Starts."""
    WgpuDelegateError.__init__ = _note  # type: ignore[method-assign,assignment]


def pytest_unconfigure() -> None:
    """Writes what was seen."""
    output = os.environ.get("EXECUTORCH_WGPU_RECORD_ERRORS")
    if output:
        lines = [json.dumps([file, line, text]) for (file, line), text in sorted(_seen.items())]
        Path(output).write_text("\n".join(lines))
