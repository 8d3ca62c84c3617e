"""The dispatch list: the one contract between ahead of time and run time.

A :class:`Program` is what one delegate of a ``.pte`` carries: WGSL kernels, the buffers they
bind, and grids, shapes, guards and parameters as indices into one table of integer
expressions over *live scalars* (SymInts). It knows nothing of PyTorch and nothing of
Python: a player in another language can replay the same bytes.

Conventions that hold everywhere on this page:

* Every reference is an index into a tuple of :class:`Program`; ``NONE`` (-1) means "absent"
  where a field says so.
* Sizes and offsets of buffers and bindings are in **bytes**; shapes, strides and offsets of
  tensors are in **elements**.
* ``schema.fbs`` beside this file mirrors these classes; ``writer.py`` and ``reader.py``
  convert; ``verify.py`` states the invariants and rejects whatever breaks one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

#: Version of the format that this package writes. Readers refuse newer ones by name.
FORMAT_VERSION = 1

#: The id under which ExecuTorch stores the delegate in a ``.pte``.
BACKEND_ID = "WgpuBackend"

#: "No index" in the fields that allow it.
NONE = -1

#: Capacity of the live block: 64 ``vec4<u32>`` in one uniform binding of 1,024 bytes.
LIVE_SLOTS = 256


class DType(IntEnum):
    """Element type as the caller sees it at the boundary.

    Stored on the GPU in whole 32-bit words: ``I64`` as i32 (range-checked at the boundary),
    ``BOOL`` as u32 0 or 1, ``F16``/``BF16`` packed two to a word, ``I8``/``U8`` four to a word,
    the rest of 32 bits as it is.
    """

    F32 = 0
    F16 = 1
    BF16 = 2
    I32 = 3
    I64 = 4
    BOOL = 5
    I8 = 6
    U8 = 7

    @property
    def storage_bytes(self) -> int:
        """Bytes of one element in a GPU buffer (a buffer's size is rounded up to 4)."""
        if self in (DType.I8, DType.U8):
            return 1
        return 2 if self in (DType.F16, DType.BF16) else 4


class SymSource(IntEnum):
    """Where the host reads a live scalar at each execute."""

    INT_ARG = 0  #: the input itself is an int
    TENSOR_ELEMENT = 1  #: one element of an integer input tensor
    INPUT_DIM = 2  #: the size of one dimension of an input tensor


@dataclass(frozen=True, slots=True)
class SymInt:
    """A live scalar, known on the host at each execute. One source is one SymInt."""

    name: str
    source: SymSource
    input: int  #: index into Program.inputs
    #: TENSOR_ELEMENT: flat row-major element, negative counts from the end of the live tensor;
    #: INPUT_DIM: the dimension, not negative; INT_ARG: 0.
    index: int
    lo: int  #: smallest value accepted, inclusive
    hi: int  #: largest value accepted, inclusive


class ExprOp(IntEnum):
    """Operators of expressions. Division and remainder round as Python's ``//`` and ``%``.
    Comparisons and logic give 0 or 1; any value but 0 is true."""

    CONST = 0  #: a = the value (signed, 64 bits)
    SYM = 1  #: a = index into Program.symints
    ADD = 2
    SUB = 3
    MUL = 4
    FLOORDIV = 5
    MOD = 6
    MIN = 7
    MAX = 8
    CEILDIV = 9
    EQ = 10
    NE = 11
    LT = 12
    LE = 13
    AND = 14
    OR = 15


@dataclass(frozen=True, slots=True)
class Expr:
    """One node of the program-wide, deduplicated expression table. Operands ``a`` and ``b``
    are indices of *earlier* entries (so the table cannot hold a cycle and one forward walk
    evaluates it), but for CONST and SYM, see :class:`ExprOp`."""

    op: ExprOp
    a: int = 0
    b: int = 0


class BufferKind(IntEnum):
    """Who fills a buffer and how long its content lives."""

    INPUT = 0  #: written by the host from an argument at each execute
    OUTPUT = 1  #: read back by the host at the end of each execute
    CONSTANT = 2  #: uploaded once from the named data of the .pte, never written by a kernel
    STATE = 3  #: owned by the delegate, persists across executes (KV caches)
    SCRATCH = 4  #: undefined at the start of each execute


@dataclass(frozen=True, slots=True)
class Buffer:
    """One GPU buffer.

    ``size`` is in bytes at the upper bound of all live sizes, at least 4 and a multiple of 4.
    ``data_key`` names the named data with the content of a CONSTANT or the initial content of
    a STATE, already in storage layout (see :class:`DType`); a STATE with no key starts as zeros;
    "" elsewhere. The content is the ``size`` bytes from ``data_offset`` (a multiple of 4) on, so
    that one tensor of the file can be carved into several buffers, beside one that holds it whole
    for a device which allows that. Of the buffers that name one key, the one that reaches furthest
    reaches the end of the data, or up to 3 bytes beyond it (padding, zero).
    ``name``: fully qualified name of the parameter or state (no two states have one name), or a
    label for debuggers.
    ``share``: a STATE only. States of several methods of one ``.pte`` are one buffer where their
    ``share`` and ``name`` are equal; "" shares with nobody, whatever the name.
    """

    kind: BufferKind
    size: int
    name: str
    data_key: str = ""
    share: str = ""
    data_offset: int = 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A strided view of a buffer. ``shape``, ``strides`` and ``offset`` (elements) are indices
    into Program.exprs. ``buffer`` is NONE for an input the GPU never reads (one that only
    feeds live scalars). Inputs and outputs are contiguous with offset 0."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    buffer: int


@dataclass(frozen=True, slots=True)
class Shader:
    """WGSL without directives, the WGSL extensions it uses (``subgroups``, ``f16``; the
    replayer writes the ``enable`` lines its compiler wants), and the lower-case hex sha256 of
    ``"\\n".join([*sorted(extensions), wgsl])`` in UTF-8."""

    wgsl: str
    extensions: tuple[str, ...]
    sha256: str


class ParamKind(IntEnum):
    """Type of a pipeline-overridable constant, and what its value means."""

    U32 = 0
    I32 = 1
    F32 = 2
    BOOL = 3
    LIVE = 4  #: value = a slot of the live block; the shader declares it as ``override NAME: u32``


@dataclass(frozen=True, slots=True)
class Param:
    """An override constant of a kernel: a number that never changes, or (LIVE) the slot of the
    live block (index into Program.live) from which the kernel reads a live value."""

    name: str
    kind: ParamKind
    value: float  #: exact for every U32/I32; finite


class Access(IntEnum):
    """How a kernel uses a storage binding."""

    READ = 0
    READ_WRITE = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compute pipeline: shader, entry point, override constants, and its interface.

    Interface: ``@group(0) @binding(0)`` is the live block (uniform, ``array<vec4<u32>, 64>``,
    dynamic offset) in every pipeline layout; ``@group(1) @binding(i)`` is the storage buffer
    whose access is ``accesses[i]``. ``workgroup_size`` repeats the shader's attribute;
    ``workgroup_bytes`` is its ``var<workgroup>`` storage in bytes.
    """

    shader: int
    entry_point: str
    params: tuple[Param, ...]
    accesses: tuple[Access, ...]
    workgroup_size: tuple[int, int, int]
    workgroup_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """A byte range of a buffer. ``offset`` is a multiple of 256, ``size`` of 4 and >= 4."""

    buffer: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel launch. ``grid``: workgroups in x, y, z as indices into Program.exprs; a
    dispatch with a 0 in it is skipped. ``bindings`` parallel to the kernel's accesses. A buffer
    bound READ_WRITE appears once. ``label`` such as ``layers.0.attention/sdpa_decode_split``."""

    kernel: int
    bindings: tuple[Binding, ...]
    grid: tuple[int, int, int]
    label: str
    op: str = ""  #: source operator, e.g. ``llama.sdpa_with_kv_cache``
    module_path: str = ""  #: e.g. ``layers.0.attention``
    debug_handle: int = NONE  #: ExecuTorch's debug handle, NONE when unknown
    #: For profiles, as indices into Program.exprs, NONE when unknown: bytes read and written at
    #: the least, each byte of an operand once, and floating-point operations (a multiply-add is
    #: two). Nothing else depends on them.
    bytes: int = NONE
    flops: int = NONE
    #: Debug handles of all source operators where one dispatch does the work of several.
    debug_handles: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One way to do a step. ``features``/``limits``: what it needs of the device beyond
    WebGPU's defaults, settled at load (WebGPU's names: ``subgroups``; the value a limit must
    reach). ``guard``: expression that must be non-zero at execute for the route to apply, NONE
    for always."""

    name: str
    dispatches: tuple[Dispatch, ...]
    guard: int = NONE
    features: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Routes in order of preference; the first whose requirements and guard hold runs. The last
    has neither guard nor requirement. All write the same tensors in the same layout."""

    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """``expr`` must be non-zero, or the call is refused on the host before anything touches the
    GPU, with ``message`` in which ``{0}``, ``{1}`` ... stand for the values of ``args``
    (indices into Program.exprs)."""

    expr: int
    message: str
    args: tuple[int, ...] = ()


class ValueKind(IntEnum):
    """What crosses the boundary."""

    TENSOR = 0
    INT = 1


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of execute, in order. TENSOR: ``index`` into Program.tensors. INT: ``index``
    into Program.symints, or NONE for an int that nothing reads."""

    name: str
    kind: ValueKind
    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """A result of execute, in order. TENSOR: ``index`` into Program.tensors (its buffer is of
    kind OUTPUT); INT: ``index`` into Program.exprs."""

    name: str
    kind: ValueKind
    index: int


@dataclass(frozen=True, slots=True)
class Feedback:
    """Output ``output`` may stay on the GPU and be input ``input`` of the next execute (indices
    into Program.outputs and Program.inputs): tensors of one dtype and rank whose sizes can be
    equal, and must be where the pair is used. What is on the GPU the host cannot see: no SymInt
    reads an element of that input, hence no check does (its dimensions may be read)."""

    output: int
    input: int


@dataclass(frozen=True, slots=True)
class Program:
    """One delegate: everything a replayer needs but the bytes of the named data.

    ``live``: the expressions (indices into ``exprs``) whose values fill the live block, slot by
    slot, once an execute; each must fit 32 bits, negative ones are written in two's complement.
    ``features``/``limits``: what the last route of every step needs together; a device
    that lacks one of them cannot run the program. ``limits`` names only those that exceed
    WebGPU's default limits. ``feedback``: which outputs may become inputs without the host.
    """

    producer: str  #: e.g. ``executorch-wgpu 0.1.0``
    symints: tuple[SymInt, ...] = ()
    exprs: tuple[Expr, ...] = ()
    live: tuple[int, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    shaders: tuple[Shader, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    steps: tuple[Step, ...] = ()
    checks: tuple[Check, ...] = ()
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    features: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    feedback: tuple[Feedback, ...] = ()
    format_version: int = field(default=FORMAT_VERSION)
