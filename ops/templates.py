"""WGSL from Jinja2 templates: the interface of a kernel (bindings, override constants, access to
live values) is generated from the same declaration that fills it, so the two cannot drift."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from executorch_wgpu.serialization.dispatch_list import LIVE_SLOTS, Access, ParamKind

_LIVE_VECTORS = LIVE_SLOTS // 4
_LIVE_BLOCK = f"""@group(0) @binding(0) var<uniform> live_block: array<vec4<u32>, {_LIVE_VECTORS}>;
fn live_u32(slot: u32) -> u32 {{ return live_block[slot >> 2u][slot & 3u]; }}
"""

_WGSL_TYPE = {
    ParamKind.U32: "u32",
    ParamKind.I32: "i32",
    ParamKind.F32: "f32",
    ParamKind.BOOL: "bool",
    ParamKind.LIVE: "u32",
}


@dataclass(frozen=True)
class BindingDecl:
    """A storage binding: its name in WGSL, its element type (``f32``, ``vec4<f32>``, ``u32``),
    and how the kernel uses it."""

    name: str
    element: str
    access: Access


@dataclass(frozen=True)
class ParamDecl:
    """An override constant. ``signed``: a LIVE parameter is read as i32 rather than u32."""

    name: str
    kind: ParamKind
    signed: bool = False

    @property
    def expression(self) -> str:
        """The WGSL expression that yields the parameter's value."""
        if self.kind is not ParamKind.LIVE:
            return self.name
        return f"bitcast<i32>(live_u32({self.name}))" if self.signed else f"live_u32({self.name})"


@functools.cache
def _environment() -> jinja2.Environment:
    # Templates are named by their path below ops/, e.g. "matmul/gemv.wgsl".
    return jinja2.Environment(
        loader=jinja2.PackageLoader("executorch_wgpu.ops", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(
    template: str,
    bindings: Sequence[BindingDecl],
    params: Sequence[ParamDecl],
    consts: Mapping[str, Any],
) -> str:
    """WGSL of ``template`` (a path below ops/) with its interface in front.

    In the template ``{{ NAME }}`` of a parameter is an expression that yields its value, whether
    that is fixed at export or lives; ``consts`` are plain template values. Raises
    jinja2.UndefinedError for a name that neither defines."""
    interface = [_LIVE_BLOCK]
    for slot, binding in enumerate(bindings):
        mode = "read" if binding.access is Access.READ else "read_write"
        interface.append(
            f"@group(1) @binding({slot}) var<storage, {mode}> {binding.name}: "
            f"array<{binding.element}>;\n"
        )
    interface += [f"override {param.name}: {_WGSL_TYPE[param.kind]};\n" for param in params]
    expressions = {param.name: param.expression for param in params}
    values = {**consts, **expressions}
    if len(values) != len(consts) + len(params):
        raise ValueError(f"{template}: a name is both a parameter and a template constant")
    # p("NAME") serves templates that loop over the names of parameters.
    return (
        "".join(interface)
        + "\n"
        + _environment().get_template(template).render(values, p=expressions.__getitem__)
    )


def float_literal(value: float) -> str:
    """A WGSL f32 literal that parses back to float32(value). Raises ValueError for a value that
    f32 cannot hold as a finite number: WGSL has no literal for NaN and infinity."""
    import numpy as np

    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    if rounded != rounded or rounded in (float("inf"), float("-inf")):
        raise ValueError(f"{value!r} is not a finite f32, and WGSL has no literal for it")
    text = f"{rounded:.9g}"
    return text + "f" if any(c in text for c in ".e") else text + ".0f"
