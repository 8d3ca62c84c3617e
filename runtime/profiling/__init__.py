"""Profiling: where the time of a method goes, on the GPU and around it.

Nothing here is loaded by a process that never profiles. ``docs/PROFILING.md`` says how to read the
numbers.

* :mod:`.stamps`: from a device's timestamps to times that can be trusted.
* :mod:`.records`: one profiled step, :class:`~.records.StepProfile`.
* :mod:`.profiler`: records and collects the steps of one graph.
* :mod:`.summary`: many steps: mean, p50, p95, min for each dispatch, kernel and module.
* :mod:`.session`: ``WEBGPU_TIMESTAMP_QUERY``: tables at exit, a trace.
* :mod:`.report`, :mod:`.trace`, :mod:`.etdump`, :mod:`.tables`, :mod:`.page`: the exports.
* :mod:`.bandwidth`: the device's copy bandwidth, to compare with.
"""
