"""What is said of WGSL without a compiler."""

from __future__ import annotations

import hashlib

import pytest

from executorch_wgpu.serialization import make_shader, shader_digest
from executorch_wgpu.serialization.wgsl_text import (
    functions,
    is_identifier,
    leading_directive,
    overrides,
)


@pytest.mark.parametrize(
    ("wgsl", "directive"),
    [
        ("enable f16;", "enable"),
        ("\ufeff \n// x\nrequires y;", "requires"),
        ("/*/**/*/diagnostic(off, z);", "diagnostic"),
        ("@diagnostic(off, z) fn f() {}", None),
        ("// enable f16;", None),
        ("/* enable f16; ", None),
        ("fn enabled() {}", None),
        ("enabled", None),
        ("", None),
        ("/", None),
    ],
)
def test_leading_directive(wgsl: str, directive: str | None) -> None:
    assert leading_directive(wgsl) == directive


def test_digest() -> None:
    """As the docstring of Shader states it."""
    expected = hashlib.sha256("f16\nsubgroups\nfn é() {}".encode()).hexdigest()
    assert shader_digest("fn é() {}", ["subgroups", "f16"]) == expected
    made = make_shader("fn é() {}", ["subgroups", "f16", "f16"])
    assert (made.extensions, made.sha256) == (("f16", "subgroups"), expected)


def test_names() -> None:
    wgsl = "@id(3) override A: u32;\noverride  b_2 = 1;\nfn main () {}\nfn f(x: f32) {}"
    assert overrides(wgsl) == {"A", "b_2"}
    assert functions(wgsl) == {"main", "f"}
    assert all(map(is_identifier, ["a", "_a", "A1", "a__"]))
    assert not any(map(is_identifier, ["", "_", "__a", "1a", "a b", "a\n", "é", "a-b"]))
