"""What the tests of attention share: graphs of one operator, and double-precision references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from executorch_wgpu.backend.lowering import LoweredProgram
from executorch_wgpu.ops.symbolic import Scalar
from executorch_wgpu.runtime.graph import WebGPUGraph

from harness import DTYPES, Chain


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start: int,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention in double precision over whole caches; zeros for a row that is masked entirely."""
    q, k, v = (x.double().transpose(1, 2) for x in (query, key, value))
    rows, length = q.shape[2], k.shape[2] if mask is not None else start + q.shape[2]
    k, v = k[:, :, :length], v[:, :, :length]
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        hidden = torch.arange(length) > torch.arange(rows)[:, None] + start
        scores = scores.masked_fill(hidden, -float("inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ v).transpose(1, 2)


def arguments(
    query: Any,
    key: Any,
    value: Any,
    start: Scalar,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
) -> dict[str, Any]:
    """Arguments of llama.custom_sdpa by name."""
    return {
        "query": query,
        "key": key,
        "value": value,
        "start_pos": start,
        "attn_mask": mask,
        "drpout_p": 0.0,
        "is_causal": causal,
        "scale": scale,
    }


def sdpa_chain(
    query: tuple[Scalar, ...],
    cache: tuple[Scalar, ...],
    start: Scalar,
    *,
    chain: Chain | None = None,
    mask: bool = False,
    causal: bool = False,
    scale: float | None = None,
    transposed: bool = False,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Chain:
    """One llama.custom_sdpa: inputs (those of ``chain``, then) query, key, value and mask.
    ``transposed``: all but the mask arrive as [B, H, S, D] and are permuted. ``dtypes``: of q, k,
    v, mask and out, where they are not f32."""
    c, dtypes = chain or Chain(), dtypes or {}

    def tensor(name: str, shape: tuple[Scalar, ...]) -> Any:
        if not transposed:
            return c.input(name, shape, dtypes.get(name, torch.float32))
        permuted = (shape[0], shape[2], shape[1], shape[3])
        x = c.input(name, permuted, dtypes.get(name, torch.float32))
        call = {"self": x, "dims": [0, 2, 1, 3]}
        (x,) = c.call("aten.permute_copy.default", call, [(x.dtype, shape)])
        return x

    q, k, v = tensor("q", query), tensor("k", cache), tensor("v", cache)
    mask_dtype = dtypes.get("mask", torch.float32)
    m = c.input("mask", (query[1], cache[1]), mask_dtype) if mask else None
    args = arguments(q, k, v, start, m, causal, scale)
    result = DTYPES[dtypes.get("out", torch.float32)]
    c.output(*c.call("llama.custom_sdpa.default", args, [(result, query)]))
    return c


def graph_of(device: Any, chain: Chain | LoweredProgram) -> WebGPUGraph:
    """A graph that fills what a step must not rely on with NaN before each step."""
    lowered = chain.lower() if isinstance(chain, Chain) else chain
    return WebGPUGraph(device, lowered.program, lowered.data, "test", poison=True)


def eager_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start: int,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """ExecuTorch's CPU kernel."""
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    op = torch.ops.llama.custom_sdpa
    return op(query, key, value, start, mask, 0.0, causal, scale)  # type: ignore[no-any-return]


def labels(graph: Any) -> list[list[list[str]]]:
    """Labels of the dispatches of each route of each step, without the module path."""
    return [
        [[d.label.rsplit("/", 1)[-1] for d in route.dispatches] for route in step.routes]
        for step in graph.program.steps
    ]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same for the same arguments."""
    generator = np.random.default_rng([seed, *shape])
    return torch.from_numpy(generator.standard_normal(shape, np.float32))
