"""A device with timestamps for the tests of profiling; they skip where it has none."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def timed(device: Any) -> Any:
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp-query here")
    return device
