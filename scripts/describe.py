"""A dispatch list as plain data for people and scripts: what ``inspect`` and the demo show.

Everything here is dicts, lists, strings and numbers, ready for JSON. Needs neither a GPU nor torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from executorch_wgpu.scripts.quantization import quantization
from executorch_wgpu.serialization.dispatch_list import (
    NONE,
    Access,
    BufferKind,
    Dispatch,
    Kernel,
    ParamKind,
    Program,
    Route,
    SymInt,
    SymSource,
    Tensor,
    ValueKind,
)
from executorch_wgpu.serialization.expressions import EvaluationError, evaluate, format_expr
from executorch_wgpu.serialization.origins import handles_of
from executorch_wgpu.serialization.ranges import bounds

if TYPE_CHECKING:
    from executorch_wgpu.runtime.device import Capabilities


def describe_program(program: Program) -> dict[str, Any]:
    """The whole of a dispatch list but the text of its shaders."""
    return _Describer(program).whole()


def dispatches_at(
    program: Program, scalars: Sequence[int], have: Capabilities | None = None
) -> list[Dispatch]:
    """The dispatches of one call with these live scalars. Those with an empty grid are left out.

    ``have``: what the device offers; None stands for WebGPU's default limits and no features.
    """
    values = evaluate(program.exprs, scalars)

    def applies(route: Route) -> bool:
        if route.guard != NONE and not values[route.guard]:
            return False
        if have is None:
            return not route.features and not route.limits
        return not have.lacks(route.features, route.limits)

    return [
        dispatch
        for step in program.steps
        for dispatch in next(filter(applies, step.routes)).dispatches
        if all(values[index] for index in dispatch.grid)
    ]


def scalars_at(program: Program, seq_len: int, position: int) -> list[int]:
    """A value for each live scalar: ``seq_len`` for sizes of inputs, ``position`` for ints and
    elements of tensors, each kept within its bounds."""
    return [
        min(max(seq_len if s.source is SymSource.INPUT_DIM else position, s.lo), s.hi)
        for s in program.symints
    ]


def source_text(program: Program, symint: SymInt) -> str:
    """Where a live scalar is read: ``input_pos[0]``, ``size of x in dimension 1``."""
    name = program.inputs[symint.input].name
    if symint.source is SymSource.TENSOR_ELEMENT:
        return f"{name}[{symint.index}]"
    if symint.source is SymSource.INPUT_DIM:
        return f"size of {name} in dimension {symint.index}"
    return f"int argument {name}"


def dtype_text(tensor: Tensor) -> str:
    """``f32``, ``i64``, ``bool`` ..."""
    return tensor.dtype.name.lower()


def wgsl_of(program: Program, label: str) -> dict[str, str]:
    """The WGSL of the kernels that dispatches of this ``label`` run, each with its extensions and
    override constants in comments on top: ``{kernel: text}``. A label that no dispatch has is
    looked for as a part of labels. Empty when nothing matches."""
    every = [d for step in program.steps for route in step.routes for d in route.dispatches]
    found = [d for d in every if d.label == label] or [d for d in every if label in d.label]
    describer = _Describer(program)
    texts: dict[str, str] = {}
    for dispatch in found:
        kernel = program.kernels[dispatch.kernel]
        shader = program.shaders[kernel.shader]
        params = describer.params(kernel)
        lines = [
            f"// {dispatch.label}",
            f"// sha256 {shader.sha256}",
            *(f"// extension {name}" for name in shader.extensions),
            *(f"// override {name} = {value}" for name, value in params.items()),
        ]
        texts.setdefault(
            f"kernel {dispatch.kernel}", "\n".join([*lines, shader.wgsl.strip("\n"), ""])
        )
    return texts


class _Describer:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._ranges = bounds(program.exprs, program.symints)
        self._text: dict[int, str] = {}

    def whole(self) -> dict[str, Any]:
        program = self._program
        return {
            "producer": program.producer,
            "format_version": program.format_version,
            "inputs": [self._value(x.name, x.kind, x.index, "in") for x in program.inputs],
            "outputs": [self._value(x.name, x.kind, x.index, "out") for x in program.outputs],
            "live_scalars": [
                {"name": s.name, "source": source_text(program, s), "lo": s.lo, "hi": s.hi}
                for s in program.symints
            ],
            "live_block": [self._expr(index) for index in program.live],
            "state": self._buffers(BufferKind.STATE),
            "constants": self._buffers(BufferKind.CONSTANT),
            "scratch": self._buffers(BufferKind.SCRATCH),
            "checks": [
                {
                    "holds": self._expr(check.expr),
                    "message": check.message,
                    "args": [self._expr(index) for index in check.args],
                }
                for check in program.checks
            ],
            "steps": [[self._route(route) for route in step.routes] for step in program.steps],
            "kernels": [self._kernel(kernel) for kernel in program.kernels],
            "requires": {"features": list(program.features), "limits": dict(program.limits)},
            "quantization": quantization(program),
            "bytes": self._bytes(),
            "counts": self._counts(),
        }

    def _expr(self, index: int) -> str:
        if index not in self._text:
            self._text[index] = format_expr(self._program.exprs, index, self._program.symints)
        return self._text[index]

    def _value(self, name: str, kind: ValueKind, index: int, way: str) -> dict[str, Any]:
        program = self._program
        if kind is ValueKind.TENSOR:
            tensor = program.tensors[index]
            on_gpu = tensor.buffer != NONE
            return {"name": name, "kind": "tensor", "read_by_gpu": on_gpu, **self._tensor(tensor)}
        if way == "out":
            lo, hi = self._ranges[index]
            return {"name": name, "kind": "int", "value": self._expr(index), "lo": lo, "hi": hi}
        if index == NONE:
            return {"name": name, "kind": "int", "value": None}
        symint = program.symints[index]
        return {
            "name": name,
            "kind": "int",
            "value": symint.name,
            "lo": symint.lo,
            "hi": symint.hi,
        }

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        return {
            "dtype": dtype_text(tensor),
            "shape": [self._expr(index) for index in tensor.shape],
            "shape_max": [self._ranges[index][1] for index in tensor.shape],
        }

    def _buffers(self, kind: BufferKind) -> list[dict[str, Any]]:
        """Buffers of one kind; dtype and shape where a tensor of the program views the buffer
        whole, from its start."""
        program = self._program
        views: dict[int, Tensor] = {}
        for tensor in program.tensors:
            if tensor.buffer != NONE and self._expr(tensor.offset) == "0":
                views.setdefault(tensor.buffer, tensor)
        entries = []
        for index, buffer in enumerate(program.buffers):
            if buffer.kind is not kind:
                continue
            entry: dict[str, Any] = {"name": buffer.name, "bytes": buffer.size}
            if index in views:
                entry |= self._tensor(views[index])
            if kind in (BufferKind.STATE, BufferKind.CONSTANT):
                entry["key"] = buffer.data_key or None
            entries.append(entry)
        return entries

    def _route(self, route: Route) -> dict[str, Any]:
        return {
            "name": route.name,
            "when": None if route.guard == NONE else self._expr(route.guard),
            "features": list(route.features),
            "limits": dict(route.limits),
            "dispatches": [self._dispatch(dispatch) for dispatch in route.dispatches],
        }

    def _dispatch(self, dispatch: Dispatch) -> dict[str, Any]:
        kernel = self._program.kernels[dispatch.kernel]
        return {
            "label": dispatch.label,
            "op": dispatch.op,
            "module_path": dispatch.module_path,
            "debug_handle": None if dispatch.debug_handle == NONE else dispatch.debug_handle,
            "debug_handles": list(handles_of(dispatch)),
            "bytes": None if dispatch.bytes == NONE else self._expr(dispatch.bytes),
            "flops": None if dispatch.flops == NONE else self._expr(dispatch.flops),
            "kernel": dispatch.kernel,
            "grid": [self._expr(index) for index in dispatch.grid],
            "bindings": [
                {
                    "buffer": self._program.buffers[binding.buffer].name,
                    "kind": self._program.buffers[binding.buffer].kind.name.lower(),
                    "access": "read" if access is Access.READ else "read_write",
                    "offset": binding.offset,
                    "bytes": binding.size,
                }
                for binding, access in zip(dispatch.bindings, kernel.accesses, strict=True)
            ],
        }

    def _kernel(self, kernel: Kernel) -> dict[str, Any]:
        return {
            "shader": kernel.shader,
            "sha256": self._program.shaders[kernel.shader].sha256,
            "extensions": list(self._program.shaders[kernel.shader].extensions),
            "entry_point": kernel.entry_point,
            "workgroup_size": list(kernel.workgroup_size),
            "workgroup_bytes": kernel.workgroup_bytes,
            "params": self.params(kernel),
        }

    def params(self, kernel: Kernel) -> Mapping[str, Any]:
        """Override constants: numbers that never change, and the expressions of live ones."""
        result: dict[str, Any] = {}
        for param in kernel.params:
            if param.kind is ParamKind.LIVE:
                result[param.name] = self._expr(self._program.live[int(param.value)])
            elif param.kind is ParamKind.BOOL:
                result[param.name] = bool(param.value)
            elif param.kind is ParamKind.F32:
                # The shortest number that gives this f32: 1e-05, not 9.999999747378752e-06.
                result[param.name] = float(str(np.float32(param.value)))
            else:
                result[param.name] = int(param.value)
        return result

    def _bytes(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for buffer in self._program.buffers:
            total[buffer.kind.name.lower()] += buffer.size
        result = {kind.name.lower(): total[kind.name.lower()] for kind in BufferKind}
        return {**result, "wgsl": sum(len(s.wgsl.encode()) for s in self._program.shaders)}

    def _counts(self) -> dict[str, Any]:
        program = self._program
        return {
            "steps": len(program.steps),
            "dispatches": sum(len(r.dispatches) for s in program.steps for r in s.routes),
            "dispatches_shortest": self._dispatches_at(0),
            "dispatches_longest": self._dispatches_at(1 << 62),
            "kernels": len(program.kernels),
            "shaders": len(program.shaders),
            "expressions": len(program.exprs),
            "live_values": len(program.live),
        }

    def _dispatches_at(self, seq_len: int) -> int | None:
        """How many dispatches run at this size of every live dimension; None where expressions
        have no value there."""
        try:
            return len(dispatches_at(self._program, scalars_at(self._program, seq_len, 0)))
        except EvaluationError:
            return None
