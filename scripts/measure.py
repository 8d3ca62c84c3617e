"""What ``bench`` measures: executes of one method or of two, without and with profiling, turn by
turn, so that what changes on the machine meanwhile changes all of them."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from executorch_wgpu.runtime.profiling.records import StepProfile
    from executorch_wgpu.runtime.profiling.summary import Summary

#: Profiled steps that traces and ETDumps hold.
KEPT_STEPS = 100


# -- inputs ----------------------------------------------------------------------------------


def choose_scalars(
    program: Any, seq_len: int, input_pos: int, settings: tuple[str, ...]
) -> list[int]:
    """A value for each live scalar of a dispatch list: sizes, positions, then single settings. One
    of a tensor holds for the live scalars in it; else it is for :func:`random_inputs`.

    Raises click.BadParameter for a setting that names nothing or is out of bounds.
    """
    from executorch_wgpu.scripts.describe import scalars_at
    from executorch_wgpu.serialization.dispatch_list import SymSource, ValueKind

    scalars = scalars_at(program, seq_len, input_pos)
    tensors = [spec.name for spec in program.inputs if spec.kind is ValueKind.TENSOR]
    for setting in settings:
        name, value = _setting(setting)
        named = [
            at
            for at, symint in enumerate(program.symints)
            if symint.name == name
            or (symint.source is SymSource.TENSOR_ELEMENT and _owner(program, symint) == name)
        ]
        known = math.isfinite(value) and (value.is_integer() if named else name in tensors)
        if not known:
            names = [symint.name for symint in program.symints] + tensors
            raise click.BadParameter(
                f"{setting!r}: expected NAME=VALUE with one of {', '.join(names) or 'no names'}",
                param_hint="--set",
            )
        for at in named:
            symint = program.symints[at]
            if not symint.lo <= value <= symint.hi:
                raise click.BadParameter(
                    f"{setting!r} is outside {symint.lo}..{symint.hi}", param_hint="--set"
                )
            scalars[at] = int(value)
    return scalars


def _owner(program: Any, symint: Any) -> str:
    """The name of the tensor that a live scalar is an element of."""
    return str(program.inputs[symint.input].name)


def _setting(text: str) -> tuple[str, float]:
    """NAME=VALUE. A value that is no number is infinite."""
    name, _, value = text.partition("=")
    with contextlib.suppress(ValueError):
        return name, float(value)
    return name, float("inf")


def random_inputs(
    program: Any, scalars: list[int], seed: int = 0, settings: tuple[str, ...] = ()
) -> list[Any]:
    """Arguments for a dispatch list at these live scalars: normal floats, and zeros for integers,
    which may be indices into something. ``settings``: "NAME=VALUE" of tensors, all elements of
    which are that; of anything else, left to :func:`choose_scalars`."""
    import numpy as np

    from executorch_wgpu.serialization.dispatch_list import SymSource, ValueKind
    from executorch_wgpu.serialization.expressions import evaluate

    dtypes = {"f32": "float32", "f16": "float16", "bf16": "uint16", "i32": "int32", "i64": "int64"}
    generator = np.random.default_rng(seed)
    values = evaluate(program.exprs, scalars)
    inputs: list[Any] = []
    given = dict(_setting(setting) for setting in settings)
    for spec in program.inputs:
        if spec.kind is ValueKind.INT:
            inputs.append(0 if spec.index < 0 else scalars[spec.index])
            continue
        tensor = program.tensors[spec.index]
        shape = [values[index] for index in tensor.shape]
        dtype = dtypes.get(tensor.dtype.name.lower(), "bool")
        floats = generator.standard_normal(shape, np.float32)
        if spec.name in given:
            floats = np.full(shape, given[spec.name], np.float32)
        if dtype == "uint16":  # bfloat16 by its bits: the upper half of an f32
            inputs.append((floats.view(np.uint32) >> 16).astype(np.uint16))
        elif dtype.startswith("float"):
            inputs.append(floats.astype(dtype))
        else:
            filled = given.get(spec.name, 0)
            inputs.append(np.full(shape, filled, dtype))
    for symint, value in zip(program.symints, scalars, strict=True):
        if symint.source is SymSource.TENSOR_ELEMENT:
            inputs[symint.input].flat[symint.index] = value
    return inputs


# -- subjects --------------------------------------------------------------------------------


@dataclass
class Subject:
    """A method that is measured: loaded twice, without and (where the device has timestamps) with
    profiling. Times are seconds, one a measured turn."""

    file: Path
    plain: Any
    profiled: Any | None
    inputs: list[Any]
    scalars: list[int]
    load_s: float
    load_parts: dict[str, float]
    summary: Summary
    instruction: int
    executes: list[float] = field(default_factory=list)
    submits: list[float] = field(default_factory=list)
    profiled_executes: list[float] = field(default_factory=list)
    spans: list[float] = field(default_factory=list)
    kernels: list[dict[str, float]] = field(default_factory=list)
    steps: deque[StepProfile] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))

    @property
    def named_scalars(self) -> dict[str, int]:
        """Live scalars by name."""
        symints = self.plain.program.symints
        return {s.name: value for s, value in zip(symints, self.scalars, strict=True)}

    def turn(self, measured: bool) -> None:
        """Executes it once without and once with profiling."""
        begin = time.perf_counter()
        pending = self.plain.submit(self.inputs)
        submitted = time.perf_counter()
        pending.result()
        end = time.perf_counter()
        if measured:
            self.executes.append(end - begin)
            self.submits.append(submitted - begin)
        if self.profiled is None:
            return
        self.profiled.execute(self.inputs)
        step = self.profiled.last_profile()
        self.summary.add(step)
        if not measured:
            return
        self.steps.append(step)
        # Not around execute(): what reading the timestamps takes comes after the results.
        self.profiled_executes.append(step.wall_ns * 1e-9)
        self.spans.append(step.span_ns * 1e-9)
        totals: dict[str, float] = {}
        for record in step:
            totals[record.kernel_name] = totals.get(record.kernel_name, 0.0) + record.duration_ns
        self.kernels.append(totals)


def load_subject(
    file: Path,
    method_name: str,
    device: Any,
    seq_len: int,
    input_pos: int,
    settings: tuple[str, ...],
    warmup: int,
    device_time: bool,
) -> Subject:
    """Loads a method and prepares its arguments. ``device``: as ``Runtime.load_program`` takes it.

    Raises click.ClickException where there is nothing to measure, and what loading raises.
    """
    from executorch_wgpu.runtime.profiling.summary import Summary
    from executorch_wgpu.scripts.bench.loading import timed_load

    begin = time.perf_counter()
    # Without a profile, whatever the environment says.
    plain, parts = timed_load(file, method_name, device, profile=False)
    load_s = time.perf_counter() - begin
    profiled = None
    if device_time and "timestamp-query" in plain.device.features:
        profiled, _ = timed_load(file, method_name, plain.device, profile=True)
    scalars = choose_scalars(plain.program, seq_len, input_pos, settings)
    return Subject(
        file,
        plain,
        profiled,
        random_inputs(plain.program, scalars, settings=settings),
        scalars,
        load_s,
        parts,
        Summary(warmup),
        delegate_instruction(file, method_name),
    )


def delegate_instruction(file: Path, method_name: str) -> int:
    """Which of the method's instructions calls the delegate; ExecuTorch's tools go by that."""
    from executorch_wgpu.serialization.pte import PteFile

    with PteFile.open(file) as pte:
        kinds = [instruction.kind for instruction in pte.method(method_name).instructions]
    return kinds.index("delegate") if "delegate" in kinds else 0


def measure(subjects: Sequence[Subject], steps: int, warmup: int) -> None:
    """Runs all of them turn by turn, in an order that is reversed every time."""
    for step in range(warmup + steps):
        for subject in subjects if step % 2 == 0 else subjects[::-1]:
            subject.turn(measured=step >= warmup)


# -- results ---------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, 5th and 95th percentile and least of some values."""
    import numpy as np

    p5, p50, p95 = np.percentile(values, (5, 50, 95))
    return {
        "mean": float(np.mean(values)),
        "p50": float(p50),
        "p5": float(p5),
        "p95": float(p95),
        "min": float(min(values)),
    }


def host_times(subject: Subject) -> dict[str, Any]:
    """Wall times of executes, their parts, and what profiling does to them; seconds."""
    waits = [a - b for a, b in zip(subject.executes, subject.submits, strict=True)]
    result: dict[str, Any] = {
        "execute_s": spread(subject.executes),
        "encode_submit_s": spread(subject.submits),
        "wait_read_s": spread(waits),
    }
    if subject.profiled_executes:
        pairs = zip(subject.profiled_executes, subject.executes, strict=True)
        result["profiled_execute_s"] = spread(subject.profiled_executes)
        result["profiling_overhead_s"] = spread([with_ - without for with_, without in pairs])
    return result


def compare(a: Subject, b: Subject) -> dict[str, Any]:
    """B over A, of values of the same turn; below 1, B is faster."""
    kernels: dict[str, Any] = {}
    names = dict.fromkeys(name for subject in (a, b) for turn in subject.kernels for name in turn)
    for name in names:
        both = [[turn.get(name, 0.0) for turn in subject.kernels] for subject in (a, b)]
        means = [sum(values) / len(values) for values in both]
        kernels[name] = {"a_ns": means[0], "b_ns": means[1], "ratio": ratios(*both)}
    return {
        "file": str(b.file),
        "execute": ratios(a.executes, b.executes),
        "span": ratios(a.spans, b.spans),
        "kernels": kernels,
    }


def ratios(a: Sequence[float], b: Sequence[float]) -> dict[str, float] | None:
    """The spread of b/a, pair by pair; None where there is nothing to divide."""
    found = [y / x for x, y in zip(a, b, strict=True) if x > 0 and y > 0]
    return spread(found) if found else None
