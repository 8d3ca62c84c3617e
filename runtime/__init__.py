"""Replays exported programs on a GPU, without torch: ``Runtime``, ``Program``, ``Method``."""

from __future__ import annotations

from .errors import (
    DeviceLostError,
    InvalidInputError,
    InvalidProgramError,
    NotDelegatedError,
    OutOfDeviceMemoryError,
    ProfilingError,
    UnsupportedDeviceError,
    WgpuDelegateError,
)
from .metadata import Dim, IntInfo, MethodMetadata, TensorInfo
from .program import Method, Program, Runtime, State

__all__ = [
    "DeviceLostError",
    "Dim",
    "IntInfo",
    "InvalidInputError",
    "InvalidProgramError",
    "Method",
    "MethodMetadata",
    "NotDelegatedError",
    "OutOfDeviceMemoryError",
    "ProfilingError",
    "Program",
    "Runtime",
    "State",
    "TensorInfo",
    "UnsupportedDeviceError",
    "WgpuDelegateError",
]
