"""Host memory while a large file loads, and over many steps."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_lm import continuation, tiny_pte

from executorch_wgpu.runtime import Runtime, TextGenerator

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads Linux's /proc"
)


def anonymous() -> int:
    """Bytes of the process's anonymous memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@pytest.mark.parametrize(
    "steps", [200, pytest.param(2000, marks=pytest.mark.slow)], ids=lambda steps: f"{steps} steps"
)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_many_steps(device: Any, steps: int, depth: int) -> None:
    """Neither the host's memory nor the GPU's grows, and the last token is right."""
    data = tiny_pte(context=steps + 200)
    program = Runtime.get().load_program(data, device=device)
    text = TextGenerator(program, depth=max(2, depth), pipelined=depth > 1)
    prompt = [40, 41, 42]
    text.generate(prompt, 100, ignore_eos=True)  # whatever is made once is made
    gc.collect()
    before, on_gpu = anonymous(), text.gpu_bytes
    text.reset()
    result = text.generate(prompt, steps, ignore_eos=True)
    gc.collect()
    grown = anonymous() - before
    assert text.gpu_bytes == on_gpu
    # 2 kB a step would pass here, and a command buffer that is kept takes more.
    assert grown < (4 << 20), f"{grown >> 10} kB more after {steps} steps"
    assert result.token_ids[:50] == continuation(prompt, 50)
    tail = [*prompt, *result.token_ids[:-1]]
    assert result.token_ids[-1:] == continuation(tail, 1)


_LOAD = """
import sys, threading, time
from pathlib import Path
import numpy as np
from executorch_wgpu.runtime import Runtime

def anonymous():
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x]
    return int(line.split()[1]) * 1024

before, peak, done = anonymous(), 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)
watcher = threading.Thread(target=watch)
watcher.start()
method = Runtime.get().load_program(sys.argv[1]).load_method("forward")
[y] = method.execute([np.ones(4, np.float32)])
done = True
watcher.join()
print(peak - before - sum(method.allocated().values()), float(y[0]))
"""

_MAKE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from big_program import many_constants
from pte_files import delegated, write_pte
data = {f"w{i}": np.full(16 << 20, i, np.float32).tobytes() for i in range(16)}
with open(sys.argv[1], "wb") as file:
    file.write(write_pte([delegated("forward", many_constants(16, 64 << 20))], data))
"""


@pytest.mark.slow
def test_a_large_file_streams_to_the_gpu(device: Any, tmp_path: Path) -> None:
    """1 GiB of constants: 300 MB of anonymous memory over the interpreter's own, less what a
    software adapter keeps there as the GPU's."""
    if device.adapter.info["adapter_type"] != "CPU":
        pytest.skip("counts on a software adapter that keeps its buffers in anonymous memory")
    file = tmp_path / "large.pte"
    run = [sys.executable, "-c"]
    subprocess.run([*run, _MAKE, file, HERE.parent], check=True)
    assert file.stat().st_size > 1 << 30
    printed = subprocess.run([*run, _LOAD, file], check=True, capture_output=True, text=True).stdout
    more, result = printed.split()
    assert float(result) == 1.0 + 2 * sum(range(16))
    assert int(more) < 300_000_000, f"{int(more) >> 20} MiB more than the buffers"
    np.testing.assert_(int(more) > -(1 << 29), "the buffers are not where they are looked for")
