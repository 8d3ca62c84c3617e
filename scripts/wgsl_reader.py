"""Reads WGSL as far as rules about memory need it: module-scope variables, who mentions them and
how, calls, loops. No compiler: what it cannot read it refuses with a ValueError."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"(?P<blank>\s+|//[^\n]*)|(?P<comment>/\*)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<number>0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?[iufh]?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[iufh]?)"
    r"|(?P<sign><<=|>>=|->|\+\+|--|&&|\|\||[=!<>+\-*/%&|^]=|<<|>>|[-+*/%&|^~!<>=.,:;(){}\[\]@])"
)
_ASSIGN = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"})
_ATOMIC = re.compile(r"atomic[A-Z]\w*\Z")


def tokens_of(wgsl: str) -> list[str]:
    """The tokens of a WGSL text, without comments. Raises ValueError at what is none."""
    found, position = [], 0
    while position < len(wgsl):
        match = _TOKEN.match(wgsl, position)
        if match is None:
            line = wgsl.count("\n", 0, position) + 1
            raise ValueError(f"line {line}: {wgsl[position : position + 20]!r} is no token")
        position = match.end()
        if match.lastgroup == "comment":
            position = _end_of_comment(wgsl, position)
        elif match.lastgroup != "blank":
            found.append(match.group())
    return found


def _end_of_comment(wgsl: str, position: int) -> int:
    depth = 1
    for edge in re.compile(r"/\*|\*/").finditer(wgsl, position):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise ValueError("a comment that nothing closes")


@dataclass(frozen=True)
class Variable:
    """A module-scope ``var``. ``space``: storage, workgroup, uniform or private; ``type``: its
    tokens; ``slot``: group and binding, where it has them."""

    name: str
    space: str
    writable: bool
    type: tuple[str, ...]
    slot: tuple[str, str] | None

    @property
    def element(self) -> str:
        """What an array holds, else the type itself, as text."""
        inner = self.type[2:-1] if self.type[:2] == ("array", "<") else self.type
        return "".join(inner)


@dataclass(frozen=True)
class Local:
    """A name declared in a function. ``fixed``: by let, const or as a parameter; ``value``: the
    tokens that it was declared with, names resolved."""

    name: str
    number: int
    fixed: bool
    value: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"


@dataclass(frozen=True)
class Use:
    """One mention of a module-scope variable in a function. ``chain``: what selects a part of it,
    such as ``[ at ] . x``, names of locals resolved. ``inner``: whether everything in it is fixed.
    ``atomic``: the operation that it is an operand of, ``result``: whether its result is used,
    ``arguments``: the operation's others."""

    variable: str
    function: str
    chain: tuple[str, ...]
    inner: bool
    reads: bool
    writes: bool
    atomic: str = ""
    result: bool = False
    arguments: tuple[str, ...] = ()
    pointer: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a function of the module, its arguments as resolved tokens."""

    name: str
    arguments: tuple[tuple[str, ...], ...]


@dataclass
class Module:
    """What there is to know of a shader."""

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    locals: dict[str, Local] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def uses_of(self, name: str) -> list[Use]:
        return [use for use in self.uses if use.variable == name]


def bracket_end(tokens: Sequence[str], start: int) -> int:
    """Position of the bracket that closes the one at ``start``."""
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i] in "([{":
            depth += 1
        elif tokens[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    raise ValueError(f"nothing closes a {tokens[start]!r}")


def _generic_end(tokens: Sequence[str], start: int) -> int:
    """Position behind a type that starts at ``start``."""
    i = start + 1
    if i < len(tokens) and tokens[i] == "<":
        depth = 0
        while True:
            depth += {"<": 1, ">": -1, ">>": -2}.get(tokens[i], 0)
            i += 1
            if depth <= 0:
                break
    return i


def _split(tokens: Sequence[str]) -> list[tuple[str, ...]]:
    """Arguments between commas outside brackets."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in "([{") - (token in ")]}")
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]


class _Reader:
    """Reads a module: its variables and functions, then each function's body."""

    def __init__(self, wgsl: str) -> None:
        self.tokens = tokens_of(wgsl)
        self.module = Module()
        self._scopes: list[dict[str, Local]] = []
        self._count = 0

    def read(self) -> Module:
        self._top()
        for name, (first, last, opening, closing) in self.module.functions.items():
            self._scopes = [{}]
            self._parameters(first, last)
            self._body(name, opening, closing)
        return self.module

    # -- declarations -----------------------------------------------------------------------

    def _top(self) -> None:
        tokens, i = self.tokens, 0
        slot: dict[str, str] = {}
        while i < len(tokens):
            token = tokens[i]
            if token == "@":
                end = i + 2
                if end < len(tokens) and tokens[end] == "(":
                    end = bracket_end(tokens, end)
                    slot[tokens[i + 1]] = "".join(tokens[i + 3 : end])
                    end += 1
                i = end
            elif token == "var":
                i = self._variable(i, slot)
                slot = {}
            elif token == "fn":
                opening = tokens.index("(", i)
                last = bracket_end(tokens, opening)
                body = tokens.index("{", last)
                closing = bracket_end(tokens, body)
                self.module.functions[tokens[i + 1]] = (opening + 1, last, body, closing)
                i, slot = closing + 1, {}
            elif token == "struct":
                i, slot = bracket_end(tokens, tokens.index("{", i)) + 1, {}
            elif token in ("override", "const", "alias", "const_assert", ";"):
                i, slot = tokens.index(";", i) + 1, {}
            else:
                raise ValueError(f"{token!r} opens no declaration")

    def _variable(self, i: int, slot: dict[str, str]) -> int:
        tokens = self.tokens
        space, mode = "private", ""
        i += 1
        if tokens[i] == "<":
            end = tokens.index(">", i)
            words = [t for t in tokens[i + 1 : end] if t != ","]
            space, mode = words[0], words[1] if len(words) > 1 else ""
            i = end + 1
        name = tokens[i]
        end = i + 1
        kind: tuple[str, ...] = ()
        if tokens[end] == ":":
            stop = _generic_end(tokens, end + 1)
            kind = tuple(t for token in tokens[end + 1 : stop] for t in _pairs(token))
            end = stop
        place = (slot.get("group", ""), slot.get("binding", "")) if slot else None
        writable = mode == "read_write" or space in ("workgroup", "private")
        for other in self.module.variables.values():
            if place is not None and other.slot == place:
                self.module.problems.append(f"{other.name} and {name} are one binding {place}")
        self.module.variables[name] = Variable(name, space, writable, kind, place)
        return tokens.index(";", end) + 1

    def _declare(self, name: str, fixed: bool, value: tuple[str, ...] = ()) -> Local:
        self._count += 1
        local = Local(name, self._count, fixed, value)
        self._scopes[-1][name] = local
        self.module.locals[str(local)] = local
        return local

    def _parameters(self, first: int, last: int) -> None:
        for part in _split(self.tokens[first:last]):
            names = [i for i, token in enumerate(part) if token == ":"]
            if names:
                self._declare(part[names[0] - 1], True)

    # -- names ------------------------------------------------------------------------------

    def _find(self, name: str) -> Local | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _resolved(self, tokens: Sequence[str]) -> tuple[tuple[str, ...], bool]:
        """The tokens with locals named uniquely, and whether nothing in them changes: no ``var``
        of a function and nothing that can be written."""
        found, fixed = [], True
        for i, token in enumerate(tokens):
            local = self._find(token) if i == 0 or tokens[i - 1] != "." else None
            if local is not None:
                fixed &= local.fixed
                found.append(str(local))
                continue
            variable = self.module.variables.get(token)
            fixed &= variable is None or not variable.writable
            found.append(token)
        return tuple(found), fixed

    # -- bodies -----------------------------------------------------------------------------

    def _body(self, function: str, opening: int, closing: int) -> None:
        tokens, i = self.tokens, opening
        blocks_of_for: list[int] = []
        while i <= closing:
            token = tokens[i]
            if token == "{":
                self._scopes.append({})
            elif token == "}":
                self._scopes.pop()
                if blocks_of_for and blocks_of_for[-1] == i:
                    blocks_of_for.pop()
                    self._scopes.pop()
            elif token == "for":
                self._scopes.append({})
                body = bracket_end(tokens, i + 1) + 1
                blocks_of_for.append(bracket_end(tokens, body))
                self._loop(i, function)
            elif token in ("while", "loop"):
                self._loop(i, function)
            elif token in ("let", "var", "const"):
                i = self._declaration(i, function)
                continue
            elif token in self.module.variables and tokens[i - 1] != "." and not self._find(token):
                self._use(i, function)
            elif token in self.module.functions and tokens[i + 1] == "(":
                arguments = _split(tokens[i + 2 : bracket_end(tokens, i + 1)])
                resolved = tuple(self._resolved(part)[0] for part in arguments)
                self.module.calls.append(Call(token, resolved))
            elif token in ("storageBarrier", "textureBarrier"):
                self.module.problems.append(
                    f"{function}: {token}() orders memory within a workgroup only"
                )
            i += 1

    def _declaration(self, i: int, function: str) -> int:
        """Walks what a name is declared with before the name is known; returns where to go on."""
        tokens = self.tokens
        word, name = tokens[i], tokens[i + 1]
        if word == "var" and name == "<":
            name = tokens[tokens.index(">", i) + 1]
        end = tokens.index(";", i)
        start = i + 2
        while start < end and tokens[start] != "=":
            start += 1
        self._walk(start, end, function)
        self._declare(name, word != "var", self._resolved(tokens[start + 1 : end])[0])
        return end

    def _walk(self, start: int, end: int, function: str) -> None:
        """Uses and calls of an expression."""
        tokens = self.tokens
        for k in range(start, end):
            if tokens[k] in self.module.variables and tokens[k - 1] != ".":
                if not self._find(tokens[k]):
                    self._use(k, function)
            elif tokens[k] in self.module.functions and tokens[k + 1] == "(":
                arguments = _split(tokens[k + 2 : bracket_end(tokens, k + 1)])
                resolved = tuple(self._resolved(part)[0] for part in arguments)
                self.module.calls.append(Call(tokens[k], resolved))

    def _use(self, i: int, function: str) -> None:
        tokens, name = self.tokens, self.tokens[i]
        end = i + 1
        while tokens[end] in (".", "["):
            end = bracket_end(tokens, end) + 1 if tokens[end] == "[" else end + 2
        chain, fixed = self._resolved(tokens[i + 1 : end])
        before, after = tokens[i - 1], tokens[end]
        if before == "&" and tokens[i - 2] in ("(", ",", "=", "return"):
            opening = i - 2
            called = tokens[opening - 1] if tokens[opening] == "(" else ""
            if called == "arrayLength":
                return
            if _ATOMIC.match(called):
                stop = bracket_end(tokens, opening)
                alone = tokens[opening - 2] in "{};" and tokens[stop + 1] == ";"
                rest = self._resolved(tokens[end + 1 : stop])[0]
                result = not alone or called in ("atomicLoad", "atomicExchange")
                self._add(
                    Use(name, function, chain, fixed, result, called != "atomicLoad",
                        called, result, rest)
                )  # fmt: skip
            else:
                self._add(Use(name, function, chain, fixed, True, True, pointer=True))
            return
        if after in _ASSIGN and before in ("{", "}", ";", ")"):
            self._add(Use(name, function, chain, fixed, after != "=", True))
        else:
            self._add(Use(name, function, chain, fixed, True, False))

    def _add(self, use: Use) -> None:
        self.module.uses.append(use)

    # -- loops ------------------------------------------------------------------------------

    def _loop(self, i: int, function: str) -> None:
        """A loop ends by a variable of its own: one of the function that the loop changes by what
        no other invocation can touch. Else it waits."""
        tokens = self.tokens
        if tokens[i] == "for":
            close = bracket_end(tokens, i + 1)
            _, condition, update = _three(tokens[i + 2 : close])
            inside = [*update, ";", *tokens[close + 1 : bracket_end(tokens, close + 1) + 1]]
        elif tokens[i] == "while":
            body = tokens.index("{", i)
            condition, inside = tokens[i + 1 : body], tokens[body : bracket_end(tokens, body) + 1]
        else:
            body = tokens.index("{", i)
            condition, inside = [], tokens[body : bracket_end(tokens, body) + 1]
        changed = set(self._changed(inside))
        exits = [condition, *_exits(inside)]
        if not any(changed & set(tokens) for tokens in exits):
            what = " ".join(condition) or "no condition"
            self.module.problems.append(
                f"{function}: nothing that a loop changes by itself ends it ({what}): it may wait "
                "for another invocation"
            )
        for k, token in enumerate(inside):
            if _ATOMIC.match(token) and (
                inside[k - 1] not in ("{", "}", ";") or token in ("atomicLoad", "atomicExchange")
            ):
                self.module.problems.append(
                    f"{function}: the result of {token} in a loop: spinning, or a race for order"
                )

    def _changed(self, inside: Sequence[str]) -> Iterator[str]:
        """Names that statements in a loop change by values of this invocation."""
        shared = {v.name for v in self.module.variables.values() if v.writable}
        for k, token in enumerate(inside):
            if token not in _ASSIGN or not re.match(r"[A-Za-z_]", inside[k - 1]):
                continue
            end = k + 1
            while end < len(inside) and inside[end] not in (";", ")", "{", "}"):
                end = bracket_end(inside, end) if inside[end] in "([" else end
                end += 1
            value = inside[k + 1 : end]
            if not shared & set(value) and not any(_ATOMIC.match(word) for word in value):
                yield inside[k - 1]


def _pairs(token: str) -> tuple[str, ...]:
    return (">", ">") if token == ">>" else (token,)


def _three(tokens: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == ";":
            parts.append([])
        else:
            parts[-1].append(token)
    first, second, third = [*parts, [], []][:3]
    return first, second, third


def _exits(inside: Sequence[str]) -> Iterator[list[str]]:
    """Conditions under which a body is left: of every if that holds a break or return, and of
    ``break if``."""
    for k, token in enumerate(inside):
        if token != "if":
            continue
        if inside[k - 1] == "break":
            yield list(inside[k + 1 : list(inside).index(";", k)])
            continue
        body = list(inside).index("{", k)
        block = inside[body : bracket_end(inside, body) + 1]
        if "break" in block or "return" in block:
            yield list(inside[k + 1 : body])


def read(wgsl: str) -> Module:
    """What there is to know of a shader. Raises ValueError for text that is no WGSL."""
    try:
        return _Reader(wgsl).read()
    except IndexError:
        raise ValueError("the text ends within a declaration or an expression") from None
