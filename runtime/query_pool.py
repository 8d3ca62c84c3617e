"""Timestamp queries of one graph."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .device import is_native
from .errors import ProfilingError
from .submission import Submitter

#: What WebGPU allows in one query set.
MAX_QUERIES_PER_SET = 4096

_COPY_SRC, _QUERY_RESOLVE = 0x4, 0x200
_TICK_BYTES = 8


class WebGPUQueryPool:
    """Begin and end timestamps for up to ``capacity`` passes of a step, over as many query sets as
    that takes.

    Order of calls in a step: :meth:`reset`, :meth:`next_pass` for each pass, :meth:`resolve` on
    the command encoder, and after the submission :meth:`read`.

    Args:
        device: a ``GPUDevice`` with the feature ``timestamp-query``.
        submitter: its submitter.
        capacity: passes in a step, at least 1.
        label: names the GPU objects and opens error messages.
    """

    def __init__(self, device: Any, submitter: Submitter, capacity: int, label: str) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self.period_ns = timestamp_period_ns(device)
        self._label = label
        self._used = 0
        queries = 2 * capacity
        self._sets = [
            device.create_query_set(
                label=f"{label}: timestamps",
                type="timestamp",
                count=min(MAX_QUERIES_PER_SET, queries - first),
            )
            for first in range(0, queries, MAX_QUERIES_PER_SET)
        ]
        self._resolved = device.create_buffer(
            label=f"{label}: timestamps",
            size=queries * _TICK_BYTES,
            usage=_QUERY_RESOLVE | _COPY_SRC,
        )
        self._staging = submitter.staging(queries * _TICK_BYTES, f"{label}: timestamps")

    def reset(self) -> None:
        """Starts a step: all queries are free."""
        self._used = 0

    def next_pass(self) -> dict[str, Any]:
        """``timestamp_writes`` for the next pass.

        Raises:
            ProfilingError: all ``capacity`` passes are taken.
        """
        if self._used >= self.capacity:
            raise ProfilingError(
                f"{self._label}: the query pool holds {self.capacity} passes and all are taken"
            )
        which, first = divmod(2 * self._used, MAX_QUERIES_PER_SET)
        self._used += 1
        return {
            "query_set": self._sets[which],
            "beginning_of_pass_write_index": first,
            "end_of_pass_write_index": first + 1,
        }

    def resolve(self, encoder: Any) -> None:
        """Records, after the passes, the copy of their timestamps to where they can be read."""
        queries = 2 * self._used
        for which, first in enumerate(range(0, queries, MAX_QUERIES_PER_SET)):
            count = min(MAX_QUERIES_PER_SET, queries - first)
            encoder.resolve_query_set(
                self._sets[which], 0, count, self._resolved, first * _TICK_BYTES
            )
        if queries:
            encoder.copy_buffer_to_buffer(
                self._resolved, 0, self._staging.buffer, 0, queries * _TICK_BYTES
            )

    def read(self, token: int) -> list[tuple[int, int]]:
        """(begin, end) of each pass in ticks (times ``period_ns``: nanoseconds), after the
        submission of ``token``.

        Raises:
            ProfilingError: the device wrote no timestamps.
        """
        if not self._used:
            return []
        size = 2 * self._used * _TICK_BYTES
        with self._staging.mapped(token, size) as data:
            ticks = np.frombuffer(data, np.uint64).copy()
        if not ticks.any():
            raise ProfilingError(
                f"{self._label}: the device wrote none of {self._used} pairs of timestamps"
            )
        return [(int(begin), int(end)) for begin, end in ticks.reshape(-1, 2)]


def timestamp_period_ns(device: Any) -> float:
    """Nanoseconds of one tick: wgpu-native hands out raw ticks, Dawn nanoseconds."""
    if not is_native(device):
        return 1.0
    bindings = importlib.import_module("wgpu.backends.wgpu_native._ffi")
    return float(bindings.lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
