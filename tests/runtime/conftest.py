"""One device for all tests of the runtime; they skip where there is no adapter."""

from __future__ import annotations

from typing import Any

import pytest

from executorch_wgpu.runtime import device as device_module
from executorch_wgpu.runtime.errors import UnsupportedDeviceError


@pytest.fixture(scope="session")
def device() -> Any:
    try:
        return device_module.default_device()
    except UnsupportedDeviceError as error:
        pytest.skip(str(error))
