"""Which dispatch came from which source operators, under names that profiles share with ExecuTorch.

ExecuTorch's tools find the source operators of a delegate's event through a map that the export
returns (``PreprocessResult.debug_handle_map``) and that is not in the ``.pte``. The names in it are
a function of the list alone, so that a player can name its events without the map.
"""

from __future__ import annotations

from collections import Counter

from .dispatch_list import NONE, Dispatch, Program


def dispatch_ids(program: Program) -> list[tuple[Dispatch, str]]:
    """Every dispatch of every route, in order, with a name that no other has: its label, from the
    second dispatch of that label on with a number (``layers.0/mm``, ``layers.0/mm#2``)."""
    seen: Counter[str] = Counter()
    named = []
    taken = {d.label for step in program.steps for r in step.routes for d in r.dispatches}
    for step in program.steps:
        for route in step.routes:
            for dispatch in route.dispatches:
                label = dispatch.label
                seen[label] += 1
                name = label
                while seen[label] > 1 and name in taken:
                    name = f"{label}#{seen[label]}"
                    if name in taken:
                        seen[label] += 1
                taken.add(name)
                named.append((dispatch, name))
    return named


def handles_of(dispatch: Dispatch) -> tuple[int, ...]:
    """ExecuTorch's debug handles of all its source operators; empty when unknown."""
    if dispatch.debug_handles:
        return dispatch.debug_handles
    return () if dispatch.debug_handle == NONE else (dispatch.debug_handle,)


def debug_handle_map(program: Program) -> dict[str, tuple[int, ...]]:
    """ExecuTorch's map: name of a dispatch -> its debug handles. Dispatches that have none are
    left out."""
    return {
        name: handles
        for dispatch, name in dispatch_ids(program)
        if (handles := handles_of(dispatch))
    }
