"""The page is one file that needs nothing else, and draws itself in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from steps import DISPATCHES, step

from executorch_wgpu.runtime.profiling.document import document
from executorch_wgpu.runtime.profiling.page import render
from executorch_wgpu.runtime.profiling.stamps import PINNED
from executorch_wgpu.runtime.profiling.summary import Summary

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def page_document(**more: Any) -> dict[str, Any]:
    summary = Summary(1)
    for k in range(4):
        summary.add(step(k, 1.0 + k, flags=(PINNED,)))
    device = {"adapter": "a GPU", "implementation": "Dawn", "timestamp_period_ns": 1.0,
              "copy_bytes_per_s": 1e12, "info": {"vendor": "someone"}}  # fmt: skip
    groups = [group.describe(1e12) for group in summary.groups]
    return document(device, groups, method="forward", **{"file": "model.pte", **more})


def test_self_contained() -> None:
    page = render(page_document())
    # The one address is the name of the SVG namespace, which nothing loads.
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|script\s+src)|@import|url\((?!#)", page)
    assert "prefers-color-scheme: dark" in page


def test_text_from_the_file_is_only_text() -> None:
    evil = "</script><script>alert(1)</script><!--"
    page = render(page_document(file=evil))
    assert page.count("</script>") == 2 and evil not in page
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert json.loads(data)["file"] == evil


def dump(page: str, tmp_path: Path) -> str:
    """The document as the browser has it after running its script."""
    assert BROWSER is not None
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]  # fmt: skip
    done = subprocess.run(
        [BROWSER, *flags, path.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_it_draws_itself(tmp_path: Path) -> None:
    ratio = {"mean": 1.0, "p50": 0.9, "p5": 0.8, "p95": 1.1, "min": 0.7}
    against = {"file": "other.pte", "execute": ratio, "span": None,
               "kernels": {"linear": {"a_ns": 1e3, "b_ns": 2e3, "ratio": ratio}}}  # fmt: skip
    found = dump(render(page_document(against=against)), tmp_path)
    assert found.count('class="slice') == 6 + 3 + len(DISPATCHES) + 1  # host, layers, GPU
    assert found.count("slice flagged") == 1
    for text in ("sdpa_", "layers.*", "model.pte", "a GPU", "other.pte over model.pte", "0.900"):
        assert text.rstrip("_") in found
    assert 'aria-selected="true"' in found and "dispatches (7)" in found


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_nothing_was_profiled(tmp_path: Path) -> None:
    device = {"adapter": "a GPU", "copy_bytes_per_s": None}
    assert "nothing was profiled" in dump(render(document(device, [])), tmp_path)
