"""Mutates dispatch lists by their structure: what comes out is still a dispatch list, mostly not
a valid one.

    program = mutate(example(), random.Random(7))

One change is a number nudged or replaced by one at an edge, a name, an enum, an entry dropped,
doubled or swapped, a character of WGSL. Digests are made right again, so that what depends on them
is reached.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from executorch_wgpu.serialization import Program, Shader, make_shader

#: Where parsers, verifiers and drivers break.
EDGES = (
    *(0, 1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 65, 127, 128, 255, 256, 257, 1023, 1024, 1025),
    *(-1, -2, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40),
    *(-(1 << 31), -(1 << 31) - 1, (1 << 63) - 1, -(1 << 63)),
)
_TEXTS = ("", "x", "_", "main", "\n", "\x1b[31m", "é" * 40, "a" * 1025, "{0}", "{9}", "{", "%s")
_FLOATS = (0.0, -0.0, 0.5, 1e30, -1e30, 1e300, float("inf"), float("nan"), 4294967295.0)

#: The way to a leaf: names of fields and positions in tuples.
Path = tuple[str | int, ...]


def mutate(program: Program, rng: random.Random, changes: int = 0) -> Program:
    """``program`` with some changes (one to four, one mostly, when ``changes`` is 0)."""
    for _ in range(changes or rng.choice((1, 1, 1, 2, 3, 4))):
        table = rng.choice([f.name for f in dataclasses.fields(Program)])
        paths = list(_paths(getattr(program, table), (table,), rng))
        path = rng.choice(paths)
        program = _replace(program, path, rng)
    shaders = tuple(
        make_shader(s.wgsl, s.extensions) if s.sha256.startswith("?") else s
        for s in program.shaders
    )
    return dataclasses.replace(program, shaders=shaders)


def _paths(value: Any, at: Path, rng: random.Random) -> Iterator[Path]:
    """The ways to ``value`` and what is in it; of long tuples only some entries."""
    yield at
    if isinstance(value, tuple):
        positions = range(len(value))
        for i in positions if len(value) <= 8 else rng.sample(positions, 8):
            yield from _paths(value[i], (*at, i), rng)
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _paths(getattr(value, f.name), (*at, f.name), rng)


def _replace(whole: Any, path: Path, rng: random.Random) -> Any:
    """``whole`` with what lies at ``path`` changed."""
    if not path:
        return _change(whole, rng)
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        items = list(whole)
        items[first] = _replace(items[first], rest, rng)
        return tuple(items)
    changed = dataclasses.replace(whole, **{first: _replace(getattr(whole, first), rest, rng)})
    if isinstance(changed, Shader) and first in ("wgsl", "extensions"):
        changed = dataclasses.replace(changed, sha256="?")
    return changed


def _change(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, IntEnum):
        return rng.choice(list(type(value)))
    if isinstance(value, int):
        return rng.choice((value + rng.choice((-1, 1, -4, 4, 256, -256)), rng.choice(EDGES)))
    if isinstance(value, float):
        return rng.choice((value + 1, value - 1, rng.choice(_FLOATS), float(rng.choice(EDGES))))
    if isinstance(value, str):
        return _change_text(value, rng)
    if isinstance(value, tuple):
        return _change_tuple(value, rng)
    return value


def _change_text(text: str, rng: random.Random) -> str:
    if len(text) < 40:
        return rng.choice(_TEXTS)
    # WGSL: a piece out, in twice, moved, or a character replaced.
    a = rng.randrange(len(text))
    b = min(len(text), a + rng.choice((1, 1, 2, 5, 20)))
    at = rng.randrange(len(text))
    return rng.choice(
        (
            text[:a] + text[b:],
            text[:b] + text[a:],
            text[:at] + text[a:b] + text[at:],
            text[:a] + chr(rng.choice((0, 10, 34, 40, 41, 42, 47, 59, 60, 123, 125, 0x2028)))
            + text[a + 1 :],
        )
    )  # fmt: skip


def _change_tuple(items: tuple[Any, ...], rng: random.Random) -> tuple[Any, ...]:
    if not items:
        return items
    a, b = rng.randrange(len(items)), rng.randrange(len(items))
    how = rng.randrange(4)
    if how == 0:
        return items[:a] + items[a + 1 :]
    if how == 1:
        return (*items[:a], items[b], *items[a:])
    if how == 2:
        changed = list(items)
        changed[a], changed[b] = changed[b], changed[a]
        return tuple(changed)
    return ()
