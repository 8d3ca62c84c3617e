"""Steps that are on their way, and what they give back when they are over."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .errors import WgpuDelegateError, gpu_errors
from .readback import Layout, StagingPool
from .submission import Staging, Submitter

if TYPE_CHECKING:
    from .profiling.profiler import Profiler
    from .profiling.records import StepProfile

#: Steps that may be submitted and not collected.
MAX_IN_FLIGHT = 3


class Flight:
    """The steps of one graph that are submitted and not collected.

    Args:
        submitter: of the graph's device.
        label: the graph's.
        profiler: the graph's, None when it does not profile.

    Attributes:
        stagings: buffers that results are read back through.
        last_profile: of the last collected step.
    """

    def __init__(self, submitter: Submitter, label: str, profiler: Profiler | None = None) -> None:
        self.label, self.profiler = label, profiler
        self.stagings = StagingPool(submitter, label)
        self.last_profile: StepProfile | None = None
        self._submitter = submitter
        # A step that is collected, or dropped by its caller, is no longer in flight.
        self._steps: weakref.WeakSet[PendingStep] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._steps)

    def check_room(self) -> None:
        """Raises WgpuDelegateError when no more steps may be submitted."""
        if len(self._steps) >= MAX_IN_FLIGHT:
            raise WgpuDelegateError(
                f"{self.label}: {MAX_IN_FLIGHT} steps are in flight; collect the oldest with "
                "result() first"
            )

    def open(self, layout: Layout, torch: bool) -> PendingStep:
        """A step that is about to be submitted, with the staging buffer it needs.

        Raises:
            OutOfDeviceMemoryError: there was none, and none could be allocated.
        """
        step = PendingStep(self, layout, torch)
        if layout.size:
            step.staging = self.stagings.take(layout.size)
        return step

    def add(self, step: PendingStep) -> None:
        """The step has been submitted."""
        self._steps.add(step)

    def drop(self, step: PendingStep) -> None:
        """The step was not submitted: nobody is to collect it."""
        step.taken = True
        self.release(step)

    def release(self, step: PendingStep) -> None:
        """Takes back what a step held that is over."""
        staging, step.staging = step.staging, None
        if staging is not None:
            self.stagings.give(staging)
        self._steps.discard(step)

    def collect(self, step: PendingStep) -> list[Any]:
        """Waits for a step; see :meth:`PendingStep.result`."""
        results: list[Any] = []
        profiler, layout = self.profiler, step.layout
        try:
            with gpu_errors(self.label, "reading the outputs"):
                if step.staging is None:
                    self._submitter.wait(step.token)
                    if profiler is not None:
                        profiler.mark("wait")
                    results = layout.unpack(memoryview(b""), step.torch)
                else:
                    with step.staging.mapped(step.token, layout.size) as data:
                        if profiler is not None:
                            profiler.mark("wait")
                        results = layout.unpack(data, step.torch)
        finally:
            self.release(step)
        if profiler is not None:
            profiler.mark("readback")
            with gpu_errors(self.label, "reading the timestamps"):
                self.last_profile = profiler.collect(step.token)
        return results


class PendingStep:
    """A submitted step of a graph, from :meth:`.graph.WebGPUGraph.submit`."""

    def __init__(self, flight: Flight, layout: Layout, torch: bool) -> None:
        self._flight, self.layout, self.torch = flight, layout, torch
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
                raise WgpuDelegateError(f"{self._flight.label}: this step's results were lost")
            self.taken = True
            self._results = self._flight.collect(self)
        return self._results

    def __del__(self) -> None:
        # A step that nobody collects has run all the same; its staging buffer is free again.
        if not self.taken:
            self._flight.release(self)
