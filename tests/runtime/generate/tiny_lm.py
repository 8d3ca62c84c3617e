"""A language model of no weights, made by hand: its logits are a hash of all tokens so far, which
it reads from its cache. A wrong, missing or stale row of the cache changes every logit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from programs import LIVE, Build, R, W
from pte_files import MethodSpec, delegated, write_pte

from executorch_wgpu.runtime.generate.sampling import pcg32, sample
from executorch_wgpu.serialization.dispatch_list import (
    BufferKind,
    Check,
    DType,
    ExprOp,
    Feedback,
    Param,
    ParamKind,
    Program,
    SymSource,
    Tensor,
)

VOCAB, CONTEXT, MOST = 96, 64, 8
EOS = (0, 1)
CACHE = "layers.0.attention.k_cache"

PCG = """
fn pcg(v: u32) -> u32 {
    let s = v * 747796405u + 2891336453u;
    let w = ((s >> ((s >> 28u) + 4u)) ^ s) * 277803737u;
    return (w >> 22u) ^ w;
}
fn at(slot: u32) -> u32 { return live[slot / 4u][slot % 4u]; }
"""
ONE = "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {\n"

#: cache[POS + i] = tokens[i] + 1, for i below S.
STORE = (
    "override S: u32;\noverride POS: u32;\n"
    + LIVE
    + "@group(1) @binding(0) var<storage, read> tokens: array<i32>;\n"
    + "@group(1) @binding(1) var<storage, read_write> cache: array<i32>;\n"
    + PCG
    + ONE
    + "    if (id.x < at(S)) { cache[at(POS) + id.x] = tokens[id.x] + 1; }\n}\n"
)

#: logits[v] = hash(v, cache[0 .. END]), spread over 0 .. 8, for v below COUNT.
HASH = (
    "override END: u32;\noverride COUNT: u32;\n"
    + LIVE
    + "@group(1) @binding(0) var<storage, read> cache: array<i32>;\n"
    + "@group(1) @binding(1) var<storage, read_write> logits: array<f32>;\n"
    + PCG
    + ONE
    + """    if (id.x >= COUNT) { return; }
    var h = 0u;
    for (var i = 0u; i < at(END); i += 1u) { h = pcg(h ^ (u32(cache[i]) * 31u + i)); }
    logits[id.x] = f32(pcg(h + id.x) >> 8u) / 2097152.0;
}
"""
)

#: The sampling of executorch_wgpu.runtime.generate.sampling, by one invocation.
SAMPLE = (
    "override END: u32;\noverride COUNT: u32;\n"
    + LIVE
    + "".join(
        f"@group(1) @binding({i}) var<storage, read> {name}: array<{kind}>;\n"
        for i, (name, kind) in enumerate(
            [("logits", "f32"), ("temperature", "f32"), ("top_p", "f32"), ("top_k", "i32"),
             ("seed", "i32")]
        )
    )
    + "@group(1) @binding(5) var<storage, read_write> token: array<i32>;\n"
    + PCG
    + """
fn weight(v: u32, top: f32) -> f32 { return exp((logits[v] - top) / temperature[0]); }
@compute @workgroup_size(1) fn main() {
    var best = 0u;
    for (var v = 0u; v < COUNT; v += 1u) { if (logits[v] > logits[best]) { best = v; } }
    if (temperature[0] == 0.0) { token[0] = i32(best); return; }
    let top = logits[best];
    var total = 0.0;
    for (var v = 0u; v < COUNT; v += 1u) {
        var above = 0;
        for (var o = 0u; o < COUNT; o += 1u) { if (logits[o] > logits[v]) { above += 1; } }
        if (top_k[0] == 0 || above < top_k[0]) { total += weight(v, top); }
    }
    var kept = 0.0;
    var chosen = best;
    for (var round = 0u; round < 2u; round += 1u) {
        let u = f32(pcg(pcg(u32(seed[0])) + at(END)) >> 8u) / 16777216.0;
        let target_weight = u * kept;
        var sum = 0.0;
        for (var v = 0u; v < COUNT; v += 1u) {
            var above = 0;
            var before = 0.0;
            for (var o = 0u; o < COUNT; o += 1u) {
                if (logits[o] > logits[v]) { above += 1; before += weight(o, top); }
            }
            if (top_k[0] != 0 && above >= top_k[0]) { continue; }
            if (before >= top_p[0] * total) { continue; }
            sum += weight(v, top);
            chosen = v;
            if (round == 1u && sum > target_weight) { break; }
        }
        kept = sum;
    }
    token[0] = i32(chosen);
}
"""
)  # fmt: skip


def method(
    kind: str, *, share: str = "kv", feedback: bool = True, context: int = CONTEXT, all_logits=False
) -> Program:
    """The program of ``forward`` or ``generate``."""
    b = Build()
    one, vocab = b.const(1), b.const(VOCAB)
    s = b.sym("S", SymSource.INPUT_DIM, 0, 1, 1, MOST)
    tokens = b.input("tokens", DType.I64, [one, s], MOST * 4)
    pos = b.sym("input_pos[0]", SymSource.TENSOR_ELEMENT, 1, 0, 0, context - 1)
    b.input("input_pos", DType.I64, [one], None)
    end = b.expr(ExprOp.ADD, s, pos)
    cache = b.buffer(BufferKind.STATE, context * 4, CACHE, share=share)
    shape = (one, b.const(context), one, one)
    strides = (b.const(context), one, one, one)
    b.tensors.append(Tensor(DType.I32, shape, strides, b.const(0), cache))
    params = [Param("S", ParamKind.LIVE, b.slot(s)), Param("POS", ParamKind.LIVE, b.slot(pos))]
    b.simple(b.dispatch(b.kernel(STORE, (R, W), params), [tokens, cache], (one, one, one), "store"))
    if kind == "forward":
        logits = b.output("logits", DType.F32, [one, one, vocab], VOCAB * 4)
    else:
        logits = b.buffer(BufferKind.SCRATCH, VOCAB * 4, "logits")
    params = [Param("END", ParamKind.LIVE, b.slot(end)), Param("COUNT", ParamKind.U32, VOCAB)]
    kernel = b.kernel(HASH, (R, W), params)
    b.simple(b.dispatch(kernel, [cache, logits], (b.const(2), one, one), "hash"))
    if kind == "generate":
        scalars = [
            b.input(name, dtype, [one], 4)
            for name, dtype in [
                ("temperature", DType.F32),
                ("top_p", DType.F32),
                ("top_k", DType.I64),
                ("seed", DType.I64),
            ]
        ]
        out = b.output("next_token", DType.I64, [one, one], 4)
        kernel = b.kernel(SAMPLE, (R,) * 5 + (W,), params, (1, 1, 1))
        b.simple(b.dispatch(kernel, [logits, *scalars, out], (one, one, one), "sample"))
        if feedback:
            b.feedback.append(Feedback(0, 0))
    limit = b.const(context)
    b.checks.append(
        Check(
            b.expr(ExprOp.LE, end, limit),
            "input_pos {0} + {1} tokens exceed the cache of {2} positions",
            (pos, s, limit),
        )
    )
    return b.program()


def constants(name: str, *values: int) -> MethodSpec:
    return MethodSpec(name, list(values), [], list(range(len(values))))


def tiny_pte(*kinds: str, context: int = CONTEXT, metadata: bool = True, **options: bool) -> bytes:
    """A file with ``forward`` and ``generate`` (or ``kinds``), and the metadata methods."""
    methods = [
        delegated(kind, method(kind, context=context, **options))
        for kind in kinds or ("forward", "generate")
    ]
    if metadata:
        methods += [
            constants("get_max_seq_len", MOST),
            constants("get_max_context_len", context),
            constants("get_vocab_size", VOCAB),
            constants("get_bos_id", 2),
            constants("get_eos_ids", *EOS),
            constants("use_kv_cache", 1),
        ]
    return write_pte(methods)


def logits(tokens: Sequence[int]) -> np.ndarray:
    """What the model computes."""
    h = 0
    for i, token in enumerate(tokens):
        h = pcg32(h ^ (((token + 1) * 31 + i) & 0xFFFFFFFF))
    row = [pcg32((h + v) & 0xFFFFFFFF) >> 8 for v in range(VOCAB)]
    return np.array(row, np.float32) / np.float32(1 << 21)


def continuation(
    prompt: Sequence[int],
    count: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> list[int]:
    """``count`` tokens after ``prompt``, eos tokens included."""
    tokens = list(prompt)
    for _ in range(count):
        row = logits(tokens)
        tokens.append(sample(row, temperature, top_p, top_k, seed, len(tokens)))
    return tokens[len(prompt) :]


class Letters:
    """A tokenizer of one character a token: ids 32 .. 95 are capital letters and signs, ids below
    are bytes of UTF-8 that make Greek letters of two tokens each (ids 4, 5 and 8 .. 31)."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        raw = b"".join(
            bytes([i]) if i >= 32 else bytes([0xCE]) if i % 2 else bytes([0xB0 + i % 16])
            for i in ids
        )
        return raw.decode("utf8", "replace")
