"""The time of a step on the GPU as it runs when nobody profiles: all dispatches in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import WgpuDelegateError, gpu_errors
from ..query_pool import timestamp_period_ns

if TYPE_CHECKING:
    from ..graph import WebGPUGraph

_QUERY_RESOLVE, _COPY_SRC = 0x200, 0x4


class OnePass:
    """Times steps of a graph with a timestamp at either end of their pass.

    Between dispatches there is what there is without profiling: a dispatch that needs another's
    results waits for it, others overlap. States are changed as by ``execute``.

    Args:
        graph: on a device with the feature ``timestamp-query``.

    Raises:
        WgpuDelegateError: the device has no timestamps.
    """

    def __init__(self, graph: WebGPUGraph) -> None:
        if "timestamp-query" not in graph.device.features:
            raise WgpuDelegateError(f"{graph.label}: the device has no timestamps")
        self._graph = graph
        device = graph.device
        self._period = timestamp_period_ns(device)
        with gpu_errors(graph.label, "creating two timestamps"):
            self._queries = device.create_query_set(type="timestamp", count=2)
            self._buffer = device.create_buffer(
                label=f"{graph.label}: timestamps", size=16, usage=_QUERY_RESOLVE | _COPY_SRC
            )

    def measure(self, inputs: Sequence[object]) -> float:
        """One step, in nanoseconds. Its outputs are not read back.

        The arguments are those of ``WebGPUGraph.execute``; a step by ``execute`` has to have run
        with them, whose uploads and live scalars are used.

        Raises:
            InvalidInputError, DeviceLostError, WgpuDelegateError.
        """
        begin, end = self._graph.again_in(inputs, self._run)
        return max(end - begin, 0) * self._period

    def _run(self, record: Callable[[Any], None]) -> tuple[int, int]:
        """Ticks at either end of the pass."""
        device = self._graph.device
        with gpu_errors(self._graph.label, "timing a step"):
            encoder = device.create_command_encoder()
            compute = encoder.begin_compute_pass(
                timestamp_writes={
                    "query_set": self._queries,
                    "beginning_of_pass_write_index": 0,
                    "end_of_pass_write_index": 1,
                }
            )
            record(compute)
            compute.end()
            encoder.resolve_query_set(self._queries, 0, 2, self._buffer, 0)
            device.queue.submit([encoder.finish()])
            data = device.queue.read_buffer(self._buffer)
        begin, end = (int(tick) for tick in np.frombuffer(data, np.uint64))
        return begin, end
