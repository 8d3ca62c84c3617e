"""Devices with and without the optional feature that the matmul kernels have a route for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from executorch_wgpu.runtime.device import request_device
from executorch_wgpu.runtime.errors import UnsupportedDeviceError

sys.path.insert(0, str(Path(__file__).parents[1]))  # the harness


def _device() -> Any:
    try:
        return request_device()
    except UnsupportedDeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def device() -> Any:
    """Everything that the adapter has."""
    return _device()


@pytest.fixture(scope="session", params=["subgroups", "plain"])
def each_device(request: pytest.FixtureRequest, device: Any) -> Any:
    """A device with subgroups, then one created without them."""
    if request.param == "plain":
        return device.adapter.request_device_sync(required_features=[], required_limits={})
    if not {"subgroup", "subgroups"} & set(device.features):
        pytest.skip("the adapter has no subgroups")
    return device
