"""What the checker of shared memory refuses and lets through; that it sees every kernel is the
matter of tests/conftest.py, which shows it each one that a test renders."""

from __future__ import annotations

import re

import pytest
import torch

from executorch_wgpu.scripts.memory_model import EXCEPTIONS, problems_in, problems_of
from executorch_wgpu.scripts.wgsl_reader import read, tokens_of
from executorch_wgpu.serialization.dispatch_list import (
    Access,
    Binding,
    Buffer,
    BufferKind,
    Dispatch,
    Kernel,
    Program,
    Route,
    Shader,
    Step,
)  # fmt: skip

from harness import Chain

HEAD = """
@group(0) @binding(0) var<uniform> live_block: array<vec4<u32>, 16>;
fn live_u32(slot: u32) -> u32 { return live_block[slot >> 2u][slot & 3u]; }
@group(1) @binding(0) var<storage, read> x: array<f32>;
@group(1) @binding(1) var<storage, read_write> out: array<f32>;
@group(1) @binding(2) var<storage, read_write> flags: array<atomic<u32>>;
@group(1) @binding(3) var<storage, read_write> quads: array<vec4<f32>>;
override COUNT: u32;
var<workgroup> shared: array<f32, 64>;
var<workgroup> ready: atomic<u32>;
"""
MAIN = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let i = id.x;
%s
}
"""


def kernel(body: str, helper: str = "") -> str:
    return HEAD + helper + MAIN % body


REFUSED = {
    "a neighbour's result": ("out[i] = x[i]; let y = out[i + 1u]; out[i] = y;", "reads it at"),
    "the last workgroup reduces": (
        "out[group.x] = x[i]; if (atomicAdd(&flags[0], 1u) == COUNT) { out[0] += out[1]; }",
        "the result of atomicAdd",
    ),
    "a sum into one place": ("out[0] = x[i]; let s = out[1]; out[2] = s;", "reads it at"),
    "an index that changes between": (
        "var at = i; let y = out[at]; at += 1u; out[at] = y;",
        "reads it at",
    ),
    "the same name of two indices": (
        "{ let at = i; out[at] = 1.0; } { let at = i + 1u; shared[0] = out[at]; }",
        "reads it at",
    ),
    "a lock": (
        "loop { if (atomicExchange(&flags[0], 1u) == 0u) { break; } } out[i] = 1.0;",
        "ends it",
    ),
    "waiting for a flag": ("while (atomicLoad(&flags[0]) == 0u) { } out[i] = 1.0;", "ends it"),
    "waiting for a count": (
        "for (var n = 0u; n < 9u; n = atomicLoad(&flags[0])) { }",
        "the result of atomicLoad",
    ),
    "waiting for plain memory": ("loop { let y = out[0]; if (y > 0.0) { break; } }", "ends it"),
    "waiting for the workgroup": ("while (shared[0] == 0.0) { }", "ends it"),
    "waiting for an atomic of the workgroup": (
        "var seen = 0u; loop { seen = atomicLoad(&ready); if (seen == 1u) { break; } }",
        "ends it",
    ),
    "for ever": ("for (;;) { out[i] = 1.0; }", "ends it"),
    "a float added by compare and exchange": (
        "var old = 0u; for (var n = 0u; n < 64u; n++) { let r = atomicCompareExchangeWeak("
        "&flags[0], old, bitcast<u32>(bitcast<f32>(old) + x[i])); old = r.old_value; }",
        "atomicCompareExchangeWeak",
    ),
    "a float's bits added": (
        "atomicAdd(&flags[0], bitcast<u32>(x[i]));", "of the bits of a float",
    ),
    "atomics whose order counts": (
        "atomicAdd(&flags[0], 2u); atomicMax(&flags[0], 5u);", "depend on their order",
    ),
    "and and or of different halves": (
        "let s = (i & 1u) * 16u; let t = 16u - s; let bits = i << t;"
        "atomicAnd(&flags[i >> 1u], ~(0xffffu << s)); atomicOr(&flags[i >> 1u], bits);",
        "do not replace one half",
    ),
    "storageBarrier": ("out[i] = 1.0; storageBarrier();", "within a workgroup only"),
    "a pointer": ("let p = &out[0]; *p = 1.0;", "a pointer into storage"),
    "a part of a vector": ("quads[i / 4u][i % 4u] = 1.0;", "a store to a part of a vector"),
    "a part of a vector by name": ("quads[i].x = 1.0;", "a store to a part of a vector"),
    "a read in a function": (
        ("fn before(at: u32) -> f32 { return out[at]; }", "out[i] = before(i + 1u);"),
        "before reads it at",
    ),
    "what is read is what decides where": ("out[u32(out[i])] = 1.0;", "reads it at"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    body, message = REFUSED[name]
    helper, body = body if isinstance(body, tuple) else ("", body)
    problems = problems_of(kernel(body, helper))
    assert any(message in problem for problem in problems), problems


LET_THROUGH = {
    "in place": "out[i] = out[i] * 2.0;",
    "in place, twice the same index": "let at = i + live_u32(COUNT); out[at] += x[i];",
    "in place, in a block": "if (i < 4u) { let at = i; let y = out[at]; out[at] = y + 1.0; }",
    "a name that hides the buffer": "let quads = x[i]; out[i] = quads;",
    "a loop to a bound": "for (var k = lane; k < COUNT; k += 64u) { out[k] = x[k]; }",
    "a loop to a bound in shared memory": (
        "for (var k = 0u; k < u32(shared[0]); k++) { out[i] = x[k]; }"
    ),
    "a loop that may stop early": "loop { if (i > 3u) { break; } var n = 0u; n++; "
    "if (n > 2u) { break; } }",
    "a fold": "for (var left = 32u; left > 0u; left /= 2u) { if (lane < left) "
    "{ shared[lane] += shared[lane + left]; } workgroupBarrier(); }",
    "halves": "let s = (i & 1u) * 16u; let bits = (i & 0xffffu) << s;"
    "atomicAnd(&flags[i >> 1u], ~(0xffffu << s)); atomicOr(&flags[i >> 1u], bits);",
    "counting": "atomicAdd(&flags[lane], 1u);",
    "a size": "if (i < arrayLength(&out)) { out[i] = 1.0; }",
    "comments": "// out[i + 1u] = out[i];\n /* storageBarrier(); /* nested */ */ out[i] = 1.0;",
}


@pytest.mark.parametrize("name", LET_THROUGH)
def test_let_through(name):
    assert problems_of(kernel(LET_THROUGH[name])) == []


def test_what_is_no_wgsl_is_a_value_error():
    for text in ("fn main(", "var<storage> x: array<", "/* open", "fn f() { let a = `1`; }", "hm"):
        with pytest.raises(ValueError):
            problems_of(text)


def test_tokens():
    assert tokens_of("a>>=1u; 0x3f.8p-1f-1.5e3/*x*/b->c") == [
        *("a", ">>=", "1u", ";", "0x3f.8p-1f", "-", "1.5e3", "b", "->", "c"),
    ]


def program(wgsl: str, bound: list[int], accesses: list[Access]) -> Program:
    bindings = tuple(Binding(index, 0, 256) for index in bound)
    dispatch = Dispatch(0, bindings, (0, 0, 0), "layer/op")
    return Program(
        "test",
        buffers=tuple(Buffer(BufferKind.SCRATCH, 256, f"b{i}") for i in range(3)),
        shaders=(Shader(wgsl, (), ""),),
        kernels=(Kernel(0, "main", (), tuple(accesses), (64, 1, 1)),),
        steps=(Step((Route("only", (dispatch,)),)),),
    )


def test_bindings_of_a_dispatch():
    read, write = Access.READ, Access.READ_WRITE
    text = """
    @group(1) @binding(0) var<storage, read> x: array<f32>;
    @group(1) @binding(1) var<storage, read_write> y: array<f32>;
    @compute @workgroup_size(64) fn main() { y[0] = x[0]; }"""
    assert problems_in(program(text, [0, 1], [read, write])) == []
    assert "bound twice" in problems_in(program(text, [1, 1], [read, write]))[0]
    assert "read-only in the dispatch list" in problems_in(program(text, [0, 1], [read, read]))[0]
    doubled = text.replace("binding(1)", "binding(0)")
    assert "are one binding" in problems_in(program(doubled, [0, 1], [read, write]))[0]


@pytest.fixture(scope="module")
def fresh() -> str:
    """The kernel that reads caches and writes them."""
    c = Chain()
    start = c.int_input("input_pos", 0, 63)
    x = c.input("qkv", (1, 1, 8 * 16))
    widths = [64, 32, 32]
    args = {"self": x, "split_sizes": widths, "dim": -1}
    split = [(x.dtype, (1, 1, width)) for width in widths]
    parts = c.call("aten.split_with_sizes_copy.default", args, split)
    q, k, v = (
        c.call("aten.view_copy.default", {"self": part, "size": []}, [(x.dtype, (1, 1, n, 16))])[0]
        for part, n in zip(parts, (4, 2, 2), strict=True)
    )
    tables = [c.input(name, (1, 1, 8)) for name in ("cos", "sin")]
    caches = [c.state(torch.zeros(1, 64, 2, 16), name) for name in ("k", "v")]
    args = {"q": q, "k": k, "v": v, "cos": tables[0], "sin": tables[1], "start_pos": start}
    args |= {"k_cache": caches[0], "v_cache": caches[1], "interleaved": True, "attn_mask": None}
    args |= {"is_causal": True, "scale": None, "rope_dtype": x.dtype}
    args |= {"q_norm": None, "k_norm": None, "q_eps": None, "k_eps": None}
    outputs = [(x.dtype, q.shape), *[(x.dtype, cache.shape) for cache in caches]]
    out = c.call("wgpu.rope_attention", args, outputs, {1: "k_cache", 2: "v_cache"})
    c.output(out[0])
    (text,) = (s.wgsl for s in c.lower().program.shaders if "fresh_k" in s.wgsl)
    return text


def test_the_exception_is_checked_in_the_text(fresh):
    assert problems_of(fresh) == []
    assert {use.variable for use in read(fresh).uses if use.writes} > {"k", "v"}
    for change in (
        ("last_old = select(min(end, ", "last_old = select(max(end, "),
        ("k_old = k_at + select(0u, ", "k_old = k_at + select(1u, "),
        ("k[k_at + ", "k[k_at + 1u + "),
        ("load_v(v_old + min(", "load_v(v_at + min("),
        (", last_old) * ", ", end - 1u) * "),
    ):
        bad = fresh.replace(*change)
        assert bad != fresh
        assert any(re.match("[kv]: .*another workgroup", p) for p in problems_of(bad)), change


def test_every_exception_has_a_reason():
    assert len(EXCEPTIONS) == 1
    assert all(len(item.reason) > 40 for item in EXCEPTIONS)
