"""CompileOptions: checked, and the same after a trip through CompileSpecs."""

from __future__ import annotations

import pytest
import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec

from executorch_wgpu.backend import CompileOptions, WgpuPartitioner
from executorch_wgpu.serialization import PteFile, deserialize
from executorch_wgpu.serialization.limits import MATRIX_UNITS

import exports

EVERY = CompileOptions(
    operator_allowlist=["aten.*"],
    operator_blocklist=("aten.mm.default",),
    module_allowlist=["layers.*"],
    module_blocklist=["layers.3.attention"],
    call_cost_us=12.5,
    external_constants="weights",
    matrix_units="fast",
)


@pytest.mark.parametrize("options", [CompileOptions(), EVERY])
def test_a_round_trip_changes_nothing(options):
    assert CompileOptions.from_specs(options.to_specs()) == options
    # Whatever keeps CompileSpecs keeps bytes.
    assert all(isinstance(spec.value, bytes) for spec in options.to_specs())


def test_defaults_need_no_spec():
    assert CompileOptions().to_specs() == []


def test_the_specs_are_in_the_file():
    options = CompileOptions(call_cost_us=0)
    program = exports.export(torch.nn.ReLU(), (torch.randn(4),))
    from executorch.exir import to_edge_transform_and_lower

    partitioner = WgpuPartitioner(options)
    assert isinstance(partitioner.delegation_spec, DelegationSpec)
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner])
    delegate = PteFile(bytes(lowered.to_executorch().buffer)).method("forward").sole_delegate()
    specs = [CompileSpec(key, value) for key, value in delegate.compile_specs]
    assert CompileOptions.from_specs(specs) == options


@pytest.mark.parametrize("mode", ["", "precise", "fast"])
def test_matrix_units_are_routes_that_not_every_device_takes(mode):
    from executorch.exir import to_edge_transform_and_lower

    program = exports.export(torch.nn.Linear(128, 64), (torch.randn(64, 128),))
    partitioner = WgpuPartitioner(CompileOptions(matrix_units=mode))
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner])
    delegate = PteFile(bytes(lowered.to_executorch().buffer)).method("forward").sole_delegate()
    (step,) = deserialize(delegate.data).steps
    found = [route.name for route in step.routes if MATRIX_UNITS in route.features]
    assert found == ([("matrix_flat" if mode == "precise" else "matrix")] if mode else [])


@pytest.mark.parametrize(
    "wrong, kind, word",
    [
        ({"operator_blocklist": "aten.mm.default"}, TypeError, "operator_blocklist"),
        ({"module_allowlist": [3]}, TypeError, "module_allowlist"),
        ({"module_blocklist": [""]}, ValueError, "module_blocklist"),
        ({"call_cost_us": "fast"}, TypeError, "call_cost_us"),
        ({"call_cost_us": True}, TypeError, "call_cost_us"),
        ({"call_cost_us": -1}, ValueError, "call_cost_us"),
        ({"call_cost_us": float("nan")}, ValueError, "call_cost_us"),
        ({"matrix_units": "exact"}, ValueError, "matrix_units: one of precise, fast"),
        ({"matrix_units": True}, ValueError, "matrix_units"),
        ({"external_constants": None}, TypeError, "external_constants"),
        ({"external_constants": "a/b"}, ValueError, "external_constants"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(wrong, kind, word):
    with pytest.raises(kind, match=word):
        CompileOptions(**wrong)


@pytest.mark.parametrize(
    "specs, word",
    [
        ([CompileSpec("speed", b"9")], "speed"),
        ([CompileSpec("call_cost_us", b"9"), CompileSpec("call_cost_us", b"8")], "twice"),
        ([CompileSpec("call_cost_us", b"{")], "JSON"),
    ],
)
def test_specs_that_are_no_options_are_refused(specs, word):
    with pytest.raises(ValueError, match=word):
        CompileOptions.from_specs(specs)


@pytest.mark.parametrize(
    "options, op, module, taken",
    [
        ({}, "aten.mm.default", "layers.3.attention.wq", True),
        ({"operator_blocklist": ["aten.mm.*"]}, "aten.mm.default", "", False),
        ({"operator_blocklist": ["aten.mm"]}, "aten.mm.default", "", True),
        ({"operator_allowlist": ["aten.mm.*"]}, "aten.add.Tensor", "", False),
        ({"operator_allowlist": []}, "aten.add.Tensor", "", False),
        ({"module_blocklist": ["layers.3"]}, "aten.mm.default", "layers.3.attention", False),
        ({"module_blocklist": ["layers.3"]}, "aten.mm.default", "layers.30", True),
        ({"module_blocklist": ["layers.*.attention"]}, "x", "layers.3.attention.wq", False),
        ({"module_allowlist": ["layers"]}, "x", "layers.3", True),
        ({"module_allowlist": ["layers"]}, "x", "output", False),
    ],
)
def test_names_and_patterns(options, op, module, taken):
    assert (CompileOptions(**options).reason_against(op, module) is None) is taken
