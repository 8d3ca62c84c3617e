"""Errors of the file format. Every public call of the package raises a subclass of
:class:`WgpuDelegateError` or a ``TypeError``/``ValueError`` named after it."""

from __future__ import annotations


class WgpuDelegateError(Exception):
    """Base of every error that executorch_wgpu raises on purpose."""


class InvalidProgramError(WgpuDelegateError, ValueError):
    """A file or a dispatch list is not what it claims to be: wrong magic, truncated, an index
    out of range, a newer format. The message names the place and the numbers."""
