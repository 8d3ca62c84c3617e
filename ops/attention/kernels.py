"""The attention kernels, and which of them runs when.

Query heads that share a KV head are *rows* of one problem: row ``s * group + g`` of KV head h is
query head ``h * group + g`` at position s. So K and V are read once for a whole group (GQA, MQA)
and a tile of rows may span heads and positions alike.

* ``decode`` (one position) and ``short`` (a few): the context is split over workgroups, each does
  an online softmax over its share in one pass over K and V, and a second dispatch merges the
  shares (flash-decoding; online softmax as in Milakov & Gimelshein 2018).
* ``prefill``: a workgroup owns a tile of rows and walks the context up to the last key that one of
  them may see, K and V passing through workgroup memory (FlashAttention's loop).

None of them stores rows x context anywhere. Scores are kept in units of log2: the scale carries
log2(e) and exp becomes exp2."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from executorch_wgpu.ops.builder import (
    MAX_GROUPS,
    Bind,
    Builder,
    DispatchSpec,
    Number,
    RouteSpec,
)
from executorch_wgpu.ops.halves import codec, element, is_half
from executorch_wgpu.ops.symbolic import (
    Scalar,
    Sym,
    ceil_div,
    equal,
    less_equal,
    lower_bound,
    maximum,
    minimum,
    upper_bound,
)
from executorch_wgpu.ops.templates import float_literal
from executorch_wgpu.ops.tensor import Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType
from executorch_wgpu.serialization.limits import DEFAULT_LIMITS

#: Head dimensions beyond this do not fit the kernels' workgroup memory and registers.
MAX_HEAD_DIM = 256
#: Bytes of workgroup memory that every device has.
WORKGROUP_MEMORY = DEFAULT_LIMITS["max-compute-workgroup-storage-size"]

# Split kernel. Every workgroup walks tiles of DECODE_TILE positions; LANES threads share the dot
# product of one position, SOFTMAX_LANES threads the softmax of one row.
DECODE_THREADS = 128
DECODE_TILE = 64
LANES = 4
SOFTMAX_LANES = 16
#: A split is one tile until there would be more splits than this; then splits grow.
MAX_SPLITS = 64
#: vec4 of K (of each position) and of V that a thread has in flight at once. A tile of V that
#: takes no more is read before the softmax, which it does not depend on.
UNROLL = 4
UNROLL_VALUES = 8
#: The most positions that are still done by splitting the context.
SHORT_ROWS = 16

# Merge kernel.
REDUCE_THREADS = 128

# Prefill kernel: ROW_GROUPS x COLUMNS threads, 4 rows and KEYS_PER_THREAD keys a thread.
ROW_GROUPS = 8
COLUMNS = 16
KEYS_PER_THREAD = 4
#: vec4 of a head that pass through workgroup memory at once for the scores.
SLICE = 4

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Problem:
    """softmax(scale * query @ key^T + mask) @ value.

    ``query`` [B, S, Hq, D], ``key``/``value`` [B, C, Hkv, D], ``mask`` [S, C] or None, each of any
    float dtype and any strides. ``length``: keys that count, from 0. ``causal``: row s sees keys
    up to ``start + s``. ``result``: dtype of the result."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    start: Scalar
    length: Scalar
    causal: bool
    scale: float
    result: DType = DType.F32

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return int(self.query.shape[2]) // self.kv_heads  # type: ignore[arg-type]

    @property
    def kv_heads(self) -> int:
        return int(self.key.shape[2])  # type: ignore[arg-type]

    @property
    def dim(self) -> int:
        return int(self.query.shape[3])  # type: ignore[arg-type]

    @property
    def units(self) -> int:
        """vec4 that hold one head, the last padded with zeros."""
        return -(-self.dim // 4)

    @property
    def rows(self) -> Scalar:
        """Rows of one KV head in one batch."""
        return self.query.shape[1] * self.group

    @property
    def flops(self) -> Scalar:
        """Of both products, over the keys that each row sees; a multiply-add is two."""
        positions = self.query.shape[1]
        seen = positions * self.length
        if self.causal:
            seen = positions * self.start + positions * (positions + 1) // 2
        return 4 * self.dim * self.query.shape[2] * self.query.shape[0] * seen

    @property
    def read_bytes(self) -> Scalar:
        """Bytes of the query, the mask, and the keys and values that count, each once."""
        operands = [self.query] if self.mask is None else [self.query, self.mask]
        row = self.kv_heads * self.dim * self.key.dtype.storage_bytes
        return touched_bytes(operands) + 2 * self.key.shape[0] * self.length * row


@dataclass(frozen=True)
class Fresh:
    """What is new at this step, before its rotation and before it is in the caches.

    ``query`` [B, S, Hq, D], ``key`` and ``value`` [B, S, Hkv, D]; ``cos`` and ``sin`` [B, S, W], W
    being D, or D / 2 for ``interleaved`` pairs. ``normed``: q or k go through a norm first.
    ``stored``: the dispatch that does all that, for the kernels that find it done."""

    query: Tensor
    key: Tensor
    value: Tensor
    cos: Tensor
    sin: Tensor
    interleaved: bool
    normed: bool
    stored: DispatchSpec


def _takes_fresh(problem: Problem, fresh: Fresh, rows: int) -> bool:
    """Whether the split kernel, with ``rows`` rows a tile, can rotate and store one position."""
    if _split_bytes(problem.units, rows) + 32 * problem.units > WORKGROUP_MEMORY:
        return False
    parts = (fresh.query, fresh.key, fresh.value)
    one = parts[0].storage
    # One binding serves q, k and v, and with the tables, caches and results there are no more.
    if any(x.storage is not one or x.dtype is not parts[0].dtype for x in parts):
        return False
    if fresh.cos.storage is one or fresh.sin.storage is one or not problem.causal:
        return False
    if fresh.normed or lower_bound(problem.key.shape[1]) < 2:
        return False  # the kernel reads beside the position that it writes
    vectors = all(_vector(x) for x in (*parts, problem.key, problem.value))
    return vectors and (fresh.interleaved or problem.dim % 8 == 0)


def max_rows(group: int) -> int:
    """The most positions that one dispatch of the prefill kernel can take."""
    return MAX_GROUPS * 4 * ROW_GROUPS // group


def emit_attention(b: Builder, problem: Problem, fresh: Fresh | None = None) -> Tensor:
    """Append the step; returns a contiguous [B, S, Hq, D]. With ``fresh`` the step rotates and
    stores what is new, too, in the dispatch of the attention where that is one position."""
    query = problem.query
    before = [] if fresh is None else [fresh.stored]
    out = b.empty(query.shape, problem.result, "attention")
    positions = query.shape[1]
    routes: list[RouteSpec] = []
    most = _max_tile_rows(problem.units)
    even = -(-problem.group // -(-problem.group // most))  # 9 rows as 5 + 4 rather than 8 + 1
    for name, rows, guard in (
        ("decode", even, equal(positions, 1)),
        ("short", most, less_equal(positions, SHORT_ROWS)),
        ("prefill", 0, 1),
    ):
        if not isinstance(guard, Sym) and not guard:
            continue  # not built at all: its live values would take slots of the live block
        if name == "prefill":
            routes.append(RouteSpec(name, [*before, _prefill(b, problem, out)]))
            break
        if isinstance(problem.rows, int):
            rows = min(rows, max(1, problem.rows))
        bound = 1 if name == "decode" else SHORT_ROWS
        if name == "decode" and fresh is not None and _takes_fresh(problem, fresh, rows):
            dispatches = _split(b, problem, out, rows, bound, fresh)
        else:
            dispatches = [*before, *_split(b, problem, out, rows, bound)]
        routes.append(RouteSpec(name, dispatches, guard))
        if not isinstance(guard, Sym):
            break
    b.step(*routes)
    return out


# -- interface of the templates -----------------------------------------------------------------


def _load(params: dict[str, Number], name: str, tensor: Tensor) -> tuple[Bind, dict[str, Any]]:
    """Declare how rows of ``tensor`` [B, N, H, D] are addressed: parameters ``<name>_AT``, ``_B``,
    ``_N``, ``_H`` in units of the bound element, vec4 where the layout allows that."""
    unit = 4 if _vector(tensor) else 1
    params[f"{name}_AT"] = tensor.offset // unit
    for axis, stride in zip("BNH", tensor.strides, strict=False):
        params[f"{name}_{axis}"] = stride // unit
    if unit == 1:
        params[f"{name}_D"] = tensor.strides[3]
    consts = {f"{name}_VEC": unit == 4, f"{name}_CODEC": codec(tensor.dtype)}
    return Bind(tensor, element(tensor.dtype, unit == 4)), consts


def _vector(tensor: Tensor) -> bool:
    """Whether every row of D elements is a run of whole, aligned vec4."""
    *outer, inner = (
        0 if size == 1 else stride  # means nothing there
        for size, stride in zip(tensor.shape, tensor.strides, strict=True)
    )
    return (
        tensor.shape[3] % 4 == 0
        and inner == 1
        and tensor.offset % 4 == 0
        and all(s % 4 == 0 for s in outer)
    )


def _operands(
    problem: Problem,
) -> tuple[dict[str, Bind], dict[str, Number], dict[str, Any]]:
    """Bindings, parameters and template constants that the two kernels over K and V share."""
    params: dict[str, Number] = {
        "ROWS": problem.rows,
        "LENGTH": problem.length,
        "SCALE": float(problem.scale * LOG2_E),
    }
    consts: dict[str, Any] = {
        "DIM": problem.dim,
        "UNITS": problem.units,
        "GROUP": problem.group,
        "CAUSAL": problem.causal,
        "MASK": problem.mask is not None,
        "LOG2_E": float_literal(LOG2_E),
        "FRESH": None,
    }
    reads: dict[str, Bind] = {}
    for name, tensor in (("Q", problem.query), ("K", problem.key), ("V", problem.value)):
        reads[name.lower()], more = _load(params, name, tensor)
        consts |= more
    if problem.causal:
        params["START"] = problem.start
    if problem.mask is not None:
        # Words, so that -inf is told by its bits: WGSL need not know infinity.
        consts["MASK_CODEC"] = codec(problem.mask.dtype)
        reads["mask"] = Bind(problem.mask, "u32")
        params["MASK_AT"] = problem.mask.offset
        params["MASK_ROW"], params["MASK_KEY"] = problem.mask.strides
    return reads, params, consts


def _output(out: Tensor, dim: int) -> tuple[Bind, dict[str, Any]]:
    vector, half = dim % 4 == 0, is_half(out.dtype)
    bound = "atomic<u32>" if half and not vector else element(out.dtype, vector)
    return Bind(out, bound), {"OUT_VEC": vector, "OUT_CODEC": codec(out.dtype)}


# -- splitting the context ----------------------------------------------------------------------


def _split_pool(units: int, rows: int) -> int:
    """vec4 of workgroup memory that serve the split kernel first for shares of dot products, then
    to add up the groups."""
    shares = LANES * (DECODE_TILE * -(-rows // 4) + 2)
    return max(shares, _merge_pool(units, DECODE_THREADS) * rows)


def _split_bytes(units: int, rows: int) -> int:
    """Workgroup memory of the split kernel with ``rows`` rows a tile."""
    vectors = rows * units + _split_pool(units, rows)
    scalars = rows * (DECODE_TILE + SOFTMAX_LANES + 1)
    return 16 * vectors + 4 * scalars


def _merge_pool(units: int, threads: int) -> int:
    """vec4 a row needs in workgroup memory to add up the groups of ``threads``: the upper half of
    them writes, the lower half adds."""
    return _groups(units, threads) // 2 * units


def _groups(units: int, threads: int) -> int:
    """How many positions are summed side by side when each takes ``units`` threads: a power of
    two, so that it divides a tile."""
    return min(1 << (threads // units).bit_length() - 1, DECODE_TILE)


def _max_tile_rows(units: int) -> int:
    """The most rows a workgroup of the split kernel can hold."""
    rows = DECODE_THREADS // SOFTMAX_LANES
    while _split_bytes(units, rows) > WORKGROUP_MEMORY:
        rows -= 1
    return rows


def _split(
    b: Builder,
    problem: Problem,
    out: Tensor,
    tile: int,
    positions: int,
    fresh: Fresh | None = None,
) -> list[DispatchSpec]:
    """Two dispatches for up to ``positions`` positions, ``tile`` rows a workgroup."""
    if fresh is not None:
        problem = replace(problem, query=fresh.query)
    units, batch, heads = problem.units, problem.query.shape[0], problem.kv_heads
    tiles = ceil_div(problem.length, DECODE_TILE)
    tiles_per_split = maximum(ceil_div(tiles, MAX_SPLITS), 1)
    splits = ceil_div(tiles, tiles_per_split)
    rows_bound = min(upper_bound(problem.rows), positions * problem.group)
    # The checks keep the length within the caches, which the live scalars' own bounds may not.
    longest = min(upper_bound(problem.length), upper_bound(problem.key.shape[1]))
    shares = upper_bound(batch) * heads * rows_bound * min(-(-longest // DECODE_TILE), MAX_SPLITS)
    sums = b.empty((shares, units * 4), DType.F32, "attention_sums")
    stats = b.empty((shares, 2), DType.F32, "attention_stats")
    reads, params, consts = _operands(problem)
    params |= {"SPLITS": splits, "SPAN": tiles_per_split * DECODE_TILE}
    row_tiles = ceil_div(minimum(problem.rows, rows_bound), tile)
    written = batch * heads * problem.rows * splits * (4 * units + 2) * 4
    groups = _groups(units, DECODE_THREADS)
    caches = {}
    if fresh is not None:
        caches = {name: reads.pop(name) for name in ("k", "v")}
        consts |= _fresh(fresh, reads, params)
    split = b.dispatch(
        "attention/decode_split.wgsl",
        "sdpa_rope_cache_split" if fresh is not None else "sdpa_decode_split",
        reads=reads,
        writes={**caches, "sums": Bind(sums, "vec4<f32>"), "stats": Bind(stats, "vec2<f32>")},
        params=params,
        consts={
            **consts,
            "OUT_CODEC": "",
            "HEADS": heads,
            "TILE": DECODE_TILE,
            "TILE_ROWS": tile,
            "LANES": LANES,
            "SOFTMAX_LANES": SOFTMAX_LANES,
            "GROUPS": groups,
            # Numbers of groups left after each round of adding the upper half to the lower.
            "MERGE": [groups >> i for i in range(1, groups.bit_length())],
            "UNROLL": UNROLL,
            "UNROLL_VALUES": UNROLL_VALUES,
            "POOL": _split_pool(units, tile),
        },
        grid=(splits, row_tiles * heads, batch),
        workgroup=(DECODE_THREADS,),
        workgroup_bytes=_split_bytes(units, tile) + (0 if fresh is None else 32 * units),
        bytes=problem.read_bytes + written,
        flops=problem.flops,
    )
    bind, more = _output(out, problem.dim)
    groups = _groups(units, REDUCE_THREADS)
    pool = max(1, _merge_pool(units, REDUCE_THREADS))
    merge = b.dispatch(
        "attention/decode_reduce.wgsl",
        "sdpa_decode_reduce",
        reads={"sums": Bind(sums, "vec4<f32>"), "stats": Bind(stats, "vec2<f32>")},
        writes={"out": bind},
        params={
            "ROWS": problem.rows,
            "SPLITS": splits,
            "POSITIONS": problem.query.shape[1],
        },
        consts={
            "DIM": problem.dim,
            "UNITS": units,
            "GROUP": problem.group,
            "HEADS": heads,
            "MAX_SPLITS": MAX_SPLITS,
            "GROUPS": groups,
            # Numbers of groups left after each round of adding the upper half to the lower.
            "MERGE": [groups >> i for i in range(1, groups.bit_length())],
            "POOL": pool,
            **more,
        },
        grid=(minimum(problem.rows, rows_bound), heads, batch),
        workgroup=(REDUCE_THREADS,),
        workgroup_bytes=16 * pool + 8 * MAX_SPLITS,
        bytes=written + touched_bytes([out]),
        flops=2 * problem.dim * batch * heads * problem.rows * splits,
    )
    return [split, merge]


def _fresh(fresh: Fresh, reads: dict[str, Bind], params: dict[str, Number]) -> dict[str, Any]:
    """Bindings, parameters and template constants of what is new."""
    for name, tensor in (("FRESH_K", fresh.key), ("FRESH_V", fresh.value)):
        params[f"{name}_AT"] = tensor.offset // 4
        params[f"{name}_B"] = _step(tensor, 0) // 4
        params[f"{name}_H"] = _step(tensor, 2) // 4
    described: dict[str, Any] = {}
    for name, tensor in (("cos", fresh.cos), ("sin", fresh.sin)):
        same = name == "sin" and tensor.storage is fresh.cos.storage
        same = same and tensor.dtype is fresh.cos.dtype
        if not same:
            reads[name] = Bind(tensor)
        described[name] = {"name": "cos" if same else name, "codec": codec(tensor.dtype)}
        params[f"{name.upper()}_AT"] = tensor.offset
        params[f"{name.upper()}_B"] = _step(tensor, 0)
        params[f"{name.upper()}_D"] = _step(tensor, 2)
    return {"FRESH": described, "INTERLEAVED": fresh.interleaved}


def _step(tensor: Tensor, dim: int) -> Scalar:
    """A stride; 0 for a size of 1, whose stride means nothing."""
    return 0 if tensor.shape[dim] == 1 else tensor.strides[dim]


# -- prefill ------------------------------------------------------------------------------------


def _prefill(b: Builder, problem: Problem, out: Tensor) -> DispatchSpec:
    """One dispatch for any number of positions."""
    reads, params, consts = _operands(problem)
    bind, more = _output(out, problem.dim)
    params["POSITIONS"] = problem.query.shape[1]
    tile_rows, tile_keys = 4 * ROW_GROUPS, COLUMNS * KEYS_PER_THREAD
    keys_stride = SLICE + 1  # padded, so that threads of one column meet different banks
    stage = tile_keys * keys_stride + tile_rows * SLICE
    value_keys = tile_keys
    while value_keys * problem.units > stage:
        value_keys //= 2
    return b.dispatch(
        "attention/prefill.wgsl",
        "sdpa_prefill",
        reads=reads,
        writes={"out": bind},
        params=params,
        consts={
            **consts,
            **more,
            "HEADS": problem.kv_heads,
            "ROW_GROUPS": ROW_GROUPS,
            "COLUMNS": COLUMNS,
            "KEYS": KEYS_PER_THREAD,
            "SLICE": SLICE,
            "KEYS_STRIDE": keys_stride,
            "STAGE": stage,
            "VALUE_KEYS": value_keys,
        },
        grid=(ceil_div(problem.rows, tile_rows), problem.kv_heads, problem.query.shape[0]),
        workgroup=(ROW_GROUPS * COLUMNS,),
        workgroup_bytes=16 * (stage + tile_keys * (ROW_GROUPS + 1)),
        bytes=problem.read_bytes + touched_bytes([out]),
        flops=problem.flops,
    )
