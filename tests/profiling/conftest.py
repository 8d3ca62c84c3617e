"""A device with timestamps for the tests of profiling; they skip where it has none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

# Programs made by hand.
sys.path.append(str(Path(__file__).parents[1] / "runtime"))


@pytest.fixture
def timed(device: Any) -> Any:
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp-query here")
    return device
