"""Which weights of a dispatch list are quantized, and how, by the labels of its dispatches."""

from __future__ import annotations

import re
from typing import Any

from executorch_wgpu.serialization.dispatch_list import BufferKind, DType, Program

#: ``linear_w4g32_digits``, ``linear_a8w8_1``, ``embedding_w4g32`` (see ``QuantWeight.kind``).
_KIND = re.compile(r"(?:^|_)(a8)?w([48])(?:g(\d+))?(?:_|$)")


def quantization(program: Program) -> list[dict[str, Any]]:
    """Packed weights by scheme, in order of their bytes: ``scheme`` as ``export-llama --quantize``
    takes it (``4w:32``, ``8da8w``), how many ``weights`` (joined ones count as one, a tied one
    where it is met first), and the ``bytes`` of their codes, scales and zero points."""
    views = {tensor.buffer: tensor.dtype for tensor in program.tensors if len(tensor.shape) == 2}
    rows: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for step in program.steps:
        # All routes read the same weights, the first one whole.
        for dispatch in step.routes[0].dispatches:
            match = _KIND.search(dispatch.label.rpartition("/")[2])
            if match is None:
                continue
            scheme = f"8da{match[2]}w" if match[1] else f"{match[2]}w"
            scheme += f":{match[3]}" if match[3] else ""
            row = rows.setdefault(scheme, {"scheme": scheme, "weights": 0, "bytes": 0})
            for index in {binding.buffer for binding in dispatch.bindings} - seen:
                buffer = program.buffers[index]
                codes = views.get(index) is DType.I32
                around = buffer.name.endswith((".scales", ".zeros"))
                if buffer.kind is BufferKind.CONSTANT and (codes or around):
                    seen.add(index)
                    row["weights"] += codes and not around
                    row["bytes"] += buffer.size
    return sorted(rows.values(), key=lambda row: -row["bytes"])
