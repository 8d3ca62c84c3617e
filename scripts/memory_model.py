"""Refuses shaders in which workgroups of one dispatch would talk to each other.

    python -m executorch_wgpu.scripts.memory_model FILE.pte ...

WGSL orders nothing between workgroups of a dispatch: what one writes another may see at any time,
in part or never. So a kernel reads nothing that another workgroup of its dispatch may write, waits
for nobody, and leaves no result to the order in which atomic operations happen. Many drivers happen
to run such kernels well, so running them does not find them.

Refused, in the text of a shader:

* a storage buffer that is read and written, but where an invocation reads what it writes itself
  (the same index, of values that do not change), and but for what EXCEPTIONS names;
* the result of an atomic operation on storage, and so every lock, ticket and queue; kinds of them
  mixed on one buffer, but for the two that replace half a word; compare-and-exchange anywhere, with
  which atomics on floats are made;
* storageBarrier(), which orders storage within a workgroup only and has no use beside these rules;
* a loop that no variable of its own ends: it waits for somebody;
* a pointer into storage, which hides what is read; a store to a part of a vector, which may write
  all of it.

And in a dispatch list: a buffer that is bound twice where one binding writes, and a binding that
the list calls read-only but the shader does not.

Not told from text: whether two invocations write one word with different values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from executorch_wgpu.scripts.wgsl_reader import Module, Use, Variable, bracket_end, read
from executorch_wgpu.serialization.dispatch_list import Access, Program

_BY_ITSELF = frozenset(
    {"atomicAdd", "atomicSub", "atomicAnd", "atomicOr", "atomicXor", "atomicMax", "atomicMin"}
)


@dataclass(frozen=True)
class Exemption:
    """A buffer that may be read and written in one dispatch. ``holds``: says what of the reason
    cannot be found in the text, or None."""

    variables: tuple[str, ...]
    reason: str
    holds: Callable[[Module, str], str | None]


def _fresh_position(module: Module, name: str) -> str | None:
    """See EXCEPTIONS. Looks at the text of attention/decode_split.wgsl."""
    upper = name.upper()
    stride = _value_of(module, f"{upper}_N")
    start = _value_of(module, "START")
    loads = [use for use in module.uses_of(name) if not use.writes]
    stores = [use for use in module.uses_of(name) if use.writes]
    if any(use.function != f"load_{name}" for use in loads):
        return f"{name} is read outside load_{name}"
    wanted = rf"\[{name}_at#\d+\+{re.escape(start)}\*{re.escape(stride)}\+unit#\d+\]"
    for use in stores:
        if not re.fullmatch(wanted, "".join(use.chain)):
            return f"{name} is written elsewhere than at START: {' '.join(use.chain)}"
    bound = rf"select\(min\(end#\d+,{re.escape(start)}\)-1u,0u,{re.escape(start)}==0u\)"
    base = rf"{name}_at#\d+\+select\(0u,{re.escape(stride)},{re.escape(start)}==0u\)"
    calls = [call for call in module.calls if call.name == f"load_{name}"]
    for call in calls:
        text = "".join(_opened(module, call.arguments[0], f"{name}\\d+"))
        match = re.fullmatch(
            rf"({name}_old#\d+)\+min\(.+,(last_old#\d+)\)\*{re.escape(stride)}", text
        )
        if match is None:
            return f"{name} is read at {text}"
        values = ["".join(module.locals[local].value) for local in match.groups()]
        if not re.fullmatch(base, values[0]) or not re.fullmatch(bound, values[1]):
            return f"{name} is read at {text}, from {values[0]}, up to {values[1]}"
    return None if calls and stores else f"{name} is not read and written as thought"


def _value_of(module: Module, parameter: str) -> str:
    """How the shader reads a parameter: by its name, or from the live block."""
    text = {"".join(use.chain) for use in module.uses}
    text |= {"".join(local.value) for local in module.locals.values()}
    for form in (f"bitcast<i32>(live_u32({parameter}))", f"live_u32({parameter})"):
        if any(form in item for item in text):
            return form
    return parameter


def _opened(module: Module, tokens: Sequence[str], names: str) -> tuple[str, ...]:
    """What a local of one of these names was declared with, in its place."""
    if len(tokens) == 1 and re.fullmatch(rf"{names}#\d+", tokens[0]):
        return module.locals[tokens[0]].value
    return tuple(tokens)


EXCEPTIONS = (
    Exemption(
        ("k", "v"),
        "attention/decode_split.wgsl with FRESH: the caches. One workgroup writes position START; "
        "reads stay below it, or at position 1 where it is 0, and what they give there is replaced "
        "by what is fresh",
        _fresh_position,
    ),
)


def problems_of(wgsl: str) -> list[str]:
    """What a shader does that WGSL orders nothing about; empty where nothing is found. Raises
    ValueError for text that is no WGSL."""
    module = read(wgsl)
    problems = list(module.problems)
    for variable in module.variables.values():
        uses = module.uses_of(variable.name)
        if any(use.atomic == "atomicCompareExchangeWeak" for use in uses):
            problems.append(
                f"{variable.name}: atomicCompareExchangeWeak, with which float atomics are made"
            )
        if variable.space == "storage" and variable.writable:
            problems += _storage_problems(module, variable, uses)
        if "atomic<f" in "".join(variable.type):
            problems.append(f"{variable.name}: an atomic float")
    return problems


def _storage_problems(module: Module, variable: Variable, uses: Sequence[Use]) -> Iterator[str]:
    name = variable.name
    if any(use.pointer for use in uses):
        yield f"{name}: a pointer into storage hides what is read"
        return
    for use in uses:
        inner = use.chain[bracket_end(use.chain, 0) + 1 :] if use.chain[:1] == ("[",) else ()
        if use.writes and inner and variable.element.startswith("vec"):
            yield f"{name}: a store to a part of a vector may write all of it"
    if any(use.atomic for use in uses):
        yield from _atomic_problems(module, name, uses)
        return
    reads = [use for use in uses if use.reads]
    writes = [use for use in uses if use.writes]
    if not reads or not writes:
        return
    own = {(use.function, use.chain) for use in writes if use.inner}
    strangers = [use for use in reads if (use.function, use.chain) not in own]
    if not strangers:
        return  # an invocation reads what it writes itself
    said = []
    for exemption in EXCEPTIONS:
        if name in exemption.variables:
            said.append(exemption.holds(module, name))
            if said[-1] is None:
                return
    use = strangers[0]
    more = f" (no exception: {'; '.join(map(str, said))})" if said else ""
    yield (
        f"{name}: {use.function} reads it at {' '.join(use.chain) or 'large'} while "
        f"{writes[0].function} writes it at {' '.join(writes[0].chain) or 'large'}: another "
        f"workgroup may read what this one writes{more}"
    )


def _atomic_problems(module: Module, name: str, uses: Sequence[Use]) -> Iterator[str]:
    for use in uses:
        if not use.atomic:
            yield f"{name}: used without an atomic operation"
        elif use.result:
            yield f"{name}: the result of {use.atomic} depends on what other workgroups have done"
        elif use.atomic in ("atomicAdd", "atomicSub") and "bitcast" in use.arguments:
            yield f"{name}: {use.atomic} of the bits of a float"
    kinds = {use.atomic for use in uses}
    if len(kinds) == 1 and kinds <= _BY_ITSELF:
        return  # any order gives the same
    if kinds != {"atomicAnd", "atomicOr"}:
        yield f"{name}: {', '.join(sorted(kinds))} on one buffer depend on their order"
        return
    # Half a word is replaced: cleared by an and, then set by an or of the same half.
    masks = {}
    for use in uses:
        if use.atomic == "atomicAnd":
            text = "".join(use.arguments)
            match = re.fullmatch(r"~\(0xffffu<<(\S+?#\d+)\)", text)
            masks[use.chain] = match.group(1) if match else None
    for use in uses:
        if use.atomic == "atomicOr":
            value = _opened(module, use.arguments, r"\w+")
            shift = masks.get(use.chain)
            if shift is None or tuple(value[-2:]) != ("<<", shift):
                yield f"{name}: atomicAnd and atomicOr that do not replace one half of a word"


def problems_in(program: Program) -> list[str]:
    """The same for each shader and dispatch of a dispatch list, each named by a label."""
    problems: list[str] = []
    seen: set[int] = set()
    for step in program.steps:
        for route in step.routes:
            for dispatch in route.dispatches:
                kernel = program.kernels[dispatch.kernel]
                bound = [binding.buffer for binding in dispatch.bindings]
                for binding, access in zip(dispatch.bindings, kernel.accesses, strict=True):
                    if access is Access.READ_WRITE and bound.count(binding.buffer) > 1:
                        name = program.buffers[binding.buffer].name
                        problems.append(f"{dispatch.label}: {name} is written and bound twice")
                if dispatch.kernel in seen:
                    continue
                seen.add(dispatch.kernel)
                wgsl = program.shaders[kernel.shader].wgsl
                found = [*problems_of(wgsl), *_access_problems(wgsl, kernel.accesses)]
                problems += [f"{dispatch.label}: {problem}" for problem in found]
    return problems


def _access_problems(wgsl: str, accesses: Sequence[Access]) -> Iterator[str]:
    for variable in read(wgsl).variables.values():
        if variable.space != "storage" or variable.slot is None or variable.slot[0] != "1":
            continue
        index = int(variable.slot[1])
        if index >= len(accesses):
            yield f"{variable.name}: the kernel has no binding {index}"
        elif variable.writable and accesses[index] is Access.READ:
            yield f"{variable.name}: read_write in the shader, read-only in the dispatch list"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 1 where something is found."""
    from executorch_wgpu.serialization import BACKEND_ID, PteFile, deserialize

    paths = list(sys.argv[1:] if arguments is None else arguments)
    if not paths:
        print(__doc__)
        return 2
    found = 0
    for path in paths:
        with PteFile.open(path) as pte:
            for name in pte.methods:
                for delegate in pte.method(name).delegates:
                    if delegate.id == BACKEND_ID:
                        for problem in problems_in(deserialize(delegate.data)):
                            found += 1
                            print(f"{path} {name}: {problem}")
    print(f"{found} problems in {len(paths)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
