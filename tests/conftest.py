"""The devices that all tests share."""

from __future__ import annotations

from typing import Any

import pytest

from executorch_wgpu.runtime.device import default_device


@pytest.fixture(scope="session")
def device() -> Any:
    """The default device. Without an adapter this fails rather than skips: a run that tested
    nothing must not look like one that passed (scripts/test installs a software adapter)."""
    return default_device()


@pytest.fixture(scope="session", params=["subgroups", "plain"])
def each_device(request: pytest.FixtureRequest, device: Any) -> Any:
    """The default device, then one created without optional features: both routes are tested."""
    if request.param == "plain":
        return device.adapter.request_device_sync(required_features=[], required_limits={})
    if not {"subgroup", "subgroups"} & set(device.features):
        pytest.skip("the adapter has no subgroups")
    return device
