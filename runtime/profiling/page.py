"""A profile as one HTML page that needs nothing else: no server, no network, no other file."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

_PARTS = "page_parts"


def render(content: Mapping[str, Any]) -> str:
    """The page for a document of :mod:`.document`."""
    folder = resources.files(__package__).joinpath(_PARTS)
    page, style, script = (
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    )
    # In a script element only "</" could end it early, and "<!--" change how it is read.
    data = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    title = f"{content.get('method', 'profile')} - {content.get('file', 'executorch-wgpu')}"
    for mark, text in (
        ("<!--TITLE-->", html.escape(title)),
        ("/*STYLE*/", style),
        ("/*DATA*/", data),
        ("/*SCRIPT*/", script),
    ):
        head, found, tail = page.partition(mark)
        assert found, f"{mark} stands once in page.html"
        page = head + text + tail
    return page
