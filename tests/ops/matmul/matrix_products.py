"""Products of many rows with every kind of weight that matrix units take; the reference is f64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from executorch_wgpu.ops.elementwise.formula import Formula, Line
from executorch_wgpu.ops.quant.layout import PackedWeight, pack_bytes, pack_codes
from executorch_wgpu.serialization.dispatch_list import DType

from harness import Chain

_DENSE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

#: Dense, or bits of codes, with: g (groups of so many), s (f32 scales), z (a zero a group as a
#: code), o (offsets).
KINDS = ("f32", "f16", "bf16", "q4", "q4g32", "q4g32s", "q4g32z", "q4g64o", "q8", "q8g32", "q8g32z")


def _over_two(text: str) -> Formula:
    return Formula((DType.F32, DType.F32), (Line(DType.F32, f"({text})", (0, 1)),))


@dataclass
class Case:
    chain: Chain
    x: torch.Tensor
    want: torch.Tensor
    #: Of each result, the sum of its products' sizes.
    size: torch.Tensor
    more: list[np.ndarray]


def packed(kind: str, n: int, k: int) -> PackedWeight:
    bits, rest = int(kind[1]), kind[2:]
    group = k
    if rest[:1] == "g":
        digits = rest[1:].rstrip("szo")
        group, rest = int(digits), rest[1 + len(digits) :]
    shape = (n, k // group)
    scales = torch.rand(shape) * 0.02 + 0.01
    if "s" not in rest:
        scales = scales.half()
    codes = pack_codes(torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8), bits)
    if "z" in rest:
        zeros = pack_bytes(torch.randint(0, 1 << bits, shape, dtype=torch.uint8))
        return PackedWeight(codes, scales, bits, group, k, zeros=zeros)
    if "o" in rest:
        return PackedWeight(codes, scales, bits, group, k, offsets=-scales * (1 << bits - 1))
    return PackedWeight(codes, scales, bits, group, k, 1 << bits - 1)


def product(
    kind: str,
    mode: str,
    m: int,
    n: int,
    k: int,
    *,
    live: bool = False,
    fill: float | None = None,
    positive: bool = False,
    x: torch.Tensor | None = None,
    pairs: bool = False,
    residual: bool = False,
    norm: bool = False,
    out: DType = DType.F32,
    x_dtype: torch.dtype = torch.float32,
) -> Case:
    """``x`` [M, K] times a random weight [N, K]. ``live``: any number of rows up to M. ``fill``:
    one element of a dense weight; ``positive``: all of them are. ``pairs``: products of
    neighbouring columns; ``residual``: plus a second input; ``norm``: an RMS norm before."""
    torch.manual_seed(m + n + k)
    c = Chain()
    c.chain.matrix_units = mode
    rows: Any = c.dim_of("M", 0, 1, m) if live else m
    x = torch.randn(m, k).to(x_dtype) if x is None else x
    args: dict[str, Any] = {"x": c.input("x", (rows, k), x.dtype)}
    columns = n // 2 if pairs else n
    more, operands, left = [], [], x.double()
    if residual:
        more.append(torch.randn(m, columns).numpy())
        operands.append(c.input("residual", (rows, columns)))
    if norm:
        weight = torch.rand(k) + 0.5
        left = left * torch.rsqrt(left.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double()
        args |= {"norm_weight": c.constant(weight, "norm"), "norm_eps": 1e-5}
    if kind in _DENSE:
        w = (torch.randn(n, k) * 0.05).to(_DENSE[kind])
        if positive:
            w = w.abs()
        if fill is not None:
            w[n // 2, k // 2] = fill
        op, args = "wgpu.linear", {**args, "weight": c.constant(w, "w")}
        right = w.double()
    else:
        q = packed(kind, n, k)
        zeros = q.zeros if q.offsets is None else q.offsets
        op = "wgpu.linear_q"
        args |= {
            "weight": c.constant(q.packed, "w"),
            "scales": c.constant(q.scales, "scales"),
            "zeros": None if zeros is None else c.constant(zeros, "zeros"),
            "bits": q.bits,
            "group": q.group,
            "k": k,
            "zero": q.zero,
        }
        right = q.dequantize().double()
    want, size = left @ right.T, left.abs() @ right.abs().T
    formula = None
    if pairs:
        formula = _over_two("{0} * {1}")
        want, size = want[:, ::2] * want[:, 1::2], size[:, ::2] * size[:, 1::2]
    if residual:
        formula = _over_two("{0} + {1}")
        want = want + torch.from_numpy(more[0]).double()
    args |= {"formula": formula, "operands": operands, "pairs": pairs}
    c.output(*c.call(op, args, [(out, (rows, columns))]))
    return Case(c, x, want, size, more)
