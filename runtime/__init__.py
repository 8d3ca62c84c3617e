"""Replays exported programs on a GPU, without torch: ``Runtime``, ``Program``, ``Method``."""

from __future__ import annotations

from .boundary import FED_BACK
from .errors import (
    DeviceLostError,
    InvalidInputError,
    InvalidProgramError,
    NotDelegatedError,
    OutOfDeviceMemoryError,
    ProfilingError,
    SoftwareAdapterWarning,
    UnsupportedDeviceError,
    WgpuDelegateError,
)
from .generate import TextGenerator
from .metadata import Dim, IntInfo, MethodMetadata, TensorInfo
from .program import Method, PendingCall, Program, Runtime
from .states import Snapshot, State

__all__ = [
    "FED_BACK",
    "DeviceLostError",
    "Dim",
    "IntInfo",
    "InvalidInputError",
    "InvalidProgramError",
    "Method",
    "MethodMetadata",
    "NotDelegatedError",
    "OutOfDeviceMemoryError",
    "PendingCall",
    "ProfilingError",
    "Program",
    "Runtime",
    "Snapshot",
    "SoftwareAdapterWarning",
    "State",
    "TensorInfo",
    "TextGenerator",
    "UnsupportedDeviceError",
    "WgpuDelegateError",
]
