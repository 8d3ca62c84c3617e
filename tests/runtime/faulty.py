"""A process whose Vulkan driver fails when it is told to: lavapipe behind faulty_driver.c.

output = run(BODY)      # Python, with ``fail(which, bytes=0)``, ``device`` and the imports below
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: What of the driver fails, see faulty_driver.c.
SUBMIT, WAIT, ALLOCATE = 1, 2, 4

_ICD = "lvp_icd*.json"
_FOLDERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")

_PRELUDE = """
import ctypes, gc, sys
sys.path.insert(0, {here!r})
import numpy as np
from programs import accumulator, chain
from executorch_wgpu.runtime import *
from executorch_wgpu.runtime.device import request_device
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.runtime.memory import ledger_of
faulty = ctypes.CDLL({library!r})
faulty.faulty_set.argtypes = [ctypes.c_int, ctypes.c_int64]
def fail(which, bytes=0):
    faulty.faulty_set(which, bytes)
SUBMIT, WAIT, ALLOCATE = 1, 2, 4
device = request_device("cpu")
"""


def real_driver() -> str | None:
    """lavapipe's library, None where it is not installed."""
    for folder in _FOLDERS:
        for path in sorted(Path(folder).glob(_ICD)):
            return str(json.loads(path.read_text())["ICD"]["library_path"])
    return None


@pytest.fixture(scope="session")
def faulty_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built driver."""
    compiler, real = shutil.which("cc"), real_driver()
    if compiler is None or real is None:
        pytest.skip("needs a C compiler and lavapipe")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libfaulty.so"
    source = HERE / "faulty_driver.c"
    command = [compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    icd = {"api_version": "1.1.0", "library_path": str(library)}
    (folder / "icd.json").write_text(json.dumps({"ICD": icd, "file_format_version": "1.0.0"}))
    return folder


def run(folder: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``body`` on the driver in ``folder``; the process must end well."""
    prelude = _PRELUDE.format(here=str(HERE), library=str(folder / "libfaulty.so"))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", prelude + body],
        capture_output=True,
        text=True,
        errors="replace",
        env={
            **os.environ,
            "VK_DRIVER_FILES": str(folder / "icd.json"),
            "VK_ICD_FILENAMES": str(folder / "icd.json"),
            "FAULTY_DRIVER_REAL": real_driver() or "",
            "EXECUTORCH_WGPU_API": "wgpu",
            **environment,
        },
    )


def lines(done: subprocess.CompletedProcess[str]) -> Iterator[str]:
    """What it printed; fails where it did not end well."""
    assert done.returncode == 0, done.stderr[-3000:]
    yield from done.stdout.splitlines()
