"""A step that is on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import WgpuDelegateError
from .readback import Layout
from .submission import Staging

if TYPE_CHECKING:
    from .graph import WebGPUGraph


class PendingStep:
    """A submitted step of a graph, from :meth:`.graph.WebGPUGraph.submit`."""

    def __init__(self, graph: WebGPUGraph, layout: Layout, torch: bool) -> None:
        self._graph, self.layout, self.torch = graph, layout, torch
        self.token = 0
        self.staging: Staging | None = None
        self._results: list[Any] | None = None
        self.taken = False

    def result(self) -> list[Any]:
        """Waits for this step (not for later ones) and returns its outputs, as ``execute`` does.
        A second call returns the same list.

        Raises:
            DeviceLostError, WgpuDelegateError: the results could not be read.
        """
        if self._results is None:
            if self.taken:
                raise WgpuDelegateError(f"{self._graph.label}: this step's results were lost")
            self.taken = True
            self._results = self._graph.collect(self)
        return self._results

    def __del__(self) -> None:
        # A step that nobody collects has run all the same; its staging buffer is free again.
        if not self.taken:
            self._graph.release(self)
