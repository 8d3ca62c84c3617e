"""The device's copy bandwidth: what a kernel that only moves memory could reach."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ..device import capabilities
from ..errors import WgpuDelegateError, gpu_errors
from ..query_pool import ShaderDuration, WebGPUQueryPool
from ..submission import Submitter, submitter_of

_WORKGROUP = 256
_SMALLEST, _LARGEST = 4 << 20, 512 << 20
_LONG_ENOUGH_NS = 2e6
_REPEATS = 5

_WGSL = """
@group(0) @binding(0) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> target_: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    target_[i] = source[i];
}
"""

_known: weakref.WeakKeyDictionary[Any, float | None] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def copy_bandwidth(device: Any) -> float | None:
    """Bytes read and written a second by a kernel that copies one buffer to another; the best of a
    few runs, on buffers large enough that caches do not serve them (up to 512 MiB each; a device
    that takes 2 ms for less is not asked for more). Measured once a device. None when it has no
    timestamps or no memory for it.
    """
    with _lock:
        if device not in _known:
            _known[device] = _measure(device)
        return _known[device]


def _measure(device: Any) -> float | None:
    if "timestamp-query" not in device.features:
        return None
    limits = capabilities(device).limits
    names = ("max-buffer-size", "max-storage-buffer-binding-size")
    largest = min(_LARGEST, *(limits.get(name, _LARGEST) for name in names))
    submitter = submitter_of(device)
    pool = WebGPUQueryPool(device, submitter, "copy bandwidth")
    pool.initialize(_REPEATS)
    best: float | None = None
    size = _SMALLEST
    try:
        with gpu_errors("copy bandwidth", "measuring"):
            module = device.create_shader_module(label="copy", code=_WGSL)
            pipeline = device.create_compute_pipeline(
                label="copy", layout="auto", compute={"module": module, "entry_point": "main"}
            )
            while size <= largest:
                duration = _copy(device, submitter, pool, pipeline, size)
                if duration > 0:
                    best = 2 * size * 1e9 / duration
                if duration >= _LONG_ENOUGH_NS:
                    break
                size *= 2
    except WgpuDelegateError:
        pass  # no memory for that size: what smaller ones gave stands
    return best


def _copy(
    device: Any, submitter: Submitter, pool: WebGPUQueryPool, pipeline: Any, size: int
) -> float:
    """Nanoseconds of the fastest of some copies of ``size`` bytes."""
    buffers = [device.create_buffer(label="copy", size=size, usage=0x80) for _ in range(2)]
    try:
        group = device.create_bind_group(
            label="copy",
            layout=pipeline.get_bind_group_layout(0),
            entries=[
                {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": size}}
                for i, buffer in enumerate(buffers)
            ],
        )
        groups = size // 16 // _WORKGROUP
        pool.reset(_REPEATS)
        encoder = device.create_command_encoder(label="copy")
        for i in range(_REPEATS):
            compute = encoder.begin_compute_pass(label="copy", timestamp_writes=pool.writes_for(i))
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(min(groups, 1 << 14), max(1, groups >> 14), 1)
            compute.end()
            pool.record(i, ShaderDuration(i, "copy"), after=i - 1)
        pool.resolve(encoder)
        pool.extract_results(submitter.submit(encoder.finish()))
        return min(r.duration_ns for r in pool.results())
    finally:
        for buffer in buffers:
            buffer.destroy()
