"""What can be said of WGSL without a compiler: its digest, its names, its directives."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from .dispatch_list import Shader

#: WGSL allows more of Unicode; ASCII is what every compiler and every log agrees on. A single
#: ``_`` and a leading ``__`` are not identifiers in WGSL.
_IDENTIFIER = re.compile(r"(?!_\Z)(?!__)[A-Za-z_][A-Za-z0-9_]*\Z")
_OVERRIDE = re.compile(r"\boverride\s+([A-Za-z_][A-Za-z0-9_]*)")
_FUNCTION = re.compile(r"\bfn\s+([A-Za-z_][A-Za-z0-9_]*)\s*\(")
_DIRECTIVE = re.compile(r"(enable|requires|diagnostic)\b")
_BLOCK_EDGE = re.compile(r"/\*|\*/")


def shader_digest(wgsl: str, extensions: Iterable[str] = ()) -> str:
    """The ``sha256`` of a Shader: lower-case hex over its sorted extensions and its text."""
    return hashlib.sha256("\n".join([*sorted(extensions), wgsl]).encode("utf-8")).hexdigest()


def make_shader(wgsl: str, extensions: Iterable[str] = ()) -> Shader:
    """A Shader with its digest; the extensions are sorted and each kept once."""
    names = tuple(sorted(set(extensions)))
    return Shader(wgsl, names, shader_digest(wgsl, names))


def is_identifier(name: str) -> bool:
    """Whether ``name`` can name a function or an override constant."""
    return _IDENTIFIER.match(name) is not None


def functions(wgsl: str) -> frozenset[str]:
    """Names that follow ``fn`` (comments included: a hint, not a parse)."""
    return frozenset(_FUNCTION.findall(wgsl))


def overrides(wgsl: str) -> frozenset[str]:
    """Names that follow ``override`` (comments included: a hint, not a parse)."""
    return frozenset(_OVERRIDE.findall(wgsl))


def leading_directive(wgsl: str) -> str | None:
    """The directive (``enable``, ``requires`` or ``diagnostic``) that the text opens with, if any.

    WGSL allows directives only in front of everything else, so after blanks and comments the
    first word decides.
    """
    match = _DIRECTIVE.match(wgsl, _skip_blanks_and_comments(wgsl))
    return match.group(1) if match else None


def _skip_blanks_and_comments(wgsl: str) -> int:
    """Position of the first character that is neither blank nor comment. Block comments nest."""
    position = 0
    while True:
        while position < len(wgsl) and (wgsl[position].isspace() or wgsl[position] == "\ufeff"):
            position += 1
        if wgsl.startswith("//", position):
            end = wgsl.find("\n", position)
            position = len(wgsl) if end < 0 else end
        elif wgsl.startswith("/*", position):
            depth = 0
            for edge in _BLOCK_EDGE.finditer(wgsl, position):
                depth += 1 if edge.group() == "/*" else -1
                if depth == 0:
                    position = edge.end()
                    break
            else:
                return len(wgsl)  # never closed: a compiler will say so
        else:
            return position
