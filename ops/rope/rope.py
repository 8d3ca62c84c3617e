"""Rotary position embeddings (Su et al. 2021), in both ways that pairs are laid out."""

from __future__ import annotations

from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import OpCall
from executorch_wgpu.ops.elementwise.pointwise import emit_pointwise
from executorch_wgpu.ops.halves import FLOATS
from executorch_wgpu.ops.registry import only_dtypes, register
from executorch_wgpu.ops.tensor import Tensor


@register("wgpu.rope", supports=only_dtypes(FLOATS), converts=True)
def rope(b: Builder, call: OpCall) -> Tensor:
    """Rotate pairs of the last dimension, D = 2 P: (a, b) -> (a cos - b sin, b cos + a sin).

    ``x`` [..., D]. ``interleaved``: pairs are (x[2p], x[2p + 1]) as in Meta's llama, and
    ``cos``/``sin`` broadcast to [..., P]; else (x[p], x[p + P]) as Hugging Face's rotate_half, and
    they broadcast to [..., D]. One dispatch: a pointwise kernel over P with two outputs.
    """
    x: Tensor = call["x"]
    cos: Tensor = call["cos"]
    sin: Tensor = call["sin"]
    last = x.rank - 1
    pairs = x.shape[last] // 2
    out = b.empty(x.shape, call.outputs[0].dtype, "rope")

    def halves(t: Tensor) -> tuple[Tensor, Tensor]:
        d = t.rank - 1
        if call["interleaved"]:
            return t.slice(d, 0, pairs, 2), t.slice(d, 1, pairs, 2)
        return t.slice(d, 0, pairs), t.slice(d, pairs, pairs)

    if call["interleaved"]:
        emit_pointwise(
            b,
            "rope",
            ["a0 * a2 - a1 * a3", "a1 * a2 + a0 * a3"],
            [*halves(x), cos, sin],
            halves(out),
        )
    else:
        operands = [*halves(x), *halves(cos), *halves(sin)]
        emit_pointwise(b, "rope", ["a0 * a2 - a1 * a4", "a1 * a3 + a0 * a5"], operands, halves(out))
    return out
