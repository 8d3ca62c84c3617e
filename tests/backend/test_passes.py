"""Fusions match what the exporter writes, and nothing else."""

from __future__ import annotations

import pytest
import torch

from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.passes import run_passes

import exports


def ops(module: torch.nn.Module, inputs) -> list[str]:
    """Operators after the passes."""
    chain = run_passes(GraphReader(exports.edge(module, inputs)).chain())
    return [call.op for call in chain.calls]


class Function(torch.nn.Module):
    def __init__(self, function, width: int = 16) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(width))
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def scale(x, eps=1e-5):
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def interleaved(x, cos, sin):
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    re, im = pairs.unbind(-1)
    out = torch.stack([re * cos - im * sin, re * sin + im * cos], dim=-1)
    return out.flatten(-2)


ROWS = torch.randn(2, 5, 16)
RMS = {
    "hugging face": lambda m, x: m.weight * (x * scale(x)),
    "meta": lambda m, x: (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)) * m.weight,
    "torch.nn": lambda m, x: m.norm(x),
    "with copies": lambda m, x: (x.float() * scale(x.float())).type_as(x) * m.weight,
    "the other way round": lambda m, x: (scale(x) * x) * m.weight,
}


@pytest.mark.parametrize("form", RMS)
def test_rms_norm_is_one_operator(form):
    module = Function(RMS[form])
    assert ops(module, (ROWS,)) == ["wgpu.rms_norm"]
    (y,) = exports.method(module, (ROWS,)).execute([ROWS])
    torch.testing.assert_close(y, module(ROWS).detach(), atol=1e-5, rtol=1e-4)


NEARLY = {
    "another mean": lambda m, x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5),
    "another power": lambda m, x: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-5),
    "another tensor": lambda m, x: (x + 1) * scale(x),
    "product of two": lambda m, x: x * torch.rsqrt((x * (x + 1)).mean(-1, keepdim=True).abs() + 1),
    "tensor eps": lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.weight.abs()),
}


@pytest.mark.parametrize("form", NEARLY)
def test_what_is_nearly_a_norm_stays_apart_and_right(form):
    module = Function(NEARLY[form])
    assert "wgpu.rms_norm" not in ops(module, (ROWS,))
    (y,) = exports.method(module, (ROWS,)).execute([ROWS])
    torch.testing.assert_close(y, module(ROWS).detach(), atol=1e-5, rtol=1e-4)


def test_a_norm_that_is_used_twice_is_right():
    module = Function(lambda m, x: ((y := x * scale(x)) * m.weight, y + 1))
    results = exports.method(module, (ROWS,)).execute([ROWS])
    for result, want in zip(results, module(ROWS), strict=True):
        torch.testing.assert_close(result, want.detach(), atol=1e-5, rtol=1e-4)


Q = torch.randn(2, 5, 3, 16)
WIDE = torch.randn(2, 5, 1, 16), torch.randn(2, 5, 1, 16)
NARROW = torch.randn(5, 1, 8), torch.randn(5, 1, 8)
ROPE = {
    "meta": (lambda m, q, c, s: interleaved(q, c, s), NARROW),
    "hugging face": (lambda m, q, c, s: q * c + rotate_half(q) * s, WIDE),
    "hugging face, reordered": (lambda m, q, c, s: rotate_half(q) * s + c * q, WIDE),
}


@pytest.mark.parametrize("form", ROPE)
def test_rope_is_one_operator(form):
    function, tables = ROPE[form]
    module = Function(function)
    assert [op for op in ops(module, (Q, *tables)) if "copy" not in op] == ["wgpu.rope"]
    (y,) = exports.method(module, (Q, *tables)).execute([Q, *tables])
    torch.testing.assert_close(y, module(Q, *tables).detach(), atol=1e-5, rtol=1e-4)


NEARLY_ROPE = {
    "minus": (lambda m, q, c, s: q * c - rotate_half(q) * s, WIDE),
    "halves the other way": (
        lambda m, q, c, s: q * c + torch.cat((q[..., 8:], -q[..., :8]), dim=-1) * s,
        WIDE,
    ),
    "broadcast tables": (lambda m, q, c, s: q * c[..., :1] + rotate_half(q) * s[..., :1], WIDE),
    "signs exchanged": (
        lambda m, q, c, s: torch.stack(
            [q[..., ::2] * c + q[..., 1::2] * s, q[..., 1::2] * c - q[..., ::2] * s], -1
        ).flatten(-2),
        NARROW,
    ),
}


@pytest.mark.parametrize("form", NEARLY_ROPE)
def test_what_is_nearly_a_rotation_stays_apart_and_right(form):
    function, tables = NEARLY_ROPE[form]
    module = Function(function)
    assert "wgpu.rope" not in ops(module, (Q, *tables))
    (y,) = exports.method(module, (Q, *tables)).execute([Q, *tables])
    torch.testing.assert_close(y, module(Q, *tables).detach(), atol=1e-5, rtol=1e-4)


def test_scalar_constants_are_literals():
    module = Function(lambda m, x: x * 2 + 0.5)
    lowered = exports.method(module, (ROWS,))
    program = lowered.graph.program
    assert not [b for b in program.buffers if b.kind.name == "CONSTANT"]
