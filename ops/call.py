"""The operator chain a graph is turned into before it is lowered: one :class:`OpCall` an
operator, in execution order, over :class:`Value`s in single-assignment form.

Nothing here knows FX: ``backend/fx_adapter.py`` is one source of such chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from executorch_wgpu.ops.symbolic import Scalar
from executorch_wgpu.serialization.dispatch_list import NONE, DType, SymInt


class Value:
    """A tensor of the chain: dtype and shape are known, the layout is the lowering's to choose.

    ``constant`` is the torch tensor of a parameter or constant buffer (so that passes can read
    it), JoinedRows of several, None otherwise. Identity is the object's.
    """

    __slots__ = ("constant", "dtype", "name", "shape")

    def __init__(
        self, dtype: DType, shape: tuple[Scalar, ...], name: str = "", constant: Any = None
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.name = name
        self.constant = constant

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Value({self.name}: {self.dtype.name}{list(self.shape)})"


@dataclass(frozen=True)
class Origin:
    """Where a call came from: source operator, module path, ExecuTorch's debug handle, and the
    handles of all source operators where it stands for several."""

    op: str = ""
    module_path: str = ""
    debug_handle: int = NONE
    debug_handles: tuple[int, ...] = ()

    @staticmethod
    def of_several(op: str, origins: Sequence[Origin], path: str | None = None) -> Origin:
        """The origin of a call that does what calls from ``origins`` did. Its module path is
        ``path`` or what theirs have in common, see :func:`common_path`."""
        handles: list[int] = []
        for origin in origins:
            own = (origin.debug_handle,) if origin.debug_handle != NONE else ()
            handles += origin.debug_handles or own
        handles = list(dict.fromkeys(handles))
        several = tuple(handles) if len(handles) > 1 else ()
        if path is None:
            path = common_path([origin.module_path for origin in origins])
        return Origin(op, path, handles[0] if handles else NONE, several)


def common_path(paths: Sequence[str]) -> str:
    """What dotted names have in common; where they differ in one part only, with all of its forms:
    ``layers.0.attention.wq+wk+wv``."""
    unique = [path.split(".") for path in dict.fromkeys(paths)]
    first, shortest = unique[0], min(len(parts) for parts in unique)
    if len(unique) == 1:
        return ".".join(first)
    start = end = 0
    while start < shortest and all(parts[start] == first[start] for parts in unique):
        start += 1
    while end < shortest - start and all(p[-1 - end] == first[-1 - end] for p in unique):
        end += 1
    if any(len(parts) != start + 1 + end for parts in unique):
        return ".".join(first[:start])
    forms = "+".join(parts[start] for parts in unique)
    return ".".join([*first[:start], forms, *first[start + 1 :]])


@dataclass
class OpCall:
    """One operator.

    ``op``: overload name such as ``aten.add.Tensor``, or ``wgpu.*`` for what a pass fused.
    ``args``: by the schema's argument names with defaults filled in; tensors are Values, live
    ints are Scalars, 0-dim constants are Python numbers (folded).
    ``outputs``: the Values it defines. ``mutates``: output index -> argument name, where the
    output is the next version of the state that the argument holds.
    """

    op: str
    args: dict[str, Any]
    outputs: tuple[Value, ...]
    origin: Origin = field(default_factory=Origin)
    mutates: dict[int, str] = field(default_factory=dict)

    def input_values(self) -> list[Value]:
        """Every Value among the arguments, lists included, in order."""
        found: list[Value] = []
        for arg in self.args.values():
            for item in arg if isinstance(arg, (list, tuple)) else [arg]:
                if isinstance(item, Value):
                    found.append(item)
        return found

    def __getitem__(self, name: str) -> Any:
        return self.args[name]


@dataclass(frozen=True)
class ChainInput:
    """An argument of the delegate: a tensor Value, or the index of the SymInt that an int
    argument feeds (None for an int that nothing reads). ``read_by_gpu`` False: the tensor only
    feeds live scalars and is never uploaded."""

    name: str
    value: Value | None = None
    symint: int | None = None
    read_by_gpu: bool = True


@dataclass(frozen=True)
class ChainCheck:
    """A condition that must hold at each execute; see ``dispatch_list.Check``."""

    condition: Scalar
    message: str
    args: tuple[Scalar, ...] = ()


@dataclass
class OpChain:
    """A whole graph: calls in order, what enters and leaves, and the state it owns.

    ``states``: initial version of each owned state -> its fully qualified name; the initial
    content is the Value's ``constant``. ``results``: initial version -> last version.
    ``outputs``: tensors, live ints, and plain ints, in order. ``feedback``: (output, input) pairs
    that may stay on the GPU, see ``dispatch_list.Feedback``. ``share_state``: the group in which
    the states are shared with the program's other methods, "" for states of its own.
    """

    calls: list[OpCall]
    inputs: list[ChainInput]
    outputs: list[Value | Scalar]
    symints: list[SymInt] = field(default_factory=list)
    states: dict[Value, str] = field(default_factory=dict)
    results: dict[Value, Value] = field(default_factory=dict)
    checks: list[ChainCheck] = field(default_factory=list)
    feedback: list[tuple[int, int]] = field(default_factory=list)
    share_state: str = ""
    matrix_units: str = ""
