"""Profiling that the environment asked for: what is reported when the process ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .profiler import Profiler


def join(profiler: Profiler) -> None:
    """Report what this profiler collects when the process ends."""
