"""What the parts of the verifier share: small checks, and what is known of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from . import dispatch_list as dl
from . import format_limits as fl
from .errors import InvalidProgramError
from .expressions import EvaluationError, Evaluator
from .limits import DEFAULT_LIMITS, KNOWN_FEATURES
from .ranges import Interval, bounds, known_maxima


def fail(place: str, message: str) -> NoReturn:
    """Raise InvalidProgramError for what stands at ``place``."""
    raise InvalidProgramError(f"{place}: {message}")


def check_count(items: Sequence[Any], limit: int, place: str) -> None:
    """A vector has at most ``limit`` elements."""
    if len(items) > limit:
        fail(place, f"{len(items)} elements, at most {limit} are allowed")


def check_int(value: Any, lo: int, hi: int, place: str) -> None:
    """``value`` is an int within lo..hi, both inclusive."""
    if not isinstance(value, int):
        fail(place, f"{value!r} is {type(value).__name__}, not int")
    if not lo <= value <= hi:
        fail(place, f"{value} is outside of {lo}..{hi}")


def check_index(value: Any, items: Sequence[Any], place: str, table: str) -> None:
    """``value`` is an index into ``items``, the table called ``table``."""
    if type(value) is not int or not 0 <= value < len(items):
        fail(place, f"index {value!r} into {table}, which has {len(items)} entries")


def check_enum(value: Any, kind: type, place: str) -> None:
    """``value`` is a member of the enum ``kind``, not a bare number."""
    if not isinstance(value, kind):
        fail(place, f"{value!r} is not a {kind.__name__}")


def check_text(
    text: Any, place: str, *, empty: bool = True, limit: int = fl.MAX_NAME_CHARS
) -> None:
    """``text`` is one printable line of at most ``limit`` characters."""
    if not isinstance(text, str):
        fail(place, f"{text!r} is {type(text).__name__}, not str")
    if len(text) > limit:
        fail(place, f"{len(text)} characters, at most {limit} are allowed")
    if not text and not empty:
        fail(place, "is empty")
    if not text.isprintable():
        fail(place, f"{text!r} holds characters that cannot be printed")


def check_requirements(
    features: Sequence[str], limits: Sequence[tuple[str, int]], place: str
) -> None:
    """Features and limits have WebGPU's names, once each, and limits exceed the defaults."""
    check_count(features, fl.MAX_REQUIREMENTS, f"{place}features")
    check_count(limits, fl.MAX_REQUIREMENTS, f"{place}limits")
    for feature in features:
        if feature not in KNOWN_FEATURES:
            known = ", ".join(sorted(KNOWN_FEATURES))
            fail(f"{place}features", f"{feature!r} is unknown (known: {known})")
    check_unique(features, f"{place}features")
    for pair in limits:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            fail(f"{place}limits", f"{pair!r} is no pair of a name and a value")
    for name, value in limits:
        if name not in DEFAULT_LIMITS or name.startswith("min-"):
            fail(f"{place}limits", f"{name!r} is no limit that a program can raise")
        check_int(value, 1, fl.MAX_VALUE, f"{place}limits {name!r}")
        if value <= DEFAULT_LIMITS[name]:
            fail(
                f"{place}limits {name!r}",
                f"{value} is within WebGPU's default of {DEFAULT_LIMITS[name]}: leave it out",
            )
    check_unique([name for name, _ in limits], f"{place}limits")


def check_unique(names: Iterable[str], place: str) -> None:
    """No name stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            fail(place, f"{name!r} stands twice")
        seen.add(name)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known of the expressions of a program before it runs.

    ``ranges``: an interval for each expression, given that all checks hold. ``corners``: the
    values of all expressions at extreme live scalars for which all checks hold. Intervals can
    only prove and corners can only refute; what neither decides is left to the checks that the
    replayer makes at each execute. ``samples``: values at several live scalars within their
    bounds, whether the checks hold or not.
    """

    ranges: Sequence[Interval]
    corners: Sequence[Sequence[int]]
    samples: Sequence[Sequence[int]]
    #: The upper end of each interval.
    maxima: Sequence[int]

    def refutes(
        self,
        proven: bool,
        holds: Callable[[Sequence[int]], bool],
        corners: Sequence[Sequence[int]] | None = None,
    ) -> bool:
        """Whether a property that the intervals have not ``proven`` is broken at a corner
        (at one of ``corners``, where only some can occur)."""
        if proven:
            return False
        return not all(map(holds, self.corners if corners is None else corners))

    def check_within(
        self,
        index: int,
        lo: int,
        hi: int,
        place: str,
        corners: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Expression ``index`` stays within lo..hi (at ``corners``: see :meth:`refutes`)."""
        low, high = self.ranges[index]
        if self.refutes(
            lo <= low and high <= hi, lambda corner: lo <= corner[index] <= hi, corners
        ):
            fail(place, f"expression {index} can reach [{low}, {high}], outside of {lo}..{hi}")


def learn(program: dl.Program) -> Knowledge:
    """Evaluate the verified expression table at some points, and its ranges.

    Raises InvalidProgramError when an expression can leave 64 bits or always divides by zero.
    """
    exprs, symints = program.exprs, program.symints
    checks = [check.expr for check in program.checks]
    ranges = bounds(exprs, symints)  # without the checks: they are evaluated before they hold
    maxima = known_maxima(exprs, checks, ranges)
    if maxima:
        ranges = bounds(exprs, symints, maxima)
    walk = Evaluator(exprs, range(len(exprs)))
    low = [s.lo for s in symints]
    high = [s.hi for s in symints]
    points = [low, high]
    # One live scalar at its end and the others at their start, where that is still cheap.
    if 1 < len(symints) <= 8:
        points += [[*low[:i], high[i], *low[i + 1 :]] for i in range(len(symints))]
    corners, samples = [], []
    # Two points inside, at another fraction of each range, so that products differ.
    inner = [
        [s.lo + (s.hi - s.lo) * (i + k) // (i + k + 2) for i, s in enumerate(symints)]
        for k in (1, 3)
    ]
    for position, point in enumerate([*points, *inner]):
        try:
            values = walk(point)
        except EvaluationError:
            continue
        samples.append(values)
        if position < len(points) and all(values[check] for check in checks):
            corners.append(values)
        if not symints:
            break  # all points are the same
    return Knowledge(ranges, corners, samples, [hi for _, hi in ranges])
