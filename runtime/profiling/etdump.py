"""ETDump, ExecuTorch's profile format, for ``executorch.devtools.Inspector``.

Written here by hand, with neither torch nor executorch: four small flatbuffers tables. An event of
a delegate names what it ran by a text; the ETRecord of the export maps it to source operators
through the ``debug_handle_map`` that ``preprocess`` returned, whose names
:mod:`executorch_wgpu.serialization.origins` derives from the program alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import flatbuffers

from ..query_pool import ShaderDuration
from .records import StepProfile, gpu_offset_ns

_IDENTIFIER = b"ED00"


def etdump(steps: Sequence[StepProfile], instruction: int = 0) -> bytes:
    """The steps as an ETDump, one run block each, in the size-prefixed form that Inspector reads.

    Args:
        instruction: index of the delegate call among the method's instructions.
    """
    return _Writer(instruction).write(steps)


class _Writer:
    def __init__(self, instruction: int) -> None:
        self._builder = flatbuffers.Builder(1 << 16)
        self._instruction = instruction
        self._texts: dict[str, int] = {}

    def write(self, steps: Sequence[StepProfile]) -> bytes:
        runs = self._vector([self._run(step) for step in steps])
        builder = self._builder
        builder.StartObject(2)  # ETDump: version, run_data
        builder.PrependUOffsetTRelativeSlot(1, runs, 0)
        builder.FinishSizePrefixed(builder.EndObject(), _IDENTIFIER)
        return bytes(builder.Output())

    def _run(self, step: StepProfile) -> int:
        offset = gpu_offset_ns(step)
        events = [self._pass(p, offset) for p in step.passes]
        for phase in step.host:
            events.append(self._event(f"wgpu: {phase.name}", phase.start_ns, phase.end_ns))
        if step.host:
            start, end = step.host[0].start_ns, step.host[-1].end_ns
            events.append(self._event("DELEGATE_CALL", start, end, instruction=self._instruction))
            events.append(self._event("Method::execute", start, end))
        listed = self._vector(events)
        name = self._text("Execute")
        builder = self._builder
        builder.StartObject(4)  # RunData: name, bundled_input_index, allocators, events
        builder.PrependUOffsetTRelativeSlot(0, name, 0)
        builder.PrependUOffsetTRelativeSlot(3, listed, 0)
        return int(builder.EndObject())

    def _pass(self, p: ShaderDuration, offset: float) -> int:
        about: dict[str, Any] = {
            "kernel": p.kernel_name,
            "module": p.module_path,
            "operator": p.op,
            "route": p.route,
            "grid": p.global_workgroups,
            "workgroup": p.local_workgroup_size,
            "bytes": p.bytes,
            "flops": p.flops,
            "flags": p.flags,
        }
        return self._event(
            "",
            round(p.start_ns + offset),
            round(p.end_ns + offset),
            instruction=self._instruction,
            delegate=p.delegate_id or p.label,
            metadata=json.dumps({key: value for key, value in about.items() if value}).encode(),
        )

    def _event(
        self,
        name: str,
        start: int,
        end: int,
        instruction: int = -1,
        delegate: str = "",
        metadata: bytes = b"",
    ) -> int:
        builder = self._builder
        named = self._text(name) if name else 0
        delegated = self._text(delegate) if delegate else 0
        data = builder.CreateByteVector(metadata) if metadata else 0
        # ProfileEvent: name, chain_index, instruction_id, delegate_debug_id_int,
        # delegate_debug_id_str, delegate_debug_metadata, start_time, end_time
        builder.StartObject(8)
        builder.PrependUint64Slot(6, max(0, start), 0)
        builder.PrependUint64Slot(7, max(0, start, end), 0)
        builder.PrependUOffsetTRelativeSlot(0, named, 0)
        builder.PrependInt32Slot(2, instruction, -1)
        builder.PrependUOffsetTRelativeSlot(4, delegated, 0)
        builder.PrependUOffsetTRelativeSlot(5, data, 0)
        event = builder.EndObject()
        builder.StartObject(3)  # Event: profile_event, allocation_event, debug_event
        builder.PrependUOffsetTRelativeSlot(0, event, 0)
        return int(builder.EndObject())

    def _text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = self._builder.CreateString(text)
        return self._texts[text]

    def _vector(self, offsets: Sequence[int]) -> int:
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())
