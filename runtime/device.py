"""Adapters and devices: choosing one, asking what it can do, refusing what cannot compute.

Which adapter: the one passed in, else what wgpu picks as high-performance. wgpu's own environment
variables hold (``WGPUPY_WGPU_ADAPTER_NAME``: part of an adapter's summary;
``WGPU_BACKEND_TYPE``: ``Vulkan``, ``Metal``, ``D3D12``, ``OpenGL``). Without the package ``wgpu``,
or where ``EXECUTORCH_WGPU_API=wgpudawn`` says so, ``wgpudawn`` (the same API on Dawn) is used; a
device of either may be passed in (one of Dawn's that several threads are to use needs Dawn's
feature ``implicit-device-synchronization``). ``EXECUTORCH_WGPU_MATRIX_UNITS=1``: devices of
wgpudawn get matrix units, for programs that were exported to use them (see matrix_units.py).

Nothing is used in silence that cannot compute or computes slowly: null backends are refused, and
an adapter on the CPU that nobody asked for comes with a :class:`SoftwareAdapterWarning`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from executorch_wgpu.serialization.limits import DEFAULT_LIMITS, INTEGER_DOT, MATRIX_UNITS

from . import matrix_units
from .errors import SoftwareAdapterWarning, UnsupportedDeviceError

logger = logging.getLogger("executorch_wgpu")

#: Optional features that are switched on wherever the adapter has them. wgpu-native says
#: ``subgroup`` for what WebGPU calls ``subgroups``. Having ``timestamp-query`` on costs nothing
#: until a graph profiles, and lets all graphs of a process share one device.
_WANTED = (
    "subgroup",
    "subgroups",
    "shader-f16",
    "timestamp-query",
    # Dawn's devices are for one thread without it, and threads that share one crash the process.
    "implicit-device-synchronization",
)

#: Packages with the WebGPU API, in order of preference.
_PACKAGES = ("wgpu", "wgpudawn")

#: Kinds of adapters that can be asked for, and what messages call them.
_KINDS = {"gpu": "a GPU", "cpu": "an adapter that computes on the CPU"}

#: wgpu's own ways to name an adapter.
_ADAPTER_VARIABLES = ("WGPUPY_WGPU_ADAPTER_NAME", "WGPU_ADAPTER_NAME")

_NO_ADAPTER = (
    "no usable GPU adapter. On a machine without a GPU, Debian's and Ubuntu's packages "
    "mesa-vulkan-drivers and libvulkan1 bring a Vulkan driver that computes on the CPU; "
    "with a GPU, install its Vulkan driver. `executorch-wgpu devices` lists what is found"
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device or adapter offers, under WebGPU's names.

    ``features``: such as ``subgroups``; ``limits``: such as ``max-buffer-size`` in bytes.
    """

    features: frozenset[str]
    limits: Mapping[str, int]

    def lacks(self, features: Sequence[str], limits: Sequence[tuple[str, int]]) -> list[str]:
        """What is missing to meet the requirements, each in words with its numbers; empty when
        all are met. A ``min-`` limit (an alignment) is met by a smaller value."""
        missing = [f"feature '{name}'" for name in features if name not in self.features]
        for name, value in limits:
            have = self.limits.get(name)
            if have is None:
                missing.append(f"limit {name} of {value} (the device does not report it)")
            elif (have > value) if name.startswith("min-") else (have < value):
                missing.append(f"limit {name} of {value} (the device has {have})")
        return missing


def capabilities(device_or_adapter: Any) -> Capabilities:
    """The features and limits of a ``GPUDevice`` (what it was created with) or ``GPUAdapter``.
    Among the features are INTEGER_DOT where kernels built on dot4I8Packed are likely to pay, and
    MATRIX_UNITS where subgroup matrices are what kernels are written for."""
    adapter = getattr(device_or_adapter, "adapter", device_or_adapter)
    features = {"subgroups" if n == "subgroup" else n for n in device_or_adapter.features}
    if _multiplies_bytes(adapter):
        features.add(INTEGER_DOT)
    if matrix_units.offered(device_or_adapter):
        features.add(MATRIX_UNITS)
    limits = {name.replace("_", "-"): int(v) for name, v in device_or_adapter.limits.items()}
    return Capabilities(frozenset(features), limits)


def _multiplies_bytes(adapter: Any) -> bool:
    """Whether dot4I8Packed becomes one operation of the language that the driver takes: SPIR-V and
    HLSL have it, Metal's and GLSL do not. WebGPU does not tell. EXECUTORCH_WGPU_INTEGER_DOT, 0 or
    1, overrules."""
    said = os.environ.get("EXECUTORCH_WGPU_INTEGER_DOT")
    return said != "0" if said else adapter.info.get("backend_type") in ("Vulkan", "D3D12")


@dataclass(frozen=True, slots=True)
class AdapterDescription:
    """One adapter for people and scripts: ``summary`` in a line, ``info`` as WebGPU's adapter info
    plus ``backend_type`` and ``adapter_type``, and what it offers. ``usable`` is False for Dawn's
    null adapter, which compiles and computes nothing."""

    summary: str
    info: dict[str, Any]
    capabilities: Capabilities
    usable: bool


def describe_adapters() -> list[AdapterDescription]:
    """All adapters of this machine, empty when there is none."""
    with quiet_driver():
        adapters = _gpu().enumerate_adapters_sync()
    return [
        AdapterDescription(
            adapter.summary, dict(adapter.info), capabilities(adapter), not _is_null(adapter)
        )
        for adapter in adapters
    ]


def request_device(adapter: Any = None, *, label: str = "executorch-wgpu") -> Any:
    """A new ``GPUDevice`` with every limit of its adapter and the optional features in use here.

    Args:
        adapter: a ``GPUAdapter``, ``"gpu"`` or ``"cpu"``, part of an adapter's summary
            (``"NVIDIA"``), or None for the high-performance one.
        label: shown by GPU debuggers.

    Raises:
        UnsupportedDeviceError: there is no adapter, none of that name or kind, or only a null one.
    """
    with quiet_driver():
        adapter = _choose_adapter(adapter)
        if _is_null(adapter):
            raise UnsupportedDeviceError(
                f"adapter '{adapter.summary}' is a null backend that computes nothing: "
                f"{_NO_ADAPTER}"
            )
        try:
            device = _device_of(adapter, label)
        except RuntimeError as error:
            # Dawn's adapters give one device each.
            again = _same_adapter(adapter) if "consumed" in str(error) else None
            if again is None:
                raise UnsupportedDeviceError(
                    f"adapter '{adapter.summary}' gives no device: {error}"
                ) from error
            device = _device_of(again, label)
    logger.debug("device on %s", adapter.summary)
    return device


def _device_of(adapter: Any, label: str) -> Any:
    offered = adapter.limits
    more = matrix_units.features_of(adapter) if matrix_units.asked_for() else []
    return adapter.request_device_sync(
        label=label,
        required_features=sorted(
            {*more, *(name for name in _wanted() if name in adapter.features)}
        ),
        # Dawn gives the defaults where none is asked for, wgpu-native the adapter's.
        required_limits={name: offered[name] for name in DEFAULT_LIMITS if name in offered},
    )


def _same_adapter(adapter: Any) -> Any:
    """The adapter looked up anew, None where it is gone."""
    for found in _gpu().enumerate_adapters_sync():
        if found.summary == adapter.summary:
            return found
    return None


def _wanted() -> list[str]:
    """The optional features to switch on. ``EXECUTORCH_WGPU_SUBGROUPS=0`` leaves subgroups out, to
    tell a driver's fault in them from others: programs then take their plain routes."""
    if os.environ.get("EXECUTORCH_WGPU_SUBGROUPS") == "0":
        return [name for name in _WANTED if not name.startswith("subgroup")]
    return list(_WANTED)


def resolve_device(device: Any = None) -> Any:
    """The device to run on.

    Args:
        device: a ``GPUDevice``; a ``GPUAdapter``, ``"gpu"``, ``"cpu"`` or part of an adapter's
            summary, for a new device on it; or None for the device that this process shares.

    Raises:
        UnsupportedDeviceError: nothing usable.
    """
    if device is None:
        return default_device()
    if hasattr(device, "create_buffer"):
        if _is_null(getattr(device, "adapter", None)):
            raise UnsupportedDeviceError(
                f"the device passed in is on a null backend that computes nothing: {_NO_ADAPTER}"
            )
        return device
    return request_device(device)


_default: Any = None
_default_lock = threading.Lock()


def default_device() -> Any:
    """The ``GPUDevice`` that this process shares, created on the first call, and again when it
    has been lost. Thread-safe.

    Raises:
        UnsupportedDeviceError: nothing usable.
    """
    global _default
    with _default_lock:
        if _default is None or is_lost(_default):
            _default = request_device()
        return _default


def is_lost(device: Any) -> bool:
    """Whether ``device`` is gone. wgpu says so only when it is used."""
    from .submission import submitter_of  # which asks this module

    try:
        submitter_of(device).check_alive()
    except Exception as error:
        if "lost" in str(error).lower() or "destroyed" in str(error).lower():
            return True
        raise
    return False


def another_device(device: Any) -> Any:
    """A new ``GPUDevice`` on the adapter of ``device``, which may be lost; the process's shared one
    where ``device`` is that, on the adapter that is preferred now.

    Raises:
        UnsupportedDeviceError: the adapter is gone, and so are all others.
    """
    global _default
    with _default_lock:
        if device is _default:
            _default = request_device()
            return _default
    return request_device(_same_adapter(device.adapter))


def is_native(device: Any) -> bool:
    """True when ``device`` is wgpu-native's (naga), False for Dawn's (Tint) and for doubles."""
    return type(device).__module__.startswith("wgpu.backends.wgpu_native")


@contextmanager
def quiet_driver() -> Iterator[None]:
    """Keeps Mesa's EGL from printing that ``XDG_RUNTIME_DIR`` is not set, which it does each time
    adapters are looked for. The variable is set for that moment only, and only where missing."""
    if not sys.platform.startswith("linux") or os.environ.get("XDG_RUNTIME_DIR"):
        yield
        return
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


def _gpu() -> Any:
    """The API's entry point: that of the package which ``EXECUTORCH_WGPU_API`` names, else wgpu's,
    or wgpudawn's where wgpu is not installed."""
    named = os.environ.get("EXECUTORCH_WGPU_API", "")
    if named not in ("", *_PACKAGES):
        raise UnsupportedDeviceError(
            f"EXECUTORCH_WGPU_API is '{named}'; it can be {' or '.join(_PACKAGES)}"
        )
    for package in [named] if named else _PACKAGES:
        try:
            gpu = importlib.import_module(package).gpu
        except ImportError as error:
            missing = error
            continue
        if matrix_units.asked_for():
            matrix_units.prepare(package)
        return gpu
    raise UnsupportedDeviceError(
        f"no WebGPU: {missing}. Install it with: pip install {named or _PACKAGES[0]}"
    ) from missing


def _choose_adapter(adapter: Any) -> Any:
    if adapter is not None and not isinstance(adapter, str):
        return adapter
    gpu = _gpu()
    if adapter is None:
        found = _preferred(gpu)
        named = any(os.environ.get(name) for name in _ADAPTER_VARIABLES)
        if _is_cpu(found) and not named:
            # Seen on Mesa 22.3; docs/NUMERICS.md has what was measured.
            limited = "llvmpipe" in found.summary
            loops = (
                " It may end a kernel's loops after 65,535 rounds in all, which makes attention "
                "over tens of thousands of positions wrong."
            )
            warnings.warn(
                f"no GPU was found: '{found.summary}' computes on the CPU, slowly."
                f"{loops if limited else ''} With a GPU, "
                "install its Vulkan driver (`executorch-wgpu devices` lists what is found); "
                'pass device="cpu" where this is meant',
                SoftwareAdapterWarning,
                stacklevel=2,
            )
        return found
    adapters = gpu.enumerate_adapters_sync()
    if adapter.lower() in _KINDS:
        # OpenGL's last: they lack what most kernels need.
        adapters = sorted(adapters, key=_is_opengl)
        usable = [a for a in adapters if not _is_null(a)]
        fitting = [a for a in usable if _is_cpu(a) == (adapter.lower() == "cpu")]
        if adapter.lower() == "gpu" and fitting:
            preferred = _preferred(gpu)
            return fitting[0] if _is_cpu(preferred) or _is_null(preferred) else preferred
    else:
        fitting = [a for a in adapters if adapter.lower() in a.summary.lower()]
    if fitting:
        return fitting[0]
    names = ", ".join(f"'{candidate.summary}'" for candidate in adapters) or "none"
    kind = _KINDS.get(adapter.lower())
    what = f"{kind} was asked for and there is none" if kind else f"no adapter matches '{adapter}'"
    raise UnsupportedDeviceError(f"{what}; there are: {names}")


def _preferred(gpu: Any) -> Any:
    """What wgpu picks as the fastest adapter. Raises UnsupportedDeviceError."""
    try:
        found = gpu.request_adapter_sync(power_preference="high-performance")
    except (RuntimeError, ValueError) as error:
        raise UnsupportedDeviceError(f"{_NO_ADAPTER} ({error})") from error
    if found is None:
        raise UnsupportedDeviceError(_NO_ADAPTER)
    return found


def adapters_that_meet(
    features: Sequence[str], limits: Sequence[tuple[str, int]]
) -> list[AdapterDescription]:
    """This machine's adapters that offer what a program requires. Empty where none can be asked
    for."""
    try:
        adapters = describe_adapters()
    except Exception:  # only for the advice in another error's message
        return []
    return [a for a in adapters if a.usable and not a.capabilities.lacks(features, limits)]


def advice_for(features: Sequence[str], limits: Sequence[tuple[str, int]]) -> str:
    """What someone can do whose device lacks what a program requires."""
    fitting = [adapter.summary for adapter in adapters_that_meet(features, limits)]
    others = (
        f"Of this machine's adapters, {', '.join(map(repr, fitting))} would do (device=...)"
        if fitting
        else "No adapter of this machine would do"
    )
    return f"{others}; or export with smaller weights, a shorter context or fewer tokens a call"


def _is_cpu(adapter: Any) -> bool:
    info = getattr(adapter, "info", None) or {}
    return str(info.get("adapter_type", "")).lower() == "cpu"


def _is_opengl(adapter: Any) -> bool:
    info = getattr(adapter, "info", None) or {}
    return "opengl" in str(info.get("backend_type", "")).lower()


def _is_null(adapter: Any) -> bool:
    info = getattr(adapter, "info", None) or {}
    return str(info.get("backend_type", "")).lower() == "null"
