"""The operator chain a graph is turned into before it is lowered: one :class:`OpCall` an
operator, in execution order, over :class:`Value`s in single-assignment form.

Nothing here knows FX: ``backend/fx_adapter.py`` is one source of such chains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from executorch_wgpu.ops.symbolic import Scalar
from executorch_wgpu.serialization.dispatch_list import NONE, DType, SymInt


class Value:
    """A tensor of the chain: dtype and shape are known, the layout is the lowering's to choose.

    ``constant`` is the torch tensor of a parameter or constant buffer (so that passes can read
    it), None otherwise. Identity is the object's.
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
