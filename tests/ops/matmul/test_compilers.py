"""Every variant of the templates in both compilers; naga's part is all the other tests."""

from __future__ import annotations

import pytest
import torch

from executorch_wgpu.ops.call import Value
from executorch_wgpu.ops.matmul import pieces

import tint
from harness import Chain


def product(c: Chain, b: int, m: int, n: int, k: int, order: str) -> None:
    """[B, M, K] times [B, K, N], where the factors lie in memory as ``order`` says."""
    a: Value = c.input(f"a{len(c.chain.inputs)}", (b, m, k) if order[0] == "k" else (b, k, m))
    w: Value = c.input(f"w{len(c.chain.inputs)}", (b, n, k) if order[1] == "k" else (b, k, n))
    swap = "aten.permute_copy.default"
    if order[0] != "k":
        (a,) = c.call(swap, {"self": a, "dims": [0, 2, 1]}, [(a.dtype, (b, m, k))])
    if order[1] == "k":
        (w,) = c.call(swap, {"self": w, "dims": [0, 2, 1]}, [(w.dtype, (b, k, n))])
    c.output(*c.call("aten.bmm.default", {"self": a, "mat2": w}, [(a.dtype, (b, m, n))]))


@pytest.mark.skipif(not tint.available(), reason="wgpudawn is not installed")
def test_tint_compiles_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = []
    for order in ("kk", "kn", "mk", "mn"):
        for k in (64, 68, 31):
            c = Chain()
            m = c.int_input("M", 1, 2000)
            product(c, 1, m, 260, k, order)
            product(c, 3, m, 35, k, order)
            product(c, 3, 3, m, k, order)
            programs.append(c.lower().program)
    monkeypatch.setattr(pieces, "BINDING_LIMIT", 32 << 10)
    c = Chain()
    m = c.int_input("M", 1, 2000)
    x = c.input("x", (m, 64))
    args = {
        "input": x,
        "weight": c.constant(torch.randn(260, 64)),
        "bias": c.constant(torch.randn(260)),
    }
    c.output(*c.call("aten.linear.default", args, [(x.dtype, (m, 260))]))
    programs.append(c.lower().program)
    for k in (512, 515):  # parts of k
        c = Chain()
        product(c, 1, c.int_input("M", 1, 200), 35, k, "kk")
        programs.append(c.lower().program)
    sources = tint.sources_of(*programs)
    assert len({source.wgsl for source in sources}) > 50
    errors = tint.validate(sources)
    assert not any(errors), [error for error in errors if error]
