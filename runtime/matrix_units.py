"""Matrix units: asked for by ``EXECUTORCH_WGPU_MATRIX_UNITS=1``, and only through ``wgpudawn``.

WGSL's subgroup matrices are an experimental feature of Dawn, which offers those to who sets its
toggle ``allow_unsafe_apis``: what that lifts are checks of experimental features, bounds checks
stay. On NVIDIA Dawn holds f16 back as well, for faults of the driver in other uses of it
(``vulkan_enable_f16_on_nvidia``). Both are set before the first adapter of a process is looked for.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from .errors import UnsupportedDeviceError

VARIABLE = "EXECUTORCH_WGPU_MATRIX_UNITS"

#: What devices call it.
FEATURE = "chromium-experimental-subgroup-matrix"

#: Of Dawn: features that devices are to have, and what offers them.
_NEEDED = ("shader-f16", "subgroups", FEATURE)
_TOGGLES = ("allow_unsafe_apis", "vulkan_enable_f16_on_nvidia")

#: What kernels are written for.
_CONFIG = {
    "component_type": "f16",
    "result_component_type": "f32",
    "m": 16,
    "n": 16,
    "k": 16,
    "min_subgroup_size": 32,
    "max_subgroup_size": 32,
}


def asked_for() -> bool:
    """Whether the user wants matrix units: VARIABLE is neither empty nor 0."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def prepare(package: str) -> None:
    """Have the instance of ``package`` ("wgpu" or "wgpudawn") offer matrix units. Once in a
    process, before anything else asks the package for an adapter.

    Raises:
        UnsupportedDeviceError: it cannot, or it is too late.
    """
    if package != "wgpudawn":
        raise UnsupportedDeviceError(
            f"{VARIABLE} is set, and matrix units are reached through wgpudawn alone: install it "
            "(pip install wgpudawn) and set EXECUTORCH_WGPU_API=wgpudawn, or unset the variable"
        )
    helpers = importlib.import_module("wgpudawn.backends.dawn._helpers")
    if _TOGGLES[1] in helpers.dawn_instance_extras["adapter_toggles"][0]:
        return
    extras = importlib.import_module("wgpudawn.backends.dawn.extras")
    try:
        extras.set_instance_extras(enable_toggles=_TOGGLES)
    except RuntimeError as error:
        raise UnsupportedDeviceError(
            f"{VARIABLE} is set, but this process has asked wgpudawn for an adapter before, and "
            f"what it offers is settled then. Set the variable before that ({error})"
        ) from error


def features_of(adapter: Any) -> list[str]:
    """The features to switch on for matrix units on an adapter of ``wgpudawn``.

    Raises:
        UnsupportedDeviceError: it has none that kernels are written for.
    """
    if not offered(adapter):
        raise UnsupportedDeviceError(
            f"{VARIABLE} is set, and adapter '{adapter.summary}' has no matrix units that multiply "
            "f16 matrices of 16 x 16 by 16 x 16 in subgroups of 32 lanes with f32 sums. Unset it: "
            "the plain kernels run everywhere"
        )
    return list(_NEEDED)


def offered(device_or_adapter: Any) -> bool:
    """Whether a device has, or an adapter offers, what kernels for matrix units are written for."""
    if FEATURE not in device_or_adapter.features:
        return False
    adapter = getattr(device_or_adapter, "adapter", device_or_adapter)
    try:
        extras = importlib.import_module("wgpudawn.backends.dawn.extras")
        configs = extras.get_adapter_properties(adapter).get("subgroup_matrix_configs", [])
    except (ImportError, RuntimeError, TypeError, AttributeError):
        return False
    return any(_CONFIG.items() <= config.items() for config in configs)
