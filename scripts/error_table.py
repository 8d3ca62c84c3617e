"""Writes docs/ERRORS.md: every way in which a call can fail, with the message that it gives.

    python -m executorch_wgpu.scripts.error_table --write

What is raised is read off the source; the messages are those that the tests provoke (they are run
for it, some minutes). A test holds that the page names every place that raises.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "ERRORS.md"

#: What users call.
FOLDERS = ("serialization", "runtime")
TESTS = ("tests/serialization", "tests/runtime", "tests/profiling")

#: Tests that provoke the same messages many times over, or none, and take long.
LEFT_OUT = (
    "tests/serialization/test_corruption.py",
    "tests/serialization/test_round_trip.py",
    "tests/runtime/generate/test_memory.py",
    "tests/runtime/test_interrupts.py",
)

#: Class -> what a user can take from it, in the page's order.
CLASSES = {
    "InvalidInputError": "The call does not fit the program. Nothing was sent to the GPU and no "
    "state has changed: mend the arguments and call again.",
    "EvaluationError": "Expressions divide by zero; calls of a method give it as an "
    "`InvalidInputError`.",
    "OutOfDeviceMemoryError": "There is no room on the device. What was loaded before goes on.",
    "DeviceLostError": "The device is gone: `program.reload()`, then restore a snapshot that was "
    "taken with `on_host=True`.",
    "UnsupportedDeviceError": "No adapter, or one that lacks what the program requires. Nothing "
    "was allocated.",
    "NotDelegatedError": "The file needs ExecuTorch's own runtime.",
    "BridgeError": "The bridge into ExecuTorch's runtime cannot be set up.",
    "ProfilingError": "Times could not be read. The step has run.",
    "WgpuDelegateError": "Something else, often a fault of the driver; the base of all others.",
    "InvalidProgramError": "The file is not what it claims to be: export it again, or get it "
    "again. The first broken invariant is named.",
}

_VARIABLE = re.compile(r"\s+")


@dataclass(frozen=True)
class Site:
    """A ``raise`` in the source: class, file, first and last line, and the message with names in
    braces for what varies."""

    kind: str
    file: str
    first: int
    last: int
    template: str

    @property
    def digest(self) -> str:
        """Identifies it while lines move."""
        text = "\n".join([self.kind, self.file, self.template])
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def sites() -> list[Site]:
    """Every place in the source that raises one of our errors."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "generated" in path.parts:
                continue
            name = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                found += _sites_of(node, name)
    return found


def _sites_of(node: ast.AST, file: str) -> Iterator[Site]:
    call: ast.expr | None = None
    if isinstance(node, ast.Raise):
        call = node.exc
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fail":
        call = node
    if not isinstance(call, ast.Call):
        return
    either = isinstance(call.func, ast.IfExp)
    for kind in (call.func.body, call.func.orelse) if either else (call.func,):
        name = kind.id if isinstance(kind, ast.Name) else ""
        if name in CLASSES or (name == "fail" and len(call.args) == 2):
            template = ": ".join(_template(argument) for argument in call.args)
            real = "InvalidProgramError" if name == "fail" else name
            if file == "serialization/verify_base.py" and template == "{place}: {message}":
                continue  # fail itself
            yield Site(real, file, call.lineno, call.end_lineno or call.lineno, template)


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return "{" + ast.unparse(node) + "}"


# -- what the tests provoke -----------------------------------------------------------------


def record() -> dict[tuple[str, int], str]:
    """(file, line) -> a message, from a run of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "messages"
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"),
                *("-p", "executorch_wgpu.scripts.error_recorder", *TESTS),
                *(f"--ignore={path}" for path in LEFT_OUT),
            ],
            cwd=ROOT,
            env={**os.environ, "EXECUTORCH_WGPU_RECORD_ERRORS": str(output)},
        )
        entries = [json.loads(line) for line in output.read_text().splitlines()]
    return {(file, line): message for file, line, message in entries}


def page(messages: dict[tuple[str, int], str]) -> str:
    """The page. Where there is no new message, the old page's stays."""
    groups: dict[str, list[tuple[Site, str]]] = defaultdict(list)
    old = known_messages() if PAGE.exists() else {}
    for site in sites():
        inside = [
            text
            for (file, line), text in messages.items()
            if file == site.file and site.first <= line <= site.last
        ]
        groups[site.kind].append((site, min(inside, key=len, default="")))
    lines = [
        "# Every way a call can fail",
        "",
        "Written by `python -m executorch_wgpu.scripts.error_table --write`: what the source",
        "raises, with a message that the tests provoke. A message in *italics* is the source's own",
        "text, with names in braces for what varies, where no test gets there.",
        "",
        "All are `WgpuDelegateError`s. A `FileNotFoundError` or another `OSError` comes from a",
        "file that cannot be opened, a `TypeError` from an argument that is no path and no bytes.",
    ]
    for kind, meaning in CLASSES.items():
        if not groups[kind]:
            continue
        lines += ["", f"## {kind}", "", *_wrapped(meaning), "", "| message | from |", "|---|---|"]
        for site, example in groups[kind]:
            template = f"*{_cell(site.template)}*"
            shown = _cell(example) if example else old.get(site.digest, template)
            lines.append(f"| {shown} <!-- {site.digest} --> | `{site.file}` |")
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 100)


def _cell(text: str) -> str:
    """A message in a table: one line, paths of this machine and addresses taken out."""
    text = _VARIABLE.sub(" ", text).strip()
    text = re.sub(r"(/[\w.\-]+){2,}/", ".../", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x...", text)
    if len(text) > 420:
        text = text[:420] + " ..."
    for old, new in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_")):
        text = text.replace(old, new)
    return text


def listed() -> set[str]:
    """Digests of the places that the page names."""
    return set(re.findall(r"<!-- ([0-9a-f]{10}) -->", PAGE.read_text()))


def known_messages() -> dict[str, str]:
    """Digest -> the cell that the page has."""
    found = re.findall(r"^\| (.*) <!-- ([0-9a-f]{10}) --> \|", PAGE.read_text(), re.M)
    return {digest: cell for cell, digest in found}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="run the tests and write the page")
    parser.add_argument("--update", action="store_true", help="write the page, run nothing")
    options = parser.parse_args()
    if options.write or options.update:
        PAGE.write_text(page(record() if options.write else {}))
    missing = [site for site in sites() if site.digest not in listed()]
    for site in missing:
        print(f"not in the page: {site.file}:{site.first}: {site.template}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
