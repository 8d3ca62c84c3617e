"""The devices that all tests share, and the check of every kernel that they render."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from executorch_wgpu.runtime.device import default_device

# Shells start jobs in the background with Ctrl-C ignored, which tests that press it wait for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def memory_model() -> Iterator[None]:
    """Every kernel that any test renders, whatever the operator, its variant and its parameters, is
    one in which no workgroup reads what another writes."""
    try:
        from executorch_wgpu.ops import templates
    except ImportError:  # no jinja2: nothing is rendered here
        yield
        return
    from executorch_wgpu.scripts.memory_model import problems_of

    render, seen = templates.render, set[int]()

    def checked(template: str, *args: Any) -> str:
        text = render(template, *args)
        if hash(text) not in seen:
            seen.add(hash(text))
            problems = problems_of(text)
            assert not problems, (template, problems)
        return text

    templates.render = checked
    yield
    templates.render = render


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
