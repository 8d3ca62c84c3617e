"""Many calls of all kinds from eight threads, into four programs and two of the older interface.

    python many_calls.py SECONDS

Ends with an error where a result was wrong, a call failed that should not or did not that should,
or C++'s streams are not what they were.
"""

from __future__ import annotations

import collections
import ctypes
import logging
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from torch.export import Dim

import executorch_wgpu.runtime.executorch_bridge as bridge
from executorch_wgpu.backend import WgpuPartitioner
from executorch_wgpu.runtime.bridge.compile import find_compiler

#: Gives the streams' buffers, and writes a line to each.
STREAMS = """
#include <iostream>
extern "C" void buffers(void** out) { out[0] = std::cout.rdbuf(); out[1] = std::cerr.rdbuf(); }
extern "C" void say() { std::cerr << "to cerr" << std::endl; std::cout << "to cout" << std::endl; }
"""


class Affine(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y + 1


class Slow:
    """Where ExecuTorch's log goes. Lets other threads in with every piece of a line."""

    def __init__(self) -> None:
        self.pieces = 0

    def write(self, text: str) -> int:
        self.pieces += 1
        time.sleep(random.random() * 1e-3)
        return len(text)

    def flush(self) -> None:
        pass


def build_streams() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "streams.cpp", Path(folder) / "streams.so"
        source.write_text(STREAMS)
        compiler = find_compiler()
        assert compiler is not None
        subprocess.run([*compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        return ctypes.PyDLL(str(library))


def program() -> bytes:
    rows = {0: Dim("n", min=1, max=64)}
    inputs = (torch.randn(3, 8), torch.randn(3, 8))
    exported = torch.export.export(Affine(), inputs, dynamic_shapes=(rows, rows))
    lowered = to_edge_transform_and_lower(exported, partitioner=[WgpuPartitioner()])
    return bytes(lowered.to_executorch().buffer)


def main(seconds: float) -> None:
    streams = build_streams()

    def buffers() -> list[int]:
        found = (ctypes.c_void_p * 2)()
        streams.buffers(found)
        return list(found)

    before = buffers()
    data = program()
    bridge.register()
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    logging.getLogger("executorch_wgpu").disabled = True
    out, log = sys.stdout, Slow()
    sys.stdout = sys.stderr = log  # type: ignore[assignment]
    runtime = Runtime.get()
    methods = [runtime.load_program(data).load_method("forward") for _ in range(4)]
    older = [portable_lib._load_for_executorch_from_buffer(data) for _ in range(2)]
    counts: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    end = time.monotonic() + seconds

    def work(seed: int) -> None:
        choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)

        def right(execute: Any) -> None:
            rows = choose.randint(1, 64)
            x, y = (torch.randn(rows, 8, generator=generator) for _ in range(2))
            (z,) = execute([x, y])
            assert torch.allclose(z, x * y + 1, atol=1e-5), "a wrong result"

        def fails(function: Any, *args: Any) -> None:
            try:
                function(*args)
            except (RuntimeError, IndexError):
                return
            raise AssertionError(f"{function} did not fail")

        x = torch.randn(5, 8)
        kinds: dict[str, tuple[int, Any]] = {
            "run": (50, lambda m, o: right(m.execute)),
            "fail in ExecuTorch": (15, lambda m, o: fails(m.execute, [])),
            "fail in a delegate": (10, lambda m, o: fails(m.execute, [x, x[:4]])),
            "run an older one": (12, lambda m, o: right(o.forward)),
            "fail in an older one": (5, lambda m, o: fails(o.run_method, "none", [])),
            "load": (
                3,
                lambda m, o: right(runtime.load_program(data).load_method("forward").execute),
            ),
            "fail to load": (2, lambda m, o: fails(runtime.load_program, b"x" * 100)),
            "look": (3, lambda m, o: fails(m.metadata.input_tensor_meta, 7)),
        }
        weights = [weight for weight, _ in kinds.values()]
        while time.monotonic() < end and not problems:
            (name,) = choose.choices(list(kinds), weights)
            try:
                kinds[name][1](choose.choice(methods), choose.choice(older))
            except BaseException as error:
                problems.append(f"{name}: {error!r}")
            counts[name] += 1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout, sys.stderr = out, sys.__stderr__
    print(dict(counts), f"{log.pieces} pieces of log")
    assert not problems, problems
    assert log.pieces > 0 and all(counts[name] for name in ("run", "fail in ExecuTorch"))
    assert buffers() == before, "C++'s streams have other buffers than before"
    streams.say()
    print("the streams are as before")


if __name__ == "__main__":
    main(float(sys.argv[1]))
