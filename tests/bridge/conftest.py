"""Programs of ours in ExecuTorch's own runtime."""

from __future__ import annotations

from typing import Any

import pytest

import executorch_wgpu.runtime.executorch_bridge as bridge


@pytest.fixture(scope="session", autouse=True)
def registered() -> Any:
    """The bridge, registered."""
    bridge.register()
    return bridge
