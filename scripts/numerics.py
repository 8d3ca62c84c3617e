"""What a driver does with NaN, infinity, subnormal numbers and roundings, and how exact its
functions are, as a column of the table in docs/NUMERICS.md.

    python -m executorch_wgpu.scripts.numerics                   # print it for this adapter
    python -m executorch_wgpu.scripts.numerics --json FILE       # keep it
    python -m executorch_wgpu.scripts.numerics --merge FILE ...  # columns into the page

Needs wgpu and numpy. EXECUTORCH_WGPU_API=wgpudawn asks Dawn. Nothing of this is relied on: kernels
keep away from what varies.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).resolve().parents[1] / "docs" / "NUMERICS.md"
BEGIN, END = "<!-- drivers: begin -->", "<!-- drivers: end -->"

NAN, PAYLOAD, INF, NEG_INF = 0x7FC00000, 0x7F800123, 0x7F800000, 0xFF800000
SUB = 0x00400000  # 2^-127


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@dataclass(frozen=True)
class Case:
    """``code``: WGSL of a u32, over f32 ``a`` and ``b`` (bits of which are given, so that no
    compiler knows them) and their bits ``ua`` and ``ub``. ``show``: how the result reads."""

    name: str
    code: str
    a: int = 0
    b: int = 0
    show: Callable[[int], str] = str


def _f32(bits: int) -> str:
    """As a number, with what a NaN carries."""
    size = bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return "NaN"
    value = float(np.uint32(bits).view(np.float32))
    if value != 0.0 and size < 0x00800000:
        return f"subnormal {value:.3g}"
    return "-0" if bits == 0x80000000 else f"{value:.9g}"


def _yes(bits: int) -> str:
    return "true" if bits else "false"


def _same(expected: int) -> Callable[[int], str]:
    return lambda bits: "kept" if bits == expected else f"{bits:#010x} ({_f32(bits)})"


def _half(bits: int) -> str:
    value = float(np.uint16(bits & 0xFFFF).view(np.float16))
    return f"{bits & 0xFFFF:#06x} ({value:.6g})"


def _f(code: str) -> str:
    return f"bitcast<u32>({code})"


ONE_AND = _bits(1 + 2.0**-11)  # half way between two f16, the even one is 1
ONE_AND_3 = _bits(1 + 3 * 2.0**-11)  # half way, the even one is above

CASES = (
    Case("`x != x` of NaN", "select(0u, 1u, a != a)", NAN, show=_yes),
    Case("`x == x` of NaN", "select(0u, 1u, a == a)", NAN, show=_yes),
    Case("`x < inf` of NaN", "select(0u, 1u, a < b)", NAN, INF, show=_yes),
    Case("`max(NaN, 0)`", _f("max(a, b)"), NAN, 0, _f32),
    Case("`max(0, NaN)`", _f("max(a, b)"), 0, NAN, _f32),
    Case("`min(NaN, 0)`", _f("min(a, b)"), NAN, 0, _f32),
    Case("`clamp(NaN, -1, 1)`", _f("clamp(a, -1.0, 1.0)"), NAN, 0, _f32),
    Case("`select` of a NaN", _f("select(b, a, ub == 0u)"), PAYLOAD, 0, _same(PAYLOAD)),
    Case("`NaN + 1`", _f("a + b"), NAN, _bits(1), _f32),
    Case("`NaN * 0`", _f("a * b"), NAN, 0, _f32),
    Case("`inf * 0`", _f("a * b"), INF, 0, _f32),
    Case("`inf - inf`", _f("a - b"), INF, INF, _f32),
    Case("`inf + 1`", _f("a + b"), INF, _bits(1), _f32),
    Case("`1 / 0`", _f("a / b"), _bits(1), 0, _f32),
    Case("`0 / 0`", _f("a / b"), 0, 0, _f32),
    Case("`3e38 * 10`", _f("a * b"), _bits(3e38), _bits(10), _f32),
    Case("`sqrt(-1)`", _f("sqrt(a)"), _bits(-1), 0, _f32),
    Case("`inverseSqrt(0)`", _f("inverseSqrt(a)"), 0, 0, _f32),
    Case("`log(0)`", _f("log(a)"), 0, 0, _f32),
    Case("`log(-1)`", _f("log(a)"), _bits(-1), 0, _f32),
    Case("`exp(89)`", _f("exp(a)"), _bits(89), 0, _f32),
    Case("`exp(-104)`", _f("exp(a)"), _bits(-104), 0, _f32),
    Case("`exp(NaN)`", _f("exp(a)"), NAN, 0, _f32),
    Case("`exp(-inf)`", _f("exp(a)"), NEG_INF, 0, _f32),
    Case("`tanh(89)`", _f("tanh(a)"), _bits(89), 0, _f32),
    Case("`tanh(inf)`", _f("tanh(a)"), INF, 0, _f32),
    Case("`pow(0, 0)`", _f("pow(a, b)"), 0, 0, _f32),
    Case("`pow(-2, 2)`", _f("pow(a, b)"), _bits(-2), _bits(2), _f32),
    Case("`u32(NaN)`", "u32(a)", NAN),
    Case("`u32(-1.5)`", "u32(a)", _bits(-1.5)),
    Case("`u32(1e20)`", "u32(a)", _bits(1e20)),
    Case("`i32(1e20)`", "u32(i32(a))", _bits(1e20), show=lambda x: str(x - (x >> 31 << 32))),
    Case("`round(2.5)`", _f("round(a)"), _bits(2.5), 0, _f32),
    Case("subnormal `2^-127 * 1`", _f("a * b"), SUB, _bits(1), _f32),
    Case("subnormal `2^-127 + 0`", _f("a + b"), SUB, 0, _f32),
    Case("subnormal result `2^-126 * 0.5`", _f("a * b"), _bits(2.0**-126), _bits(0.5), _f32),
    Case("subnormal `2^-127 * 2^127`", _f("a * b"), SUB, _bits(2.0**127), _f32),
    Case("subnormal `2^-127 > 0`", "select(0u, 1u, a > b)", SUB, 0, _yes),
    Case("`unpack2x16float` of 2^-24", _f("unpack2x16float(ua).x"), 0x0001, 0, _f32),
    Case("`unpack2x16float` of inf", _f("unpack2x16float(ua).x"), 0x7C00, 0, _f32),
    Case("`unpack2x16float` of NaN", _f("unpack2x16float(ua).x"), 0x7E00, 0, _f32),
    Case("`pack2x16float(1 + 2^-11)`", "pack2x16float(vec2<f32>(a, b))", ONE_AND, 0, _half),
    Case("`pack2x16float(1 + 3 * 2^-11)`", "pack2x16float(vec2<f32>(a, b))", ONE_AND_3, 0, _half),
    Case("`pack2x16float(65519)`", "pack2x16float(vec2<f32>(a, b))", _bits(65519), 0, _half),
    Case("`pack2x16float(1e5)`", "pack2x16float(vec2<f32>(a, b))", _bits(1e5), 0, _half),
    Case("`pack2x16float(NaN)`", "pack2x16float(vec2<f32>(a, b))", NAN, 0, _half),
    Case("`pack2x16float(2^-24)`", "pack2x16float(vec2<f32>(a, b))", _bits(2.0**-24), 0, _half),
    Case(
        "`a * b - c` is one operation",
        # (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 when the product is not rounded first.
        f"select(0u, 1u, (a * b) - bitcast<f32>({_bits(1 + 2.0**-11)}u) != 0.0)",
        _bits(1 + 2.0**-12),
        _bits(1 + 2.0**-12),
        _yes,
    ),
)

#: Ways to move bits that a kernel never computes with.
COPIES = {
    "a load and a store": "let v = floats[i]; moved[i] = v;",
    "a variable in a branch": "var v = 0.0; if (i < 100u) { v = floats[i]; } moved[i] = v;",
    "workgroup memory": "shared_f[i] = floats[i]; workgroupBarrier(); moved[i] = shared_f[i];",
    "a vec4": "let v = vec4<f32>(floats[i], 0.0, 0.0, 0.0); moved[i] = v.x;",
}
COPIED = (PAYLOAD, NAN | 5, 0xFFFFFFFF, INF, NEG_INF, SUB, 1, 0x80000000)


@dataclass(frozen=True)
class Function:
    """``bound``: what WGSL promises. ``unit``: ulp of the exact result, or absolute."""

    name: str
    code: str
    exact: Callable[[Any], Any]
    lo: float
    hi: float
    bound: str
    unit: str = "ulp"


#: Rounds of nested loops, more than a driver may be willing to go.
ROUNDS = 300
LOOPS = """if (i > 0u) { return; } var v = 0u;
    for (var r = 0u; r < words[2]; r++) { for (var k = 0u; k < words[2]; k++) { v += 1u; } }
    found[0] = v;"""

FUNCTIONS = (
    Function("1 / x", "1.0 / a", lambda x: 1 / x, 1e-3, 1e3, "2.5 ulp"),
    Function("sqrt", "sqrt(a)", np.sqrt, 1e-6, 1e6, "that of 1 / inverseSqrt"),
    Function("inverseSqrt", "inverseSqrt(a)", lambda x: 1 / np.sqrt(x), 1e-6, 1e6, "2 ulp"),
    Function("exp, from -80 to 0", "exp(a)", np.exp, -80, 0, "3 + 2 abs(x) ulp"),
    Function("exp2, from -100 to 0", "exp2(a)", np.exp2, -100, 0, "3 + 2 abs(x) ulp"),
    Function("log, from 2 on", "log(a)", np.log, 2, 1e6, "3 ulp"),
    Function("log, from 0.5 to 2", "log(a)", np.log, 0.5, 2, "2^-21 absolute", "absolute"),
    Function("sin, -pi to pi", "sin(a)", np.sin, -3.14159, 3.14159, "2^-11 absolute", "absolute"),
    Function("cos, -pi to pi", "cos(a)", np.cos, -3.14159, 3.14159, "2^-11 absolute", "absolute"),
    Function("sin, up to 2000", "sin(a)", np.sin, -2000, 2000, "nothing", "absolute"),
    Function("tanh", "tanh(a)", np.tanh, -9, 9, "that of sinh / cosh, or 1e-5", "absolute"),
    Function("pow(x, 2.5)", "pow(a, 2.5)", lambda x: x**2.5, 1e-2, 1e2, "exp2(y * log2(x))"),
)  # fmt: skip
SAMPLES = 4096


def _kernel(body: str, elements: int) -> str:
    return f"""
@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> found: array<u32>;
@group(0) @binding(2) var<storage, read> floats: array<f32>;
@group(0) @binding(3) var<storage, read_write> moved: array<f32>;
var<workgroup> shared_f: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x;
    // Never: but so every binding is used.
    if (words[0] == 1u) {{
        found[{elements}u + i] = words[1] + u32(shared_f[i % 64u]);
        moved[i] = floats[i];
    }}
    {body}
}}
"""


class Machine:
    """Runs small kernels on one device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def run(self, body: str, words: Sequence[int], groups: int = 1) -> tuple[Any, Any]:
        """(found, moved) of a kernel over ``words`` (from the third on; ``floats`` are the same
        bits), one invocation a word."""
        device, count = self._device, len(words)
        given = np.array([0, 0, *words], np.uint32)
        padded = np.zeros(max(64, count) + 64, np.uint32)
        padded[:count] = words
        buffers = []
        for data in (given, np.zeros(2 * count + 256, np.uint32), padded, np.zeros_like(padded)):
            buffer = device.create_buffer(size=data.nbytes, usage=0x80 | 0x8 | 0x4)
            device.queue.write_buffer(buffer, 0, data)
            buffers.append(buffer)
        module = device.create_shader_module(code=_kernel(body, count))
        pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        entries = [
            {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for i, b in enumerate(buffers)
        ]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(groups)
        compute.end()
        device.queue.submit([encoder.finish()])
        found, moved = (
            np.frombuffer(device.queue.read_buffer(b), np.uint32) for b in (buffers[1], buffers[3])
        )
        return found[:count], moved[:count]


def measure(device: Any) -> dict[str, str]:
    """Row -> what this device does."""
    machine = Machine(device)
    rows: dict[str, str] = {}
    for case in CASES:
        body = (
            "if (i > 0u) { return; } let ua = words[2]; let ub = words[3];"
            "let a = bitcast<f32>(ua); let b = bitcast<f32>(ub);"
            f"found[0] = {case.code};"
        )
        found, _ = machine.run(body, [case.a, case.b])
        rows[case.name] = case.show(int(found[0]))
    for name, body in COPIES.items():
        _, moved = machine.run(body, [*COPIED, *([0] * (64 - len(COPIED)))])
        lost = [f"{bits:#x}" for bits, got in zip(COPIED, moved, strict=False) if bits != got]
        rows[f"f32 through {name}"] = f"changes {', '.join(lost)}" if lost else "kept"
    found, _ = machine.run(LOOPS, [ROUNDS])
    complete = found[0] == ROUNDS**2
    rows[_LOOP_ROW] = "all" if complete else f"**stops, after {found[0]}**"
    for function in FUNCTIONS:
        rows[_row_of(function)] = _error(machine, function)
    return rows


_LOOP_ROW = f"of {ROUNDS**2:,} rounds of two loops it goes"


def _row_of(function: Function) -> str:
    return f"{function.name}: WGSL bounds {function.bound}"


def _error(machine: Machine, function: Function) -> str:
    if function.lo > 0:
        x = np.geomspace(function.lo, function.hi, SAMPLES, dtype=np.float64)
    else:
        x = np.linspace(function.lo, function.hi, SAMPLES, dtype=np.float64)
    given = x.astype(np.float32)
    body = f"let a = bitcast<f32>(words[i + 2u]); found[i] = {_f(function.code)};"
    found, _ = machine.run(body, [int(w) for w in given.view(np.uint32)], SAMPLES // 64)
    exact = function.exact(given.astype(np.float64))
    error = np.abs(found.view(np.float32).astype(np.float64) - exact)
    if function.unit == "absolute":
        return f"{error.max():.2g}"
    return f"{(error / np.spacing(np.abs(exact).astype(np.float32))).max():.2g} ulp"


# -- the page --------------------------------------------------------------------------------------


def table(columns: dict[str, dict[str, str]]) -> str:
    """Markdown: a row a question, a column a driver."""
    names = list(columns)
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = [columns[name].get(row, "") for name in names]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parsed(text: str) -> dict[str, dict[str, str]]:
    """Columns of a table that :func:`table` wrote."""
    lines = [line for line in text.strip().splitlines() if line.startswith("|")]
    if len(lines) < 2:
        return {}
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = cells[0][1:]
    return {
        name: {row[0]: row[i + 1] for row in cells[2:] if row[i + 1]}
        for i, name in enumerate(names)
    }


def merge(paths: Sequence[str]) -> None:
    """Columns of files of ``--json`` into the page, over those of the same name."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    columns = parsed(old)
    for path in paths:
        columns |= json.loads(Path(path).read_text())
    PAGE.write_text(f"{before}{BEGIN}\n{table(columns)}\n{END}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write this adapter's column there")
    parser.add_argument("--merge", metavar="FILE", nargs="+", help="put columns into the page")
    options = parser.parse_args(arguments)
    if options.merge:
        merge(options.merge)
        return 0
    from executorch_wgpu.runtime.device import is_native, request_device

    device = request_device()
    info = device.adapter.info
    api = "wgpu-native" if is_native(device) else "Dawn"
    column = {f"{info['device']}, {api}": measure(device)}
    if options.json:
        Path(options.json).write_text(json.dumps(column, indent=1))
    print(table(column))
    return 0


if __name__ == "__main__":
    sys.exit(main())
