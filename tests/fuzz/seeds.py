"""Valid inputs to start from, made without torch, and what was once a fault (tests/data)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "serialization"), str(HERE.parent / "runtime")]

import numpy as np  # noqa: E402
from program_examples import example, llama_like  # noqa: E402
from programs import accumulator, chain  # noqa: E402
from pte_files import MethodSpec, delegated, write_pte  # noqa: E402

from executorch_wgpu.serialization import Program, serialize  # noqa: E402
from executorch_wgpu.serialization.container import HEADER_BYTES  # noqa: E402

DATA = HERE.parent / "data"


def seed_programs() -> list[Program]:
    """Small lists that load and run."""
    return [
        example(),
        chain(2, 70, dynamic=True),
        chain(3, 8),
        accumulator(),
        accumulator(initial_key="k"),
    ]


def seeds(target: str) -> list[bytes]:
    """Inputs for the target ``list`` or ``pte``."""
    found = [path.read_bytes() for path in sorted(DATA.glob(f"{target}-*"))]
    programs = seed_programs()
    if target == "list":
        lists = [*programs, llama_like(1, 2)]
        return found + [serialize(program)[HEADER_BYTES:] for program in lists]
    constant = np.arange(6, dtype=np.float32).reshape(2, 3)
    fixed = MethodSpec("get_max", [7, constant, None], [], [0, 1, 2])
    kernel = MethodSpec(
        "cpu", [None, 3], [0], [1], [("kernel", 0, [0, 1])], operators=[("aten::add", "out")]
    )
    return [
        *found,
        write_pte([delegated("forward", programs[0]), fixed], {"layers.0.weight": bytes(1028)}),
        write_pte([delegated("forward", programs[1]), kernel], {"a": b"x" * 10}),
        write_pte([fixed]),
    ]
