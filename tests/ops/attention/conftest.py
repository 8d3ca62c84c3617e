"""One device for the tests of this folder; the folder above holds the harness."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(scope="session")
def device() -> Any:
    from executorch_wgpu.runtime import device as device_module
    from executorch_wgpu.runtime.errors import UnsupportedDeviceError

    try:
        return device_module.default_device()
    except UnsupportedDeviceError as error:
        pytest.skip(str(error))
