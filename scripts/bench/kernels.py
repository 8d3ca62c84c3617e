"""Kernels alone: device time of every family at a model's shapes, checked in the same run.

    python -m executorch_wgpu.scripts.bench.kernels --json kernels.json

A case is one operator. A linear layer is called with several constants in turn, more bytes together
than a cache holds (up to ``--bytes``), each call waiting for the one before; an attention once. Two
times of a call are printed, be it one dispatch or several, medians in microseconds:

* **in a row**: among such, in one pass: a timestamp at either end of the pass;
* **alone**: every dispatch in a pass of its own, as in profiles, which costs some microseconds.

Inputs are fresh random numbers; the last result is compared with double precision. Needs torch.
``--small`` divides the shapes by 16, K by 4, for adapters that compute on the CPU.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

T = TypeVar("T")

_PATH = click.Path(dir_okay=False, path_type=Path)

_LOAD = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var a = x[id.x];
    var b = a + 1.0;
    for (var i = 0u; i < 10000u; i += 1u) {
        a = fma(a, b, 0.5);
        b = fma(b, a, 0.25);
    }
    x[id.x] = a + b;
}
"""

#: (N, K) of a Llama-3.2-1B layer: o, q/k/v, one of gate and up, both, down; and of its head.
SHAPES = ((2048, 2048), (3072, 2048), (8192, 2048), (16384, 2048), (2048, 8192), (128256, 2048))
STORAGES = ("f32", "f16", "q4")
#: (positions, of the first) of attention with 32 query and 8 KV heads of 64.
ATTENTION = ((1, 511), (1, 2047), (128, 0), (128, 1920), (512, 0))


@dataclass
class Case:
    """One row: ``build`` puts the calls on a Chain; ``want``: the last output in f64, or None."""

    name: str
    build: Callable[[Any], None]
    inputs: list[Any]
    want: Any | None
    bytes: int
    flops: int
    copies: int


@click.command()
@click.option("--only", default="", metavar="TEXT", help="Cases whose name holds this.")
@click.option("--repeats", default=20, show_default=True)
@click.option("--bytes", "most", default=120_000_000, show_default=True, help="Of constants.")
@click.option("--small", is_flag=True, help="Shapes for an adapter that computes on the CPU.")
@click.option("--device", help="Part of the adapter's name (see devices).")
@click.option("--json", "json_path", type=_PATH, metavar="PATH", help="Everything as JSON.")
def main(
    only: str, repeats: int, most: int, small: bool, device: str | None, json_path: Path | None
) -> None:
    """Measure kernels of every family."""
    from executorch_wgpu.runtime.device import resolve_device
    from executorch_wgpu.scripts.bench.about import about
    from executorch_wgpu.scripts.console import Console

    used = resolve_device(device)
    bench = KernelBench(used, repeats)
    rows = []
    console = Console()
    console.line(f"{used.adapter.summary} {used.adapter.info.get('description', '')}")
    for case in cases(16 if small else 1, most, lambda name: only in name):
        rows.append(bench.row(case))
        console.line(_line(rows[-1]))
    if json_path is not None:
        content = {**about(used), "rows": rows}
        json_path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    alone = "-" if row["alone_us"] is None else f"{row['alone_us']:.2f}"
    error = "" if row["error"] is None else f"  error {row['error']:.0e}"
    return (
        f"{row['name']:34s} in a row {row['in_a_row_us']:9.2f} us  alone {alone:>9s} us  "
        f"{row['gb_per_s']:7,.0f} GB/s  {row['tflops']:6.2f} TFLOP/s{error}"
    )


def cases(
    divisor: int, most: int, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[Case]:
    """The cases whose name is wanted, in turn: constants are made when a case comes up.

    Args:
        divisor: of the shapes, see ``--small``.
        most: bytes of constants.
    """
    for storage in STORAGES:
        for n, k in SHAPES:
            yield from _linear(storage, 1, n // divisor, k // min(divisor, 4), most, wanted)
    for m in (128, 512):
        for storage in STORAGES:
            for n, k in SHAPES[:-1]:
                rows = max(m // divisor, 32)
                yield from _linear(storage, rows, n // divisor, k // min(divisor, 4), most, wanted)
    for half in (False, True):
        for rows, position in ATTENTION:
            yield from _attention(max(rows // divisor, 1), position // divisor, half, wanted)


def _linear(
    storage: str, m: int, n: int, k: int, most: int, wanted: Callable[[str], bool]
) -> Iterator[Case]:
    name = f"linear {storage} {m} x {n} x {k}"
    if not wanted(name):
        return
    import torch

    from executorch_wgpu.ops.quant.layout import PackedWeight, pack_codes
    from executorch_wgpu.serialization.dispatch_list import DType

    size = int(n * k * {"f32": 4, "f16": 2, "q4": 0.5625}[storage])
    copies = max(1, min(24, most // size))
    x = torch.randn(m, k)
    weights: list[Any] = []
    for _ in range(copies):
        if storage == "q4":
            codes = torch.randint(0, 16, (n, k), dtype=torch.uint8)
            scales = (torch.rand(n, k // 32) * 0.02 + 0.01).half()
            weights.append(PackedWeight(pack_codes(codes, 4, 8), scales, 4, 32, k, 8))
        else:
            dtype = torch.float16 if storage == "f16" else torch.float32
            weights.append((torch.randn(n, k) * 0.05).to(dtype))
    last = weights[-1].dequantize() if storage == "q4" else weights[-1]
    want = (x.double() @ last.double().T).numpy()

    def build(chain: Chain) -> None:
        rows = chain.input("x", (m, k))
        for i, weight in enumerate(weights):
            more = {"formula": None, "operands": [], "pairs": False}
            if storage == "q4":
                more |= {
                    "weight": chain.constant(weight.packed, f"weight{i}"),
                    "scales": chain.constant(weight.scales, f"scales{i}"),
                    "zeros": None,
                    "bits": 4,
                    "group": 32,
                    "k": k,
                    "zero": 8,
                }
            else:
                more["weight"] = chain.constant(weight, f"weight{i}")
            op = "wgpu.linear_q" if storage == "q4" else "wgpu.linear"
            (out,) = chain.call(op, {"x": rows, **more}, [(DType.F32, (m, n))])
        chain.output(out)

    yield Case(name, build, [x.numpy()], want, size, 2 * m * n * k, copies)


def _attention(
    rows: int, position: int, half: bool, wanted: Callable[[str], bool]
) -> Iterator[Case]:
    name = f"attention {'f16' if half else 'f32'} {rows} at {position}"
    if not wanted(name):
        return
    import torch

    from executorch_wgpu.serialization.dispatch_list import DType

    heads, kv_heads, dim, capacity = 32, 8, 64, 4096
    stored = torch.float16 if half else torch.float32
    caches = [torch.randn(1, capacity, kv_heads, dim).to(stored) for _ in range(2)]
    q = torch.randn(1, rows, heads, dim)
    length = position + rows
    keys, values = (
        c[:, :length].double().repeat_interleave(heads // kv_heads, 2).transpose(1, 2)
        for c in caches
    )
    scores = q.double().transpose(1, 2) @ keys.transpose(2, 3) * dim**-0.5
    seen = torch.ones(rows, length, dtype=torch.bool).tril(position)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    want = (weights @ values).transpose(1, 2).numpy()

    def build(chain: Chain) -> None:
        query = chain.input("query", tuple(q.shape))
        key, value = (chain.constant(c, n) for c, n in zip(caches, ("key", "value"), strict=True))
        args = {
            "query": query,
            "key": key,
            "value": value,
            "start_pos": position,
            "attn_mask": None,
            "drpout_p": 0.0,
            "is_causal": True,
            "scale": None,
        }
        chain.output(*chain.call("llama.custom_sdpa.default", args, [(DType.F32, tuple(q.shape))]))

    size = 2 * length * kv_heads * dim * (2 if half else 4)
    flops = 4 * dim * heads * (rows * position + rows * (rows + 1) // 2)
    yield Case(name, build, [q.numpy()], want, size, flops, 1)


class Chain:
    """An OpChain made by hand."""

    def __init__(self) -> None:
        from executorch_wgpu.ops.call import OpChain

        self.chain = OpChain([], [], [])

    def input(self, name: str, shape: tuple[int, ...]) -> Any:
        """An f32 input."""
        from executorch_wgpu.ops.call import ChainInput, Value
        from executorch_wgpu.serialization.dispatch_list import DType

        value = Value(DType.F32, shape, name)
        self.chain.inputs.append(ChainInput(name, value))
        return value

    def constant(self, tensor: Any, name: str) -> Any:
        """A constant of f32, f16 or i32."""
        from executorch_wgpu.ops.call import Value
        from executorch_wgpu.serialization.dispatch_list import DType

        dtypes = {"torch.float32": DType.F32, "torch.float16": DType.F16, "torch.int32": DType.I32}
        return Value(dtypes[str(tensor.dtype)], tuple(tensor.shape), name, tensor)

    def call(self, op: str, args: dict[str, Any], outputs: Sequence[tuple[Any, Any]]) -> Any:
        """One call; returns its outputs."""
        from executorch_wgpu.ops.call import OpCall, Origin, Value

        values = tuple(Value(d, tuple(s), f"{op}:{i}") for i, (d, s) in enumerate(outputs))
        self.chain.calls.append(OpCall(op, args, values, Origin(op, "kernel")))
        return values

    def output(self, *values: Any) -> None:
        """What the program returns."""
        self.chain.outputs.extend(values)


class KernelBench:
    """Measures cases on a device. ``repeats``: of each measurement."""

    def __init__(self, device: Any, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        self._load = self._make_load()

    def row(self, case: Case) -> dict[str, Any]:
        """A case's figures."""
        import numpy as np

        from executorch_wgpu.backend.lowering import lower_chain
        from executorch_wgpu.runtime.graph import WebGPUGraph
        from executorch_wgpu.runtime.profiling.one_pass import OnePass

        chain = Chain()
        case.build(chain)
        lowered = lower_chain(chain.chain)
        graph = WebGPUGraph(self.device, lowered.program, lowered.data, case.name, profile=True)
        (got,) = graph.execute(case.inputs)
        error = None
        if case.want is not None:
            error = float(np.abs(got - case.want).max() / np.abs(case.want).max())
        self._warm(lambda: graph.execute(case.inputs, outputs=()))
        alone: list[float] = []
        for _ in range(self.repeats):
            self._busy(lambda: graph.execute(case.inputs, outputs=()))
            profile = graph.last_profile()
            if profile is not None:
                alone.append(profile.totals.sum_ns / 1e3 / case.copies)
        one_pass = OnePass(graph)
        self._warm(lambda: one_pass.measure(case.inputs))
        times = [self._busy(lambda: one_pass.measure(case.inputs)) for _ in range(self.repeats)]
        row = [ns / 1e3 / case.copies for ns in times]
        in_a_row = statistics.median(row)
        return {
            "name": case.name,
            "in_a_row_us": in_a_row,
            "alone_us": statistics.median(alone) if alone else None,
            "gb_per_s": case.bytes / in_a_row / 1e3,
            "tflops": case.flops / in_a_row / 1e6,
            "error": error,
        }

    def _busy(self, call: Callable[[], T]) -> T:
        """``call``, on a device that was at work until now."""
        if self._load is not None:
            self._load()
        return call()

    def _warm(self, step: Callable[[], Any], seconds: float = 0.4) -> None:
        """Devices raise their clocks under load, and a small case is none: others run between."""
        end = time.perf_counter() + seconds
        step()
        while self._load is not None and time.perf_counter() < end:
            self._busy(step)

    def _make_load(self) -> Callable[[], None] | None:
        """What keeps all of a GPU busy for some milliseconds; an adapter on the CPU needs none."""
        import wgpu

        if self.device.adapter.info.get("adapter_type") == "CPU":
            return None
        device, workgroups = self.device, 2048
        pipeline = device.create_compute_pipeline(
            layout="auto",
            compute={"module": device.create_shader_module(code=_LOAD), "entry_point": "main"},
        )
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffer = device.create_buffer(size=workgroups * 1024, usage=usage)
        entries = [{"binding": 0, "resource": {"buffer": buffer}}]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

        def load() -> None:
            encoder = device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            for _ in range(4):
                compute.dispatch_workgroups(workgroups)
            compute.end()
            device.queue.submit([encoder.finish()])
            device.queue.read_buffer(buffer, 0, 4)

        return load


if __name__ == "__main__":
    main()
