"""Who defines and who reads each value: what patterns ask."""

from __future__ import annotations

from typing import Any

from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import OpCall, OpChain, Value
from executorch_wgpu.ops.symbolic import Scalar


class ChainIndex:
    """A snapshot of a chain's def-use relation. A pass that changes the chain makes a new one.

    ``users`` names a call once for each time that it reads a value; ``leaving``: what is an output
    or the last version of a state; ``versions``: every version of every state.
    """

    def __init__(self, chain: OpChain) -> None:
        self.producer: dict[Value, OpCall] = {}
        self.users: dict[Value, list[OpCall]] = {}
        self.leaving: set[Value] = set()
        self.position: dict[int, int] = {}
        self.versions: set[Value] = {*chain.states, *chain.results.values()}
        for position, call in enumerate(chain.calls):
            self.position[id(call)] = position
            for output, value in enumerate(call.outputs):
                self.producer[value] = call
                if output in call.mutates:
                    self.versions.add(value)
            for value in call.input_values():
                self.users.setdefault(value, []).append(call)
        for item in [*chain.outputs, *chain.results.values()]:
            if isinstance(item, Value):
                self.leaving.add(item)

    def made_by(self, value: Any, *ops: str) -> OpCall | None:
        """The call that defines ``value`` when it is one of ``ops``."""
        if not isinstance(value, Value):
            return None
        call = self.producer.get(value)
        return call if call is not None and call.op in ops else None

    def only_user(self, value: Value) -> OpCall | None:
        """The one call that reads ``value`` (maybe several times); None when there are others, or
        none, or when the value leaves."""
        users = self.users.get(value, [])
        same = bool(users) and all(user is users[0] for user in users)
        return users[0] if same and value not in self.leaving else None

    def reads_state(self, call: OpCall) -> bool:
        """Whether an operand is (a view of) a version of a state. Such a call is not moved past
        others: the state would be copied where it could have been updated in place."""
        return any(self._root(value) in self.versions for value in call.input_values())

    def _root(self, value: Value) -> Value:
        """What ``value`` is a view of."""
        while (call := self.producer.get(value)) is not None:
            entry = registry.lowering_of(call.op)
            if entry is None or not entry.views or value in self.versions:
                break
            value = call.input_values()[0]
        return value


_VIEWS = (
    "aten.view_copy.default",
    "aten.unsqueeze_copy.default",
    "aten.squeeze_copy.dims",
    "aten.squeeze_copy.dim",
    "aten.clone.default",
    "dim_order_ops._clone_dim_order.default",
    "aten.alias_copy.default",
    "aten._to_copy.default",
    "dim_order_ops._to_dim_order_copy.default",
)


def same_elements(index: ChainIndex, value: Any) -> Any:
    """Look through calls that change neither elements, dtype nor shape."""
    while isinstance(value, Value):
        call = index.made_by(value, *_VIEWS)
        if call is None or call.mutates:
            return value
        source = call["self"]
        if not isinstance(source, Value) or source.dtype is not value.dtype:
            return value
        if source.shape != value.shape:
            return value
        value = source
    return value


def number_of(value: Any) -> float | None:
    """A Python number, or the content of a 0-dim or one-element constant; None for the rest."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Value) and value.constant is not None and value.constant.numel() == 1:
        return float(value.constant)
    return None


def is_binary(call: OpCall | None, left: Any, right: Any) -> bool:
    """Whether a commutative call has these operands in either order."""
    if call is None:
        return False
    a, b = call["self"], call["other"]
    return (a is left and b is right) or (a is right and b is left)


def last_dim(dims: Any, rank: int) -> bool:
    """Whether ``dims`` names exactly the last dimension."""
    items = dims if isinstance(dims, (list, tuple)) else [dims]
    return len(items) == 1 and isinstance(items[0], int) and items[0] % rank == rank - 1


def halved(size: Scalar) -> int | None:
    """Half of a static even size, None otherwise."""
    return size // 2 if isinstance(size, int) and size % 2 == 0 else None
