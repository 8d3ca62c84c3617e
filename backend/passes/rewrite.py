"""Changes to a chain that passes have in common."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.ops.call import OpCall, OpChain, Value


def replace_values(chain: OpChain, mapping: Mapping[Value, Value]) -> None:
    """Everybody who read a key of ``mapping`` reads its entry instead; entries of entries are
    followed. The calls that defined the keys stay, and are dead."""

    def target(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [target(one) for one in item]
        while isinstance(item, Value) and item in mapping:
            item = mapping[item]
        return item

    for call in chain.calls:
        if any(value in mapping for value in call.input_values()):
            call.args = {name: target(arg) for name, arg in call.args.items()}
    chain.outputs = [target(item) for item in chain.outputs]
    chain.results = {first: target(last) for first, last in chain.results.items()}


def replace_calls(chain: OpChain, replaced: Mapping[int, Iterable[OpCall]]) -> None:
    """In the place of the call with this id come these calls (none: it is dropped)."""
    chain.calls = [new for call in chain.calls for new in replaced.get(id(call), (call,))]


def closes_cycle(index: ChainIndex, group: Iterable[OpCall]) -> bool:
    """Whether one call cannot do what these do, because a call outside lies between them: it
    needs a result of the group and is needed by the group."""
    members = {id(call) for call in group}
    last = max(index.position[member] for member in members)
    queue = [value for call in group for value in call.outputs]
    seen: set[int] = set()
    while queue:
        for user in index.users.get(queue.pop(), ()):
            if id(user) in members or id(user) in seen or index.position[id(user)] > last:
                continue
            seen.add(id(user))
            if any(id(later) in members for v in user.outputs for later in index.users.get(v, ())):
                return True
            queue += user.outputs
    return False


def sort_calls(chain: OpChain) -> None:
    """Put calls behind those whose results they read, and otherwise leave them as they are.

    Values are in single-assignment form, so any such order computes the same. Raises ValueError
    where there is none.
    """
    position = {v: k for k, call in enumerate(chain.calls) for v in call.outputs}
    waiting = [0] * len(chain.calls)
    readers: dict[int, list[int]] = {}
    for k, call in enumerate(chain.calls):
        sources = {position[v] for v in call.input_values() if v in position}
        waiting[k] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(k)
    ready = [k for k, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[OpCall] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(chain.calls[k])
        for reader in readers.get(k, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) != len(chain.calls):
        raise ValueError("calls that wait for each other")
    chain.calls = order
