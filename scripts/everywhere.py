"""Runs the GPU tests on every driver and WebGPU implementation that can be had here.

    scripts/test --everywhere [--only NAME] [--write] [PYTEST ARGUMENTS]

* lavapipe (Mesa) and SwiftShader (from Debian's package ``chromium``, taken into the cache where it
  is not installed), both on the CPU, and the machine's GPU where it has one;
* with subgroups and without (``EXECUTORCH_WGPU_SUBGROUPS=0``);
* on wgpu-native (naga) and on Dawn (Tint).

lavapipe's subgroups have 8 lanes, SwiftShader's 4, NVIDIA's 32: results must not depend on it.
``--write`` puts the table into the README.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from executorch_wgpu.runtime.bridge.compile import cache_folder

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- everywhere: begin -->", "<!-- everywhere: end -->"
HEADER = (
    "| driver | WebGPU | subgroups | passed | skipped | failed | run on |\n"
    "|---|---|---|---|---|---|---|"
)

TESTS = ("tests/ops", "tests/runtime", "tests/test_layer.py", "tests/test_templates.py")

_ICD_FOLDERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")


@dataclass(frozen=True)
class Place:
    """Where the tests run: a driver, an implementation, and what is switched off. ``icd``: the
    driver's manifest, None for the system's own choice."""

    driver: str
    api: str
    subgroups: bool
    icd: Path | None
    more: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as ``swiftshader-dawn-plain``."""
        api = "dawn" if self.api == "wgpudawn" else "native"
        return f"{self.driver}-{api}" + ("" if self.subgroups else "-plain")

    def environment(self) -> dict[str, str]:
        """Variables that put a process there."""
        found = {"EXECUTORCH_WGPU_API": self.api, **self.more}
        if self.icd is not None:
            found |= {"VK_DRIVER_FILES": str(self.icd), "VK_ICD_FILENAMES": str(self.icd)}
        if not self.subgroups:
            found["EXECUTORCH_WGPU_SUBGROUPS"] = "0"
        return found


@dataclass(frozen=True)
class Outcome:
    """What a run came to. ``adapter``: as the driver calls it."""

    place: Place
    adapter: str
    passed: int
    skipped: int
    failed: int
    seconds: float

    def row(self, day: str) -> str:
        """A row of the table."""
        api = "Dawn" if self.place.api == "wgpudawn" else "wgpu-native"
        on = "on" if self.place.subgroups else "off"
        return (
            f"| {self.adapter} | {api} | {on} | {self.passed} | {self.skipped} | {self.failed} "
            f"| {day} |"
        )


def lavapipe() -> Path | None:
    """The manifest of Mesa's software driver."""
    for folder in _ICD_FOLDERS:
        for path in sorted(Path(folder).glob("lvp_icd*.json")):
            return path
    return None


def swiftshader() -> Path | None:
    """A manifest of SwiftShader: of an installed chromium, else of Debian's package, unpacked into
    the cache. None where there is neither."""
    installed = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
    if installed.is_file():
        return installed
    folder = cache_folder() / "swiftshader"
    manifest = folder / "icd.json"
    if manifest.is_file():
        return manifest
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    print("taking SwiftShader from Debian's package chromium (about 90 MB)", flush=True)
    with tempfile.TemporaryDirectory() as work:
        if subprocess.run(["apt-get", "download", "-q", "chromium"], cwd=work).returncode:
            return None
        [package] = Path(work).glob("chromium_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, "files"], cwd=work, check=True)
        [library] = Path(work, "files").rglob("libvk_swiftshader.so")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, folder / library.name)
    icd = {"library_path": str(folder / library.name), "api_version": "1.1.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return manifest


_PROBE = """
from executorch_wgpu.runtime.device import request_device
info = request_device(%r).adapter.info
print(info["device"])
"""


def adapter_of(place: Place) -> str | None:
    """What the driver calls its adapter there; None where there is none."""
    kind = "gpu" if place.driver == "gpu" else None
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROBE % kind],
        capture_output=True,
        text=True,
        env={**os.environ, **place.environment()},
    )
    return done.stdout.strip() or None if done.returncode == 0 else None


def places() -> list[Place]:
    """All that can be had on this machine, the cheap ones first."""
    drivers = {"lavapipe": lavapipe(), "swiftshader": swiftshader()}
    found = []
    for driver, icd in drivers.items():
        if icd is not None:
            # Dawn takes no Mesa 22: it lacks a feature that Dawn wants.
            apis = ("wgpu", "wgpudawn") if driver == "swiftshader" else ("wgpu",)
            found += [Place(driver, api, on, icd) for api in apis for on in (True, False)]
    found += [Place("gpu", api, on, None) for api in ("wgpu", "wgpudawn") for on in (True, False)]
    return found


def run(place: Place, adapter: str, arguments: Sequence[str]) -> Outcome:
    """Runs the tests there."""
    folder = ROOT / "build" / "everywhere"
    folder.mkdir(parents=True, exist_ok=True)
    report, log = folder / f"{place.name}.xml", folder / f"{place.name}.log"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    with open(log, "w") as output:
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider"),
                *("--tb=short", "-rfE", f"--junitxml={report}", *arguments),
            ],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **place.environment()},
        )
    seconds = time.monotonic() - start
    if not report.is_file():
        return Outcome(place, adapter, 0, 0, 1, seconds)  # the process ended early
    counts = {"tests": 0, "skipped": 0, "failures": 0, "errors": 0}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for key in counts:
            counts[key] += int(suite.get(key, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - counts["skipped"] - failed
    return Outcome(place, adapter, passed, counts["skipped"], failed, seconds)


def write_table(rows: Sequence[str]) -> None:
    """Replaces rows of the README's table where driver, WebGPU and subgroups are equal, and adds
    the others."""
    text = README.read_text()
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    old = [line for line in table.strip().splitlines() if line.startswith("|")][2:]

    def key(row: str) -> tuple[str, ...]:
        return tuple(cell.strip() for cell in row.split("|")[1:4])

    merged = {key(row): row for row in [*old, *rows]}
    README.write_text(
        before + BEGIN + "\n" + "\n".join([HEADER, *merged.values()]) + "\n" + END + after
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="scripts/test --everywhere", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--only", action="append", help="a place's name, may be repeated")
    parser.add_argument("--list", action="store_true", help="names of the places, nothing is run")
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    options, arguments = parser.parse_known_args()
    chosen = [p for p in places() if not options.only or p.name in options.only]
    outcomes = []
    for place in chosen:
        adapter = adapter_of(place)
        if options.list:
            print(f"{place.name}: {adapter or 'not here'}")
            continue
        if adapter is None:
            print(f"{place.name}: not here")
            continue
        print(f"{place.name}: {adapter} ...", flush=True)
        outcome = run(place, adapter, arguments or TESTS)
        outcomes.append(outcome)
        print(
            f"{place.name}: {outcome.passed} passed, {outcome.skipped} skipped, "
            f"{outcome.failed} failed, {outcome.seconds:.0f} s "
            f"(build/everywhere/{place.name}.log)",
            flush=True,
        )
    if options.list:
        return 0
    rows = [outcome.row(time.strftime("%Y-%m-%d")) for outcome in outcomes]
    print("\n".join([HEADER, *rows]))
    if options.write:
        write_table(rows)
    return 1 if not outcomes or any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
