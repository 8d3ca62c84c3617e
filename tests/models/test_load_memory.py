"""Memory of a file with packed weights, from a fresh process: what its bytes take, as f32's do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from executorch_wgpu.scripts.quantization import quantization
from executorch_wgpu.scripts.recipes.packed import PackedLinear, pack, parse
from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.pte import PteFile
from executorch_wgpu.serialization.reader import deserialize

import exports

ROWS, LAYERS = 2048, 2

#: Loads and runs a small file first, so that the driver and the imports are there. Prints bytes:
#: the most that the process had above what it had before, after loading and after a run; the most
#: that Python objects took; what is on the device.
CHILD = """
import json, sys, tracemalloc
import numpy as np
from executorch_wgpu.runtime import Runtime
from executorch_wgpu.runtime.device import default_device
from executorch_wgpu.runtime.memory import ledger_of

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

runtime = Runtime.get()
first = runtime.load_program(sys.argv[1]).load_method("forward")
first.execute([np.zeros((5, 64), np.float32)])
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before, held = status("VmRSS"), ledger_of(default_device()).total
tracemalloc.start()
method = runtime.load_program(sys.argv[2]).load_method("forward")
found = {"load": status("VmHWM") - before, "python": tracemalloc.get_traced_memory()[1]}
found["device"] = ledger_of(default_device()).total - held
method.execute([np.ones((5, int(sys.argv[3])), np.float32)])
print(json.dumps({**found, "run": status("VmHWM") - before}))
"""


def save(path: Path, scheme: str, size: int) -> Path:
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        weight = torch.randn(size, size)
        if scheme == "f32":
            layers.append(nn.Linear(size, size, bias=False))
            layers[-1].weight = nn.Parameter(weight)
        else:
            parsed = parse(scheme)
            layers.append(PackedLinear(pack(weight, parsed), None, parsed.dynamic))
    module = nn.Sequential(*layers).eval()
    exports.lower(module, (torch.randn(5, size),)).to_executorch().save(str(path))
    return path


def measured(folder: Path, scheme: str) -> dict[str, int]:
    files = [save(folder / f"{size}.pte", scheme, size) for size in (64, ROWS)]
    command = [sys.executable, "-c", CHILD, *map(str, files), str(ROWS)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "clear_refs" in done.stderr:
        pytest.skip("this system does not let a process start its peak of memory anew")
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    with PteFile.open(files[1]) as file:
        program = deserialize(file.method("forward").sole_delegate().data)
    found["weights"] = sum(b.size for b in program.buffers if b.kind is BufferKind.CONSTANT)
    if scheme != "f32":
        assert found["weights"] == sum(row["bytes"] for row in quantization(program))
    return found


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    return measured(tmp_path_factory.mktemp("f32"), "f32")


#: scheme -> bytes of a layer's scales
SCHEMES = {"4w:32": ROWS * ROWS // 32 * 2, "8da4w:128": ROWS * ROWS // 128 * 4}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_weight_is_expanded(scheme: str, floats: dict[str, int], tmp_path: Path) -> None:
    found = measured(tmp_path, scheme)
    # On the device: codes and scales, and little beside them.
    assert found["weights"] == LAYERS * (ROWS * ROWS // 2 + SCHEMES[scheme])
    assert found["weights"] <= found["device"] <= found["weights"] + (1 << 20)
    # In Python nothing is copied: the file is mapped.
    assert found["python"] < 1 << 20
    # In the process, whose memory is the device's, too, on an adapter that computes on the CPU: the
    # share of f32's peak that the bytes are, and pipelines. A layer in f32 would be 16 MiB more.
    share = floats["load"] * found["weights"] / floats["weights"]
    assert found["load"] <= share + (8 << 20)
    assert found["run"] <= share + (12 << 20)
