"""ETDump: its bytes, the map to source operators, and what executorch.devtools.Inspector says."""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import chain
from steps import DISPATCHES, step

from executorch_wgpu.runtime.profiling.etdump import etdump
from executorch_wgpu.serialization.dispatch_list import Program, Route, Step
from executorch_wgpu.serialization.origins import debug_handle_map, dispatch_ids, handles_of


def test_size_prefix_and_identifier() -> None:
    data = etdump([step(0), step(1)])
    assert struct.unpack("<I", data[:4]) == (len(data) - 4,)
    assert data[8:12] == b"ED00"
    assert b"layers.0.attention/linear" in data and b"DELEGATE_CALL" in data
    assert etdump([])[8:12] == b"ED00"


# -- names and handles -----------------------------------------------------------------------


def labelled(*labels: str) -> Program:
    """A program with a dispatch for each label."""
    program = chain(1, 64)
    [dispatch] = program.steps[0].routes[0].dispatches
    named = tuple(replace(dispatch, label=label, debug_handle=i) for i, label in enumerate(labels))
    return replace(program, steps=(Step((Route("only", named),)),))


def test_ids_are_unique() -> None:
    names = [name for _, name in dispatch_ids(labelled("a", "a", "b", "a#2", "a", "a#2#2"))]
    assert names[0] == "a" and len(set(names)) == 6
    assert names == ["a", "a#3", "b", "a#2", "a#4", "a#2#2"]


def test_handles() -> None:
    program = labelled("a", "b", "c")
    one, two, three = program.steps[0].routes[0].dispatches
    dispatches = (replace(one, debug_handle=-1), two, replace(three, debug_handles=(3, 4, 9)))
    program = replace(program, steps=(Step((Route("only", dispatches),)),))
    assert [handles_of(d) for d in dispatches] == [(), (1,), (3, 4, 9)]
    assert debug_handle_map(program) == {"b": (1,), "c": (3, 4, 9)}


# -- ExecuTorch's own tools ------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small llama layer, ``layer.pte``, and its ETRecord, ``layer.etrecord``."""
    pytest.importorskip("executorch.devtools")
    from executorch.exir import to_edge_transform_and_lower

    from executorch_wgpu.backend import WgpuPartitioner
    from executorch_wgpu.scripts.recipes import llama

    folder = tmp_path_factory.mktemp("etdump")
    args = llama.model_args(
        dim=32, n_heads=4, n_kv_heads=2, hidden_dim=48, max_seq_len=16, max_context_len=32
    )
    layer = llama.random_layer(args, fused=True)
    lowered = to_edge_transform_and_lower(
        llama.export_layer(layer), partitioner=[WgpuPartitioner()], generate_etrecord=True
    )
    program = lowered.to_executorch()
    program.save(str(folder / "layer.pte"))
    program.get_etrecord().save(str(folder / "layer.etrecord"))
    return folder


def inspect(data: bytes, etrecord: Path | None = None) -> Any:
    from executorch.devtools import Inspector

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Inspector(etdump_data=data, etrecord=str(etrecord) if etrecord else None)


def test_inspector_reads_what_is_written() -> None:
    pytest.importorskip("executorch.devtools")
    inspector = inspect(etdump([step(k, 1.0 + k) for k in range(3)], instruction=4))
    [block] = inspector.event_blocks
    events = {event.name: event for event in block.events}
    assert len(block.events) == len(DISPATCHES) + 1 + 6 + 2
    linear = events["layers.0.attention/linear"]
    assert linear.is_delegated_op and linear._instruction_id == 4
    assert linear.perf_data.raw == pytest.approx([0.010, 0.020, 0.030])
    assert events["DELEGATE_CALL"].perf_data.raw[0] > 0 and not events["norm"].op_types
    assert b'"kernel": "linear"' in linear.raw_delegate_debug_metadatas[0]


def test_inspector_maps_events_to_source_operators(timed: Any, exported: Path) -> None:
    from executorch_wgpu.scripts import measure

    subject = measure.load_subject(
        exported / "layer.pte", "forward", timed, 1, 5, (), warmup=0, device_time=True
    )
    measure.measure([subject], steps=3, warmup=0)
    data = etdump(list(subject.steps), subject.instruction)
    inspector = inspect(data, exported / "layer.etrecord")
    [block] = inspector.event_blocks
    delegated = {e.name: e for e in block.events if e.is_delegated_op}
    # Every dispatch is there and knows its operators; the copy of the output has none.
    ran = [record.delegate_id for record in subject.steps[-1]]
    assert [name for name in delegated if not name.startswith("read back")] == ran
    for name in ran:
        assert delegated[name].op_types, name
        assert delegated[name].delegate_backend_name == "WgpuBackend"
        assert len(delegated[name].perf_data.raw) == 3
    kinds = {name.rsplit("/", 1)[-1]: event for name, event in delegated.items()}
    assert "aten.mm.default" in kinds["linear_gemv1"].op_types
    fused = {op for name, event in delegated.items() if "linear" in name for op in event.op_types}
    assert "aten.rsqrt.default" in fused  # the norm in front of it
    assert kinds["sdpa_rope_cache_split"].debug_handles == kinds["sdpa_decode_reduce"].debug_handles
    hierarchy = next(iter(kinds["sdpa_rope_cache_split"].module_hierarchy.values()))
    assert any("attention" in str(place) for place in hierarchy.values())
    text = io.StringIO()
    inspector.print_data_tabular(file=text)
    assert "layers.0.attention/sdpa_rope_cache_split" in text.getvalue()
    assert "WgpuBackend" in text.getvalue()


def test_the_handles_are_in_the_list_too(exported: Path) -> None:
    """The .pte says which operators a dispatch stands for, without the ETRecord."""
    from executorch_wgpu.runtime import Runtime

    program = Runtime.get().load_program(exported / "layer.pte").dispatch_list("forward")
    found = debug_handle_map(program)
    assert set(found) == {name for _, name in dispatch_ids(program)}
    fused = {name: handles for name, handles in found.items() if "rms_norm" in name}
    assert fused and all(len(handles) >= 5 for handles in fused.values())
