"""Matrix units are had on request, from wgpudawn, or refused with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from executorch_wgpu.runtime import matrix_units
from executorch_wgpu.runtime.device import capabilities, request_device
from executorch_wgpu.runtime.errors import UnsupportedDeviceError
from executorch_wgpu.serialization.limits import MATRIX_UNITS


def test_not_on_wgpu_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(matrix_units.VARIABLE, "1")
    monkeypatch.setenv("EXECUTORCH_WGPU_API", "wgpu")
    with pytest.raises(UnsupportedDeviceError, match="EXECUTORCH_WGPU_API=wgpudawn"):
        request_device()


@pytest.mark.parametrize("value", ["", "0"])
def test_not_asked_for(monkeypatch: pytest.MonkeyPatch, device: Any, value: str) -> None:
    monkeypatch.setenv(matrix_units.VARIABLE, value)
    assert not matrix_units.asked_for()
    assert MATRIX_UNITS not in capabilities(device).features


def configs(monkeypatch: pytest.MonkeyPatch, **changes: object) -> Any:
    """An adapter with the feature whose matrices differ by ``changes``."""
    config = {**matrix_units._CONFIG, **changes}
    extras = SimpleNamespace(get_adapter_properties=lambda a: {"subgroup_matrix_configs": [config]})
    monkeypatch.setattr(matrix_units.importlib, "import_module", lambda name: extras)
    return SimpleNamespace(
        features={matrix_units.FEATURE, "shader-f16"}, summary="some GPU", info={}, limits={}
    )


def test_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MATRIX_UNITS in capabilities(configs(monkeypatch)).features
    for changes in (
        {"component_type": "u8"},
        {"result_component_type": "f16"},
        {"k": 8},
        {"min_subgroup_size": 16},
        {"max_subgroup_size": 64},
    ):
        adapter = configs(monkeypatch, **changes)
        assert MATRIX_UNITS not in capabilities(adapter).features, changes
        with pytest.raises(UnsupportedDeviceError, match="'some GPU' has no matrix units"):
            matrix_units.features_of(adapter)
    adapter = configs(monkeypatch)
    assert "shader-f16" in matrix_units.features_of(adapter)
    adapter.features = {"shader-f16"}
    assert MATRIX_UNITS not in capabilities(adapter).features


_DAWN = """
from executorch_wgpu.runtime import device as module
from executorch_wgpu.runtime.errors import UnsupportedDeviceError
module._is_null = lambda adapter: False
def attempt():
    try:
        module.request_device()
    except UnsupportedDeviceError as error:
        print(error)
"""


def dawn(code: str) -> str:
    """What a process on Dawn's null device prints."""
    names = {"WGPU_BACKEND_TYPE": "Null", "EXECUTORCH_WGPU_API": "wgpudawn"}
    command = [sys.executable, "-c", _DAWN + code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, **names}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_of_dawn() -> None:
    """The null device has the feature and no matrices, so it is refused by name; asked for too
    late, the message says so; left out, nothing is changed."""
    pytest.importorskip("wgpudawn")
    variable = f"import os\nos.environ['{matrix_units.VARIABLE}'] = '1'\n"
    assert "Null backend" in dawn(f"{variable}attempt()")
    assert "has no matrix units" in dawn(f"{variable}attempt()\nattempt()")
    late = dawn(f"attempt()\n{variable}attempt()")
    assert "settled then" in late and "Set the variable before that" in late
    assert dawn("attempt()") == ""
