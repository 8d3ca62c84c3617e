"""Every invariant of shaders, kernels and steps, broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from program_examples import WGSL
from verify_edits import (
    BASE,
    CONST,
    EIGHT,
    LAST,
    ONE,
    POS,
    ZERO,
    S,
    binding,
    dispatch,
    edit,
    entry,
    param,
    program,
    route,
    shader,
    with_expr,
)

from executorch_wgpu.serialization import (
    Access,
    Binding,
    Buffer,
    BufferKind,
    Dispatch,
    Expr,
    ExprOp,
    InvalidProgramError,
    Program,
    Route,
    Step,
    device_needs,
    verify,
)

BROKEN: dict[str, tuple[Program, str]] = {
    # Shaders
    "empty shader": (shader("  \n"), "has no WGSL"),
    "directive": (shader("/* /* a */ b */ // c\n enable f16;\n" + WGSL), "directive 'enable'"),
    "digest": (entry("shaders", 0, wgsl=BASE.shaders[0].wgsl + " "), "but its text gives"),
    "extension unknown": (shader(WGSL, ["subgroup_matrix"]), "'subgroup_matrix' is unknown"),
    "extension twice": (
        entry("shaders", 1, extensions=("subgroups", "subgroups")),
        "'subgroups' stands twice",
    ),
    # Kernels
    "no such shader": (entry("kernels", 0, shader=2), "index 2 into shaders, which has 2"),
    "entry point missing": (entry("kernels", 0, entry_point="other"), "no function of that name"),
    "entry point no name": (entry("kernels", 0, entry_point="a b"), "no function of that name"),
    "param no name": (param(0, name="1a"), "not a WGSL identifier"),
    "param reserved": (param(0, name="__a"), "not a WGSL identifier"),
    "param undeclared": (param(0, name="OTHER"), "declares no override 'OTHER'"),
    "param twice": (param(0, name="SHIFT"), "'SHIFT' stands twice"),
    "param not finite": (param(2, value=float("inf")), "not a finite number"),
    "param beyond f32": (param(2, value=1e39), "does not fit an f32"),
    "param negative u32": (param(0, value=-1.0), "of kind U32 is not in 0..4294967295"),
    "param no integer": (param(3, value=1.5), "of kind I32 is not in"),
    "param bool 2": (param(4, value=2.0), "of kind BOOL is not in 0..1"),
    "param slot": (param(1, value=3.0), "of kind LIVE is not in 0..2"),
    "param slot of none": (
        program(live=(), kernels=BASE.kernels),
        "a slot of the live block, which has 0",
    ),
    "workgroup of none": (entry("kernels", 0, workgroup_size=(0, 1, 1)), "0 is outside of 1..1024"),
    "workgroup too large": (
        entry("kernels", 0, workgroup_size=(64, 64, 1)),
        r"\(64, 64, 1\) has 4096 invocations",
    ),
    "workgroup of two": (entry("kernels", 0, workgroup_size=(64, 1)), "not three members"),
    "workgroup beyond the limit": (
        entry("kernels", 0, workgroup_size=(512, 1, 1)),
        "'layers.0/update_cache': needs max-compute-workgroup-size-x of 512, .* only 256",
    ),
    "workgroup memory beyond the limit": (
        entry("kernels", 0, workgroup_bytes=20000),
        "needs max-compute-workgroup-storage-size of 20000",
    ),
    "too many bindings": (
        program(
            kernels=edit(BASE.kernels, 0, accesses=(Access.READ,) * 8 + (Access.READ_WRITE,)),
        ),
        "needs max-storage-buffers-per-shader-stage of 9, .* only 8",
    ),
    # Steps and routes
    "no routes": (entry("steps", 0, routes=()), r"steps\[0\]: has no routes"),
    "last route guarded": (route(1, 2, guard=ONE), "the last route has a guard or requirements"),
    "last route wants a feature": (route(1, 2, features=("subgroups",)), "the last route has"),
    "last route wants a limit": (
        route(1, 2, limits=(("max-buffer-size", 1 << 30),)),
        "the last route has",
    ),
    "guard of nothing": (route(1, 0, guard=LAST), r"routes\[0\] 'subgroups'.guard: index"),
    "feature unknown": (route(1, 0, features=("subgroup",)), "'subgroup' is unknown"),
    "feature missing": (
        route(1, 0, features=()),
        "its shader uses 'subgroups', but neither the route nor the program requires",
    ),
    "limit unknown": (route(1, 1, limits=(("max-fun", 3),)), "'max-fun' is no limit"),
    "limit of alignment": (
        route(1, 1, limits=(("min-storage-buffer-offset-alignment", 512),)),
        "is no limit that a program can raise",
    ),
    "limit within the default": (
        program(limits=(("max-buffer-size", 1 << 20),)),
        "1048576 is within WebGPU's default of 268435456",
    ),
    "limit twice": (
        program(limits=(("max-buffer-size", 1 << 30), ("max-buffer-size", 1 << 31))),
        "'max-buffer-size' stands twice",
    ),
    "feature twice": (program(features=("subgroups",) * 2), "'subgroups' stands twice"),
    "routes write different buffers": (
        dispatch(
            1, 1, bindings=(Binding(3, 0, 512), Binding(4, 0, 512))
        ),
        r"routes\[1\] 'big': writes buffers \[4\], but routes\[0\] writes \[2\]",
    ),
    # Dispatches
    "no such kernel": (dispatch(kernel=2), "kernel: index 2 into kernels, which has 2"),
    "no label": (dispatch(label=""), "is empty"),
    "label of lines": (dispatch(label="a\nb"), "cannot be printed"),
    "label too long": (dispatch(label="a" * 1025), "1025 characters"),
    "grid of nothing": (dispatch(grid=(LAST, ONE, ONE)), "grid: index"),
    "bytes of nothing": (dispatch(bytes=LAST), "bytes: index"),
    "flops of nothing": (dispatch(flops=-2), "flops: index"),
    "a handle of text": (dispatch(debug_handles=(1, "2")), "debug_handles: '2' is str, not int"),
    "handles without end": (dispatch(debug_handles=(0,) * 1025), "1025 elements"),
    "grid of two": (dispatch(grid=(ONE, ONE)), "not three members"),
    "grid negative": (
        with_expr(
            Expr(ExprOp.SUB, POS, EIGHT),
            lambda i: {"steps": dispatch(grid=(i, ONE, ONE)).steps},
        ),
        r"grid: expression \d+ can reach \[-8, 23\], outside of 0",
    ),
    "binding missing": (
        dispatch(bindings=(Binding(0, 0, 512),)),
        "1 bindings, but kernel 0 'main' has 2",
    ),
    "binding of nothing": (binding(0, buffer=6), "binding 0: index 6 into buffers"),
    "binding too long": (
        binding(1, size=1028),
        r"steps\[0\].routes\[0\].dispatches\[0\] 'layers.0/update_cache': binding 1 reaches byte "
        r"1028 of buffer 4 'layers.0.k_cache', which has 1024",
    ),
    "binding not aligned": (binding(0, offset=128, size=256), "128, to be a multiple of 256"),
    "binding of half words": (binding(0, size=510), "size 510, to be one of 4"),
    "binding of nothing at all": (binding(0, size=0), "size 0"),
    "binding negative": (binding(0, offset=-256), "offset -256"),
    "binding beyond the limit": (
        program(
            buffers=edit(BASE.buffers, 3, size=256 << 20),
            steps=dispatch(1, 2, 0, bindings=(Binding(3, 0, 256 << 20), Binding(5, 0, 512))).steps,
        ),
        "binding 0: needs max-storage-buffer-binding-size of 268435456, .* only 134217728",
    ),
    "writes a constant": (
        binding(1, buffer=3),
        "binding 1 writes buffer 3 'layers.0.weight' of kind CONSTANT",
    ),
    "writes an input": (
        dispatch(bindings=(Binding(3, 0, 512), Binding(0, 0, 512))),
        "binding 1 writes buffer 0 'x' of kind INPUT",
    ),
    "reads what it writes": (binding(0, buffer=4), "buffer 4 'layers.0.k_cache' is bound READ_WR"),
    "writes twice": (
        program(kernels=edit(BASE.kernels, 0, accesses=(Access.READ_WRITE,) * 2),
                steps=binding(0, buffer=4, offset=512, size=256).steps),
        "binding 1: buffer 4 .* is bound READ_WRITE and once more",
    ),
    "reads scratch before it is written": (
        binding(0, buffer=5),
        "reads buffer 5 'scratch 0' of kind SCRATCH, which nothing has written",
    ),
    "reads an output before it is written": (
        binding(0, buffer=2),
        "reads buffer 2 'y' of kind OUTPUT, which nothing has written",
    ),
    "reads scratch that one route only wrote": (
        program(
            steps=(
                *BASE.steps,
                Step((Route("", (replace(
                    BASE.steps[0].routes[0].dispatches[0],
                    bindings=(Binding(5, 1024, 512), Binding(4, 0, 512)),
                ),)),)),
            )
        ),
        r"steps\[2\].*reads buffer 5 'scratch 0' of kind SCRATCH",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    broken, match = BROKEN[name]
    with pytest.raises(InvalidProgramError, match=match):
        verify(broken)


def test_two_dispatches_in_one_route_may_share_scratch() -> None:
    first = BASE.steps[0].routes[0].dispatches[0]
    to_scratch = replace(first, bindings=(Binding(0, 0, 512), Binding(5, 0, 512)))
    from_scratch = replace(first, bindings=(Binding(5, 0, 512), Binding(4, 0, 512)))
    steps = (Step((Route("", (to_scratch, from_scratch)),)), BASE.steps[1])
    verify(program(steps=steps))


def test_empty_outputs_need_no_writer() -> None:
    tensors = edit(BASE.tensors, 2, shape=(ZERO, EIGHT))
    verify(program(tensors=tensors, steps=BASE.steps[:1], feedback=()))


def test_device_needs_cover_what_is_verified() -> None:
    big = program(
        buffers=(*BASE.buffers[:3], replace(BASE.buffers[3], size=1 << 30), *BASE.buffers[4:]),
        kernels=edit(BASE.kernels, 0, workgroup_size=(512, 1, 1), shader=1),
    )
    last: list[Dispatch] = [d for step in big.steps for d in step.routes[-1].dispatches]
    features, limits = device_needs(last, big.kernels, big.shaders, big.buffers)
    assert features == ("subgroups",)
    assert limits == (
        ("max-buffer-size", 1 << 30),
        ("max-compute-invocations-per-workgroup", 512),
        ("max-compute-workgroup-size-x", 512),
    )
    with pytest.raises(InvalidProgramError, match="max-compute-workgroup-size-x of 512"):
        verify(replace(big, features=features))
    verify(replace(big, features=features, limits=limits))


def test_a_large_buffer_of_one_route_is_that_routes_need() -> None:
    """A weight bound whole where the device allows it, in pieces behind that."""
    whole = Buffer(BufferKind.CONSTANT, 512 << 20, "w", "w")
    big = BASE.steps[1].routes[1]
    only = replace(big.dispatches[0], bindings=(Binding(6, 0, 512), Binding(2, 0, 512)))

    def program_with(limits: tuple[tuple[str, int], ...]) -> Program:
        routes = edit(BASE.steps[1].routes, 1, dispatches=(only,), limits=limits)
        return program(buffers=(*BASE.buffers, whole), steps=edit(BASE.steps, 1, routes=routes))

    _, limits = device_needs([only], BASE.kernels, BASE.shaders, [whole])
    assert limits == (("max-buffer-size", 512 << 20),)
    verify(program_with(limits))
    with pytest.raises(InvalidProgramError, match="binding 0: needs max-buffer-size"):
        verify(program_with(big.limits))


def with_grid(build: Callable[[int], tuple[Route, ...]]) -> Program:
    """The example whose first step has routes built around a grid of S - 2, negative at S = 1."""
    exprs = (*BASE.exprs, Expr(CONST, 2), Expr(ExprOp.SUB, S, LAST))
    return program(exprs=exprs, steps=(Step(build(LAST + 1)), *BASE.steps[1:]))


def test_grids_count_only_where_their_route_runs() -> None:
    (plain,) = BASE.steps[0].routes
    decode = BASE.exprs.index(Expr(ExprOp.EQ, S, ONE))
    guarded = replace(plain, guard=decode)

    def late(grid: int) -> Route:
        return replace(plain, dispatches=edit(plain.dispatches, 0, grid=(grid, ONE, ONE)))

    verify(with_grid(lambda grid: (guarded, late(grid))))  # S = 1 goes the first way
    for routes in (
        lambda grid: (late(grid),),
        # A device without subgroups goes the second way at S = 1, too.
        lambda grid: (replace(guarded, features=("subgroups",)), late(grid)),
        lambda grid: (replace(late(grid), guard=decode), plain),
    ):
        with pytest.raises(InvalidProgramError, match=r"grid: expression \d+ can reach \[-1, 14\]"):
            verify(with_grid(routes))
