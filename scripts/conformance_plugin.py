"""A pytest plugin that runs ``executorch.backends.test.suite`` through our flow (``-p`` loads it).

It takes the place of the suite's list of flows with two of its own: ``wgpu``, our partitioner and
the bridge, and ``portable``, nothing delegated, to compare with. Every program runs, delegated or
not. The suite compares with atol 0.1 and rtol 0.04; here it is this project's tolerance, and each
loosening has its reason beside it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401  the suite's own CPU kernels
import pytest
import torch
from executorch.backends.test.harness import Tester
from executorch.backends.test.harness.stages import StageType, ToEdgeTransformAndLower
from executorch.backends.test.suite import flow, runner
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

import executorch_wgpu.runtime.executorch_bridge as bridge
from executorch_wgpu.backend import CompileOptions, WgpuPartitioner

#: (atol, rtol) by dtype of an output. A value passes where abs error <= atol + rtol * |expected|.
TOLERANCES = {
    torch.float32: (1e-4, 1e-3),
    torch.float64: (1e-4, 1e-3),
    torch.float16: (1e-3, 4e-3),
    torch.bfloat16: (8e-3, 2e-2),
}


class _Compare:
    """Mixed into the suite's Tester: our tolerances in place of its."""

    def run_method_and_compare_outputs(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("atol", None), kwargs.pop("rtol", None)
        return super().run_method_and_compare_outputs(*args, **kwargs)  # type: ignore[misc]


def _assert_outputs_equal(
    model_output: Any,
    ref_output: Any,
    atol: float = 0.0,
    rtol: float = 0.0,
    statistics_callback: Any = None,
) -> None:
    del atol, rtol
    assert len(model_output) == len(ref_output)
    for got, want in zip(model_output, ref_output, strict=True):
        assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
        if statistics_callback is not None and want.is_floating_point() and want.numel():
            from executorch.backends.test.harness.error_statistics import ErrorStatistics

            statistics_callback(ErrorStatistics.from_tensors(got, want))
        absolute, relative = TOLERANCES.get(want.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            got, want, atol=absolute, rtol=relative, equal_nan=True, check_stride=False
        )


class PortableTester(_Compare, Tester):
    """Nothing delegated."""


class WgpuTester(_Compare, Tester):
    """Everything delegated that can be, however small."""

    def __init__(self, module: Any, inputs: Any, dynamic_shapes: Any = None) -> None:
        lower = functools.partial(ToEdgeTransformAndLower, default_partitioner_cls=_partitioner)
        stages = Tester.default_stage_classes() | {StageType.TO_EDGE_TRANSFORM_AND_LOWER: lower}
        super().__init__(module, inputs, stage_classes=stages, dynamic_shapes=dynamic_shapes)


def _partitioner() -> WgpuPartitioner:
    return WgpuPartitioner(CompileOptions(call_cost_us=0))


def _seed(test: str) -> int:
    """The same inputs in every run and in both flows; the suite's own is random."""
    return int.from_bytes(hashlib.md5(test.encode()).digest()[:4], "little")


def _flows() -> dict[str, flow.TestFlow]:
    # Not "delegated" to the suite, which would not run programs with nothing delegated.
    return {
        name: flow.TestFlow(name, backend=name, tester_factory=tester, is_delegated=False)
        for name, tester in (("wgpu", WgpuTester), ("portable", PortableTester))
    }


Tester._assert_outputs_equal = staticmethod(_assert_outputs_equal)  # type: ignore[method-assign]
flow.all_flows = _flows
runner._get_test_seed = _seed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance-out", help="Write a JSON line for each subtest to this file.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout: the suite's, for a plugin that is not needed")
    bridge.register()
    out = config.getoption("--conformance-out")
    if out:
        Path(out).write_text("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[Any]:
    report = yield
    out = item.config.getoption("--conformance-out")
    if out and report.when == "call":
        with open(out, "a") as file:
            for row in _rows(item, report):
                file.write(json.dumps(row) + "\n")
    return report


def _rows(item: Any, report: Any) -> Iterator[dict[str, Any]]:
    chosen = item.funcargs["test_runner"]
    name = f"{item.path.stem.removeprefix('test_')}::{item.originalname}"
    if "dtype" in item.callspec.params:
        name += f"[{str(item.callspec.params['dtype']).removeprefix('torch.')}]"
    records = chosen._results
    if not records:
        result = "skip" if report.skipped else "fail"
        yield _row(name, 0, chosen._flow.name, result, str(report.longreprtext)[-400:], {}, {})
    for record in records:
        detail = f"{record.result.to_detail_str()} {record.error or ''}".strip()
        yield _row(
            name,
            record.subtest_index,
            chosen._flow.name,
            record.result.to_short_str().lower(),
            detail[:2000],
            record.delegated_op_counts or {},
            record.undelegated_op_counts or {},
        )


def _row(
    test: str,
    subtest: int,
    flow: str,
    result: str,
    detail: str,
    delegated: Any,
    on_cpu: Any,
) -> dict[str, Any]:
    return {
        "test": test,
        "subtest": subtest,
        "flow": flow,
        "result": result,
        "detail": detail,
        "delegated": {str(op): count for op, count in dict(delegated).items()},
        "on_cpu": {str(op): count for op, count in dict(on_cpu).items()},
    }
