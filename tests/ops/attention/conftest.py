"""One device for the tests of this folder, and the path to what they share with others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

# tests/ops holds the harness, tests holds the compiler of tint.py.
sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]


@pytest.fixture(scope="session")
def device() -> Any:
    from executorch_wgpu.runtime import device as device_module
    from executorch_wgpu.runtime.errors import UnsupportedDeviceError

    try:
        return device_module.default_device()
    except UnsupportedDeviceError as error:
        pytest.skip(str(error))
