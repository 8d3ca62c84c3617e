"""A device for the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from executorch_wgpu.runtime.device import request_device
from executorch_wgpu.runtime.errors import UnsupportedDeviceError

sys.path.insert(0, str(Path(__file__).parents[1]))  # the harness


@pytest.fixture(scope="session")
def device() -> Any:
    try:
        return request_device()
    except UnsupportedDeviceError as error:
        pytest.skip(str(error))
