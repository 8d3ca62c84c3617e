"""Compiles WGSL with Tint, the compiler of Chrome and Dawn, without any GPU or driver.

``wgpudawn`` has a Null backend: a device with WebGPU's default limits on which shader modules and
pipelines are compiled and validated in full, and nothing computes. It runs in a process of its
own: the environment variable that picks the backend is read once, and two WebGPU libraries in one
process are asking for trouble.

>>> tint.validate([tint.Source(wgsl, ("subgroups",), {"COLUMNS": 64})])
[None]
>>> tint.validate(tint.sources_of(program))       # every kernel of a dispatch list
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executorch_wgpu.serialization.dispatch_list import Program


@dataclass(frozen=True)
class Source:
    """A kernel: WGSL without ``enable`` lines, the extensions it uses (``subgroups``, ``f16``),
    the values of its override constants, and what errors call it."""

    wgsl: str
    extensions: Sequence[str] = ()
    params: Mapping[str, float | bool] = field(default_factory=dict)
    label: str = ""
    entry_point: str = "main"


def available() -> bool:
    """Whether ``wgpudawn`` is installed."""
    return importlib.util.find_spec("wgpudawn") is not None


def sources_of(*programs: Program) -> list[Source]:
    """Each kernel of some programs once, labelled by the first dispatch that uses it."""
    found: dict[object, Source] = {}
    for program in programs:
        for step in program.steps:
            for route in step.routes:
                for dispatch in route.dispatches:
                    kernel = program.kernels[dispatch.kernel]
                    shader = program.shaders[kernel.shader]
                    key = (shader.sha256, kernel.entry_point, kernel.params)
                    params = {p.name: p.value for p in kernel.params}
                    source = Source(
                        shader.wgsl, shader.extensions, params, dispatch.label, kernel.entry_point
                    )
                    found.setdefault(key, source)
    return list(found.values())


def validate(sources: Sequence[Source], timeout: float = 300) -> list[str | None]:
    """What Tint and Dawn say of each kernel: None, or the label and the error.

    Errors of the compiler (barriers in non-uniform control flow, say), of the pipeline (an
    override constant without a value) and of WebGPU's default limits (16 KiB of workgroup memory,
    8 storage buffers, 256 threads) alike. Raises RuntimeError when the process itself fails."""
    request = json.dumps([asdict(source) for source in sources])
    done = subprocess.run(
        [sys.executable, __file__],
        input=request,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "WGPU_BACKEND_TYPE": "Null"},
    )
    if done.returncode:
        raise RuntimeError(f"wgpudawn's null device failed:\n{done.stderr[-4000:]}")
    errors: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return errors


def _serve() -> None:
    """The other process: sources as JSON on stdin, errors as one line of JSON on stdout."""
    import wgpudawn
    from wgpudawn.backends.dawn import extras

    # Subgroup matrices are experimental.
    extras.set_instance_extras(enable_toggles=["allow_unsafe_apis"])
    adapter = wgpudawn.gpu.request_adapter_sync()
    if adapter.info["backend_type"] != "Null":
        raise RuntimeError(f"not the null backend: {dict(adapter.info)}")
    optional = ("subgroups", "shader-f16", "chromium-experimental-subgroup-matrix")
    wanted = [f for f in optional if f in adapter.features]
    device = adapter.request_device_sync(required_features=wanted)
    errors: list[str | None] = []
    for source in json.load(sys.stdin):
        enables = "".join(f"enable {name};\n" for name in sorted(source["extensions"]))
        try:
            module = device.create_shader_module(code=enables + source["wgsl"])
            device.create_compute_pipeline(
                layout="auto",
                compute={
                    "module": module,
                    "entry_point": source["entry_point"],
                    "constants": source["params"],
                },
            )
            errors.append(None)
        except wgpudawn.GPUError as error:
            errors.append(f"{source['label']}: {error}")
    print(json.dumps(errors))


if __name__ == "__main__":
    _serve()
