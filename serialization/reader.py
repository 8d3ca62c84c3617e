"""From bytes to a :class:`~executorch_wgpu.serialization.dispatch_list.Program`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import container
from . import dispatch_list as dl
from . import format_limits as fl
from .errors import InvalidProgramError
from .flat import Budget, enum_member, guarded
from .generated import schema_generated as fb
from .verify import verify

#: The structs of schema.fbs, as they lie in the file.
EXPR_DTYPE = np.dtype({"names": ["a", "b", "op"], "formats": ["<i8", "<i4", "u1"], "itemsize": 16})
BINDING_DTYPE = np.dtype(
    {"names": ["offset", "size", "buffer"], "formats": ["<u8", "<u8", "<i4"], "itemsize": 24}
)


def deserialize(data: bytes | bytearray | memoryview) -> dl.Program:
    """Read and verify a delegate's payload.

    The program keeps no reference to ``data``. Whatever the bytes are, the result is a program
    that :func:`~executorch_wgpu.serialization.verify.verify` accepts or InvalidProgramError.
    """
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise InvalidProgramError(f"the dispatch list is not bytes: {error}") from error
    version, body = container.unpack(view)
    with guarded("the dispatch list"):
        if len(body) < 8 or not fb.Program.ProgramBufferHasIdentifier(body, 0):
            raise InvalidProgramError(
                f"not a dispatch list: expected identifier b'EWG1' at byte "
                f"{container.HEADER_BYTES + 4}, found {bytes(body[4:8])!r}"
            )
        budget = Budget.of(len(body))
        program = _Reader(budget).program(fb.Program.GetRootAs(body, 0), version)
    verify(program)
    return program


class _Reader:
    """One method a table. ``place`` names the table in messages, e.g. ``steps[3].routes[0]``."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        #: Dispatches, and routes, that may still come.
        self._dispatches = fl.MAX_DISPATCHES
        self._routes = fl.MAX_DISPATCHES

    def program(self, t: Any, version: int) -> dl.Program:
        tables, budget = self._budget.tables, self._budget
        return dl.Program(
            producer=budget.text(t.Producer(), "producer"),
            symints=tables(t.SymintsLength(), t.Symints, self._symint, fl.MAX_SYMINTS, "symints"),
            exprs=self._exprs(t),
            live=budget.numbers(t.LiveLength(), t.LiveAsNumpy, dl.LIVE_SLOTS, "live"),
            buffers=tables(t.BuffersLength(), t.Buffers, self._buffer, fl.MAX_BUFFERS, "buffers"),
            tensors=tables(t.TensorsLength(), t.Tensors, self._tensor, fl.MAX_TENSORS, "tensors"),
            shaders=tables(t.ShadersLength(), t.Shaders, self._shader, fl.MAX_SHADERS, "shaders"),
            kernels=tables(t.KernelsLength(), t.Kernels, self._kernel, fl.MAX_KERNELS, "kernels"),
            steps=tables(t.StepsLength(), t.Steps, self._step, fl.MAX_STEPS, "steps"),
            checks=tables(t.ChecksLength(), t.Checks, self._check, fl.MAX_CHECKS, "checks"),
            inputs=tables(t.InputsLength(), t.Inputs, self._input, fl.MAX_VALUES, "inputs"),
            outputs=tables(t.OutputsLength(), t.Outputs, self._output, fl.MAX_VALUES, "outputs"),
            features=self._features(t, ""),
            limits=self._limits(t, ""),
            feedback=tables(
                t.FeedbackLength(), t.Feedback, self._feedback, fl.MAX_VALUES, "feedback"
            ),
            format_version=version,
        )

    def _symint(self, t: Any, place: str) -> dl.SymInt:
        return dl.SymInt(
            name=self._budget.text(t.Name(), f"{place}.name"),
            source=enum_member(dl.SymSource, t.Source(), f"{place}.source"),
            input=t.Input(),
            index=t.Index(),
            lo=t.Lo(),
            hi=t.Hi(),
        )

    def _exprs(self, t: Any) -> tuple[dl.Expr, ...]:
        rows = self._budget.structs(t.ExprsLength(), t.Exprs, EXPR_DTYPE, fl.MAX_EXPRS, "exprs")
        return tuple(
            dl.Expr(enum_member(dl.ExprOp, op, f"exprs[{i}].op"), a, b)
            for i, (a, b, op) in enumerate(rows)
        )

    def _buffer(self, t: Any, place: str) -> dl.Buffer:
        return dl.Buffer(
            kind=enum_member(dl.BufferKind, t.Kind(), f"{place}.kind"),
            size=t.Size(),
            name=self._budget.text(t.Name(), f"{place}.name"),
            data_key=self._budget.text(t.DataKey(), f"{place}.data_key"),
            share=self._budget.text(t.Share(), f"{place}.share"),
            data_offset=t.DataOffset(),
        )

    def _tensor(self, t: Any, place: str) -> dl.Tensor:
        numbers = self._budget.numbers
        return dl.Tensor(
            dtype=enum_member(dl.DType, t.Dtype(), f"{place}.dtype"),
            shape=numbers(t.ShapeLength(), t.ShapeAsNumpy, fl.MAX_RANK, f"{place}.shape"),
            strides=numbers(t.StridesLength(), t.StridesAsNumpy, fl.MAX_RANK, f"{place}.strides"),
            offset=t.Offset(),
            buffer=t.Buffer(),
        )

    def _shader(self, t: Any, place: str) -> dl.Shader:
        text = self._budget.text
        return dl.Shader(
            wgsl=text(t.Wgsl(), f"{place}.wgsl"),
            extensions=self._budget.texts(
                t.ExtensionsLength(), t.Extensions, fl.MAX_REQUIREMENTS, f"{place}.extensions"
            ),
            sha256=text(t.Sha256(), f"{place}.sha256"),
        )

    def _param(self, t: Any, place: str) -> dl.Param:
        return dl.Param(
            name=self._budget.text(t.Name(), f"{place}.name"),
            kind=enum_member(dl.ParamKind, t.Kind(), f"{place}.kind"),
            value=t.Value(),
        )

    def _kernel(self, t: Any, place: str) -> dl.Kernel:
        accesses = self._budget.numbers(
            t.AccessesLength(), t.AccessesAsNumpy, fl.MAX_BINDINGS, f"{place}.accesses"
        )
        size = t.WorkgroupSize()
        if size is None:
            raise InvalidProgramError(f"{place} has no workgroup_size")
        return dl.Kernel(
            shader=t.Shader(),
            entry_point=self._budget.text(t.EntryPoint(), f"{place}.entry_point"),
            params=self._budget.tables(
                t.ParamsLength(), t.Params, self._param, fl.MAX_PARAMS, f"{place}.params"
            ),
            accesses=tuple(enum_member(dl.Access, a, f"{place}.accesses") for a in accesses),
            workgroup_size=(size.X(), size.Y(), size.Z()),
            workgroup_bytes=t.WorkgroupBytes(),
        )

    def _dispatch(self, t: Any, place: str) -> dl.Dispatch:
        budget = self._budget
        rows = budget.structs(
            t.BindingsLength(), t.Bindings, BINDING_DTYPE, fl.MAX_BINDINGS, f"{place}.bindings"
        )
        grid = t.Grid()
        if grid is None:
            raise InvalidProgramError(f"{place} has no grid")
        return dl.Dispatch(
            kernel=t.Kernel(),
            bindings=tuple(dl.Binding(buffer, offset, size) for offset, size, buffer in rows),
            grid=(grid.X(), grid.Y(), grid.Z()),
            label=budget.text(t.Label(), f"{place}.label"),
            op=budget.text(t.Op(), f"{place}.op"),
            module_path=budget.text(t.ModulePath(), f"{place}.module_path"),
            debug_handle=t.DebugHandle(),
            bytes=t.Bytes(),
            flops=t.Flops(),
            debug_handles=budget.numbers(
                t.DebugHandlesLength(),
                t.DebugHandlesAsNumpy,
                fl.MAX_DEBUG_HANDLES,
                f"{place}.debug_handles",
            ),
        )

    def _limit(self, t: Any, place: str) -> tuple[str, int]:
        return self._budget.text(t.Name(), f"{place}.name"), t.Value()

    def _features(self, t: Any, prefix: str) -> tuple[str, ...]:
        return self._budget.texts(
            t.FeaturesLength(), t.Features, fl.MAX_REQUIREMENTS, f"{prefix}features"
        )

    def _limits(self, t: Any, prefix: str) -> tuple[tuple[str, int], ...]:
        return self._budget.tables(
            t.LimitsLength(), t.Limits, self._limit, fl.MAX_REQUIREMENTS, f"{prefix}limits"
        )

    def _route(self, t: Any, place: str) -> dl.Route:
        room = self._dispatches
        self._dispatches -= t.DispatchesLength()
        return dl.Route(
            name=self._budget.text(t.Name(), f"{place}.name"),
            dispatches=self._budget.tables(
                t.DispatchesLength(), t.Dispatches, self._dispatch, room, f"{place}.dispatches"
            ),
            guard=t.Guard(),
            features=self._features(t, f"{place}."),
            limits=self._limits(t, f"{place}."),
        )

    def _step(self, t: Any, place: str) -> dl.Step:
        limit = min(fl.MAX_ROUTES, self._routes)
        self._routes -= t.RoutesLength()
        return dl.Step(
            self._budget.tables(t.RoutesLength(), t.Routes, self._route, limit, f"{place}.routes")
        )

    def _check(self, t: Any, place: str) -> dl.Check:
        return dl.Check(
            expr=t.Expr(),
            message=self._budget.text(t.Message(), f"{place}.message"),
            args=self._budget.numbers(
                t.ArgsLength(), t.ArgsAsNumpy, fl.MAX_CHECK_ARGS, f"{place}.args"
            ),
        )

    def _input(self, t: Any, place: str) -> dl.Input:
        return dl.Input(
            name=self._budget.text(t.Name(), f"{place}.name"),
            kind=enum_member(dl.ValueKind, t.Kind(), f"{place}.kind"),
            index=t.Index(),
        )

    def _output(self, t: Any, place: str) -> dl.Output:
        return dl.Output(
            name=self._budget.text(t.Name(), f"{place}.name"),
            kind=enum_member(dl.ValueKind, t.Kind(), f"{place}.kind"),
            index=t.Index(),
        )

    def _feedback(self, t: Any, place: str) -> dl.Feedback:
        return dl.Feedback(output=t.Output(), input=t.Input())
