"""The operators: what lowers each, and the test of whether a call is supported.

The partitioner asks :func:`unsupported_reason`; the lowering asks :func:`lowering_of`. Both look
in the same table, so what is tagged always lowers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from executorch_wgpu.ops.call import OpCall, Value
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType

if TYPE_CHECKING:
    from executorch_wgpu.ops.builder import Builder

#: Conversions of dtype.
CASTS = ("aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default")

#: Emits the dispatches of a call whose tensor arguments are Tensors; returns its outputs.
LowerFn: TypeAlias = "Callable[[Builder, OpCall], Tensor | tuple[Tensor, ...]]"
#: Why a call (whose tensor arguments are Values) cannot be lowered, or None when it can.
SupportFn: TypeAlias = Callable[[OpCall], str | None]


@dataclass(frozen=True)
class Lowering:
    """One entry of the table.

    ``views``: the outputs are strided views of the inputs and cost no dispatch (a partition of
    nothing else is not worth making). ``moves``: elements of the first tensor argument come out
    unchanged, so that a conversion may as well be made after. ``converts``: float operands and
    results may have any float dtype each, so that a conversion before or after is no dispatch.
    ``bytes``: integers of 8 bits, four to a word, are among what it takes; views take them."""

    op: str
    lower: LowerFn
    supports: SupportFn
    views: bool = False
    moves: bool = False
    converts: bool = False
    bytes: bool = False


_TABLE: dict[str, Lowering] = {}


def register(
    *ops: str,
    supports: SupportFn | None = None,
    views: bool = False,
    moves: bool = False,
    converts: bool = False,
    bytes: bool = False,
) -> Callable[[LowerFn], LowerFn]:
    """Decorator: the function lowers these operators; see :class:`Lowering`. Raises ValueError
    for one taken twice."""

    def decorate(function: LowerFn) -> LowerFn:
        for op in ops:
            if op in _TABLE:
                raise ValueError(f"{op} has a lowering already")
            check = supports or _always
            _TABLE[op] = Lowering(
                op, function, check, views, views or moves, converts, views or bytes
            )
        return function

    return decorate


def _always(call: OpCall) -> str | None:
    return None


def _load() -> None:
    # Importing a family registers it; a new family is added to this line.
    from executorch_wgpu.ops import (  # noqa: F401
        attention,
        elementwise,
        embedding,
        matmul,
        norm,
        quant,
        rope,
        sampling,
        shape,
    )


def lowering_of(op: str) -> Lowering | None:
    """The entry of an operator such as ``aten.add.Tensor``, None when there is none."""
    _load()
    return _TABLE.get(op)


def registered_ops() -> list[str]:
    """Names of all operators with a lowering, sorted."""
    _load()
    return sorted(_TABLE)


def unsupported_reason(call: OpCall) -> str | None:
    """Why ``call`` cannot be lowered, in words for the user, or None when it can. Looks at
    dtypes, shapes and scalar arguments alone."""
    entry = lowering_of(call.op)
    if entry is None:
        return f"no lowering for {call.op}"
    if not entry.bytes:
        for value in [*call.input_values(), *call.outputs]:
            if value.dtype in (DType.I8, DType.U8):
                return f"{value.dtype.name.lower()} is not supported here"
    return entry.supports(call)


def only_dtypes(
    dtypes: Sequence[DType], *, args: Sequence[str] | None = None, outputs: bool = True
) -> SupportFn:
    """A support check: the named tensor arguments (all when None) and the outputs have one of
    these dtypes."""
    names = ", ".join(d.name.lower() for d in dtypes)

    def check(call: OpCall) -> str | None:
        values = (
            call.input_values()
            if args is None
            else [v for a in args if isinstance(v := call.args.get(a), Value)]
        )
        for value in [*values, *(call.outputs if outputs else ())]:
            if value.dtype not in dtypes:
                return f"{value.dtype.name.lower()} is not supported here (only {names})"
        return None

    return check


def all_of(*checks: SupportFn) -> SupportFn:
    """A support check that asks each in turn and gives the first reason."""

    def check(call: OpCall) -> str | None:
        for one in checks:
            reason = one(call)
            if reason is not None:
                return reason
        return None

    return check
