"""``wgpu.sample``: the next token of a row of logits (see operator.py for what is computed).

Routes by ``top_k``, which the host knows. 1, which is greedy decoding too, takes two dispatches.
The others search: top_k's limit is the largest key that so many logits reach, found five bits a
dispatch among 32 bins, exactly; top_p's is the largest distance from the best logit nearer than
which less than top_p lies, found the same way on a grid of 2^-20 of the temperature. Sums are made
in an order of their own but always the same: no atomics, so a result can be reproduced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from executorch_wgpu.ops.builder import Bind, Builder, DispatchSpec, Number, RouteSpec
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.pointwise import materialize
from executorch_wgpu.ops.halves import FLOATS, codec
from executorch_wgpu.ops.registry import register
from executorch_wgpu.ops.symbolic import ceil_div, either, equal, less_equal, product
from executorch_wgpu.ops.tensor import Tensor
from executorch_wgpu.serialization.dispatch_list import DType

#: Threads of a workgroup; the searches' templates are written for it.
WORKGROUP = 256
#: Logits that a workgroup has in its memory at once.
TILE = 1024
#: Workgroups of a search at most: what each next one has to add up.
MOST_GROUPS = 64
#: Distances of 32 bins: five bits of a key each, the last two, and five bits of the grid each.
KEY_SHIFTS = (27, 22, 17, 12, 7, 2, 0)
GRID_SHIFTS = (20, 15, 10, 5, 0)


def _reason(call: OpCall) -> str | None:
    logits = call["logits"]
    if logits.dtype not in FLOATS:
        return f"{logits.dtype.name.lower()} logits"
    if logits.rank == 0 or not all(isinstance(size, int) for size in logits.shape):
        return f"logits of shape {list(logits.shape)}"
    if any(size != 1 for size in logits.shape[:-1]) or logits.shape[-1] < 1:
        return f"logits of shape {list(logits.shape)}: one row is expected"
    for name in ("temperature", "top_p"):
        value = call[name]
        if value.dtype is not DType.F32 or value.shape != (1,):
            return f"{name}: {value.dtype.name.lower()}{list(value.shape)}, f32[1] is expected"
    return None


@register("wgpu.sample.default", supports=_reason)
def sample(b: Builder, call: OpCall) -> Tensor:
    """``logits`` [..., V] of one row, ``temperature`` and ``top_p`` f32 [1], ``top_k``, ``seed``
    and ``position`` live ints -> i64 [1, 1]."""
    logits = call["logits"]
    row = logits.try_view((product(logits.shape),))
    if row is None or (row.strides[0] != 1 and row.shape[0] != 1):
        row = materialize(b, logits, "logits").with_layout((logits.shape[-1],), (1,), 0)
    for name in ("temperature", "top_p"):
        if call[name].offset != 0:
            call = replace(call, args={**call.args, name: materialize(b, call[name], name)})
    token = b.empty((1, 1), DType.I64, "token")
    search = _Search(b, row, call, token)
    top_k, size = call["top_k"], search.size
    off = either(less_equal(top_k, 0), less_equal(size, top_k))
    b.step(
        RouteSpec("first", search.first(), equal(top_k, 1)),
        RouteSpec("all", search.drawn(among_top_k=False), off),
        RouteSpec("top_k", search.drawn(among_top_k=True)),
    )
    return token


class _Search:
    """The dispatches of one call."""

    def __init__(self, b: Builder, row: Tensor, call: OpCall, token: Tensor) -> None:
        self.b, self.row, self.call, self.token = b, row, call, token
        self.size = int(row.shape[0])
        self.tiles = int(ceil_div(self.size, TILE * MOST_GROUPS))
        self.groups = int(ceil_div(self.size, TILE * self.tiles))
        self.draw: dict[str, Number] = {name.upper(): call[name] for name in ("seed", "position")}

    def first(self) -> list[DispatchSpec]:
        """The largest logit."""
        maxima = self._maxima()
        part = int(ceil_div(self.size, WORKGROUP))
        reads = {"maxima": maxima}
        written = {"token": self.token}
        first = self._dispatch("first", reads, written, params=self.draw, PART=part)
        return [self._find(maxima, several=True), first]

    def _maxima(self) -> Bind:
        return Bind(self._words(2 * self.groups, "maxima"), "vec2<u32>")

    def _find(self, maxima: Bind, several: bool = False) -> DispatchSpec:
        consts = {"CHUNK": self.tiles * TILE, "SEVERAL": several}
        return self._dispatch("maxima", {}, {"maxima": maxima}, heat=False, **consts)

    def drawn(self, among_top_k: bool) -> list[DispatchSpec]:
        """One that is drawn."""
        pairs = self._maxima()
        found = [self._find(pairs)]
        known = _Known()
        for shift in KEY_SHIFTS if among_top_k else ():
            params: dict[str, Number] = {"TOP_K": self.call["top_k"]} if known.words else {}
            known = self._next(found, "count", known, shift, params, {})
        for shift in GRID_SHIFTS:
            first = shift == GRID_SHIFTS[0]
            params = {"TOP_K": self.call["top_k"]} if known.kind == "count" else {}
            reads: dict[str, Bind] = {"top_p": Bind(self.call["top_p"])}
            if first:
                reads["maxima"] = pairs
            known = self._next(
                found, "weight", known, shift, params, reads, FIRST=first, template="gather"
            )
        known = self._next(
            found, "sums", known, 0, {}, {"top_p": Bind(self.call["top_p"])}, words=self.groups
        )
        assert known.words is not None
        reads = {"maxima": pairs, "kept": Bind(known.words, "u32")}
        found.append(self._dispatch("choose", reads, {"token": self.token}, params=self.draw))
        return found

    def _next(
        self,
        found: list[DispatchSpec],
        kind: str,
        known: _Known,
        shift: int,
        params: dict[str, Number],
        reads: dict[str, Bind],
        *,
        template: str = "",
        words: int = 0,
        **consts: Any,
    ) -> _Known:
        """Appends the dispatch that knows more; returns what it will know."""
        after = self._words(4 + (words or 32 * self.groups), kind)
        if known.words is not None:
            reads = {**reads, "before": Bind(known.words, "u32")}
        fresh = known.kind == "weight" and known.shift == GRID_SHIFTS[0]
        found.append(
            self._dispatch(
                template or kind,
                reads,
                {"after": Bind(after, "u32")},
                params=params,
                groups=self.groups,
                SHIFT=shift,
                BEFORE=known.kind,
                BEFORE_SHIFT=known.shift,
                FRESH=fresh,
                **consts,
            )
        )
        return _Known(after, kind, shift)

    def _words(self, count: int, name: str) -> Tensor:
        return self.b.empty((count,), DType.I32, name)

    def _dispatch(
        self,
        template: str,
        reads: dict[str, Bind],
        writes: dict[str, Any],
        *,
        params: dict[str, Number] | None = None,
        groups: int | None = None,
        heat: bool = True,
        **consts: Any,
    ) -> DispatchSpec:
        half = codec(self.row.dtype)
        bound = {"logits": Bind(self.row, "u32")}
        if heat:
            bound["temperature"] = Bind(self.call["temperature"])
        return self.b.dispatch(
            f"sampling/{template}.wgsl",
            f"sample_{template}",
            reads={**bound, **reads},
            writes=writes,
            params={**(params or {}), "LOGITS_AT": self.row.offset},
            consts={
                "V": self.size,
                "LOGITS": half,
                "TILES": self.tiles,
                "GROUPS": self.groups,
                **consts,
            },
            grid=(self.groups if template == "maxima" else groups or 1,),
            workgroup=(WORKGROUP,),
            workgroup_bytes=10 * 1024,
        )


class _Known:
    """What a dispatch of a search has left: in ``words``, about bins ``1 << shift`` apart."""

    def __init__(self, words: Tensor | None = None, kind: str = "", shift: int = 0) -> None:
        self.words, self.kind, self.shift = words, kind, shift
