"""The pointwise kernel: any expression of one element, over operands read through strides.

Broadcasting is a stride of 0, a permuted operand is another set of strides; dimensions that all
operands walk alike are collapsed, so most calls index with one number.

Results of 16 bits share words, and no two threads may write one word: see :func:`_writing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch_wgpu.ops.builder import Bind, Builder, Number, linear_grid
from executorch_wgpu.ops.elementwise.bytes import BYTES, emit_byte_copy
from executorch_wgpu.ops.halves import codec, is_half
from executorch_wgpu.ops.symbolic import Scalar, ceil_div, product
from executorch_wgpu.ops.tensor import Shape, Tensor, touched_bytes
from executorch_wgpu.serialization.dispatch_list import DType

WORKGROUP = 64

#: WGSL type of one element inside an expression.
ELEMENT_TYPE = {
    DType.F32: "f32",
    DType.F16: "f32",
    DType.BF16: "f32",
    DType.I32: "i32",
    DType.I64: "i32",
    DType.BOOL: "bool",
}
#: WGSL type of one element in a buffer, of a word of two where an element takes 16 bits.
STORAGE_ELEMENT = {
    DType.F32: "f32",
    DType.F16: "u32",
    DType.BF16: "u32",
    DType.I32: "i32",
    DType.I64: "i32",
    DType.BOOL: "u32",
}


def emit_pointwise(
    b: Builder,
    name: str,
    expressions: str | Sequence[str],
    operands: Sequence[Tensor],
    outs: Tensor | Sequence[Tensor],
    *,
    helper: str = "",
    bits: bool = False,
) -> None:
    """Append one dispatch: ``out[...] = expression`` over ``a0``, ``a1`` ... (one element of each
    operand, of the type in ELEMENT_TYPE; the result has out's). Operands broadcast to the
    shape of the outputs. Several outputs are views of one storage with equal shapes, each with
    its expression. ``helper``: WGSL functions that the expressions call. ``bits``: elements are
    the 16 bits that they are stored as, as u32; everything is of such a dtype. An output may be
    strided but must not overlap itself or share a storage with an operand."""
    outs = [outs] if isinstance(outs, Tensor) else list(outs)
    texts = [expressions] if isinstance(expressions, str) else list(expressions)
    first = outs[0]
    views = [*outs, *(t.expand(first.shape) for t in operands)]
    shape, strides = collapse_dims(first.shape, [v.strides for v in views])
    vec = _vector_width(shape, strides, views, len(outs))
    writing = _writing(shape, strides, outs, vec)
    dims: list[Scalar] = [*shape[:-1], shape[-1] // vec]
    count = product(dims)
    params: dict[str, Number] = {"COUNT": count}
    # A thread's index is split into coordinates by dividing by every size but the outermost.
    # Of an empty tensor nothing runs, but Tint refuses to compile a division by 0.
    params |= {f"D{d}": size if size != 0 else 1 for d, size in enumerate(dims) if d > 0}
    reads: dict[str, Bind] = {}
    described: list[dict[str, Any]] = []
    for k, (view, stride) in enumerate(zip(views, strides, strict=True)):
        vector = vec == 4 and stride[-1] != 0
        name_of = "OUT" if k < len(outs) else "A"
        entry = _address(params, f"{name_of}{k}", view.offset, stride, vector)
        if k >= len(outs):
            entry["name"] = _bind(reads, view, _element(view.dtype, vector))
            entry["type"] = "u32" if bits else ELEMENT_TYPE[view.dtype]
            entry["codec"] = "bits" if bits else codec(view.dtype)
        else:
            entry["expression"] = texts[k]
        described.append(entry)
    element = "atomic<u32>" if writing == "alone" else _element(first.dtype, vec == 4)
    result = "bits" if bits else codec(first.dtype)
    b.run(
        b.dispatch(
            "elementwise/pointwise.wgsl",
            name,
            reads=reads,
            writes={"out": Bind(first, element)},
            params=params,
            consts={
                "OUTPUTS": described[: len(outs)],
                "OPERANDS": described[len(outs) :],
                "RANK": len(dims),
                "RESULT": "u32" if bits else ELEMENT_TYPE[first.dtype],
                "CODEC": result,
                "CODECS": {result, *(entry["codec"] for entry in described[len(outs) :])},
                "VEC": vec,
                "WRITING": writing,
                "ODD": count % 2 != 0,
                "HELPER": helper,
            },
            grid=linear_grid(ceil_div(count, WORKGROUP * (2 if writing == "pairs" else 1))),
            workgroup=(WORKGROUP,),
            bytes=touched_bytes(views),
        )
    )


def _element(dtype: DType, vector: bool) -> str:
    """What a buffer is bound as an array of; with ``vector``, four elements at once."""
    stored = STORAGE_ELEMENT[dtype]
    if is_half(dtype):
        return "vec2<u32>" if vector else stored
    return f"vec4<{stored}>" if vector else stored


def _writing(shape: Shape, strides: Sequence[Shape], outs: Sequence[Tensor], vec: int) -> str:
    """How the threads of a dispatch write without two of them in one word:

    * ``words``: what a thread writes is whole words, of as many elements as ``vec`` says;
    * ``pairs``: two neighbours a thread, which are one word;
    * ``woven``: one element of each of two outputs, which are one word;
    * ``alone``: one element, by atomic operations on its half of the word.

    ``strides``: those of the outputs come first."""
    first, own = outs[0], strides[: len(outs)]
    if not is_half(first.dtype) or vec == 4:
        return "words"
    if len(outs) == 1 and first.is_contiguous and first.offset % 2 == 0:
        return "pairs"  # the last one may be half a word
    if any(stride % 2 != 0 for each in own for stride in each[:-1]):
        return "alone"
    starts = [out.offset % 2 for out in outs]
    if shape[-1] % 2 == 0 and all(each[-1] == 1 for each in own) and all(s == 0 for s in starts):
        return "pairs"
    apart = len(outs) == 2 and own[0] == own[1] and own[0][-1] % 2 == 0
    if apart and starts[0] == 0 and outs[1].offset - first.offset == 1:
        return "woven"
    return "alone"


def _bind(reads: dict[str, Bind], view: Tensor, element: str) -> str:
    """The variable through which ``view`` is read. Operands in one storage, such as both factors
    of x * x, share a binding."""
    for variable, other in reads.items():
        if other.tensor.storage is view.storage and other.element == element:
            return variable
    variable = f"in{len(reads)}"
    reads[variable] = Bind(view, element)
    return variable


def collapse_dims(shape: Shape, layouts: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Drop dimensions of size 1 and merge neighbours that every layout walks as one. Returns the
    shape (at least one dimension) and the strides of each layout over it."""
    kept: list[tuple[Scalar, list[Scalar]]] = []
    for d, size in enumerate(shape):
        if size == 1:
            continue
        strides = [layout[d] for layout in layouts]
        if kept and all(
            outer == inner * size for outer, inner in zip(kept[-1][1], strides, strict=True)
        ):
            kept[-1] = (kept[-1][0] * size, strides)
        else:
            kept.append((size, strides))
    kept = kept or [(1, [0 for _ in layouts])]
    return (
        tuple(size for size, _ in kept),
        [tuple(strides[k] for _, strides in kept) for k in range(len(layouts))],
    )


def _vector_width(
    shape: Shape, strides: Sequence[Shape], tensors: Sequence[Tensor], outputs: int
) -> int:
    """4 where the innermost dimension can be walked four elements at a time by everybody. The
    first ``outputs`` tensors are written: those cannot be broadcast."""
    if any(t.dtype is DType.BOOL for t in tensors) or shape[-1] % 4 != 0:
        return 1
    if any(stride[-1] != 1 for stride in strides[:outputs]):
        return 1
    for stride, tensor in zip(strides, tensors, strict=True):
        if stride[-1] == 0:
            continue
        if stride[-1] != 1 or tensor.offset % 4 != 0 or any(s % 4 != 0 for s in stride[:-1]):
            return 1
    return 4


def _address(
    params: dict[str, Number], prefix: str, offset: Scalar, strides: Shape, vector: bool
) -> dict[str, Any]:
    """Declare the parameters of an operand's address and describe it to the template. Operands
    bound as vectors count in units of four; a coordinate of the innermost dimension does too."""
    unit = 4 if vector else 1
    terms: list[tuple[int, str]] = []
    for d, stride in enumerate(strides):
        step = stride // unit if d < len(strides) - 1 else stride
        if step == 0:
            continue
        if step == 1:
            terms.append((d, ""))
            continue
        params[f"{prefix}_{d}"] = step
        terms.append((d, f"{prefix}_{d}"))
    start = offset // unit
    if start != 0:
        params[f"{prefix}_AT"] = start
    return {
        "offset": f"{prefix}_AT" if start != 0 else "",
        "terms": terms,
        "vector": vector,
    }


def emit_copy(b: Builder, source: Tensor, out: Tensor, name: str = "copy") -> None:
    """Append a dispatch that copies ``source`` (broadcast, any strides) into ``out``, converting
    between dtypes as PyTorch does. Bits of NaN and infinity survive where dtypes are equal."""
    if source.dtype in BYTES:
        emit_byte_copy(b, source, out, name)
        return
    if source.dtype is not out.dtype or not is_half(out.dtype):
        emit_pointwise(b, name, convert("a0", source.dtype, out.dtype), [source], out)
        return
    shape, strides = collapse_dims(out.shape, [source.expand(out.shape).strides, out.strides])
    from_words, to_words = (
        tensor.with_layout(shape, stride).as_words()
        for tensor, stride in zip((source, out), strides, strict=True)
    )
    if from_words is None or to_words is None:
        emit_pointwise(b, name, "a0", [source], out, bits=True)
    else:
        emit_pointwise(b, name, "a0", [from_words], to_words)


def materialize(b: Builder, tensor: Tensor, name: str = "contiguous") -> Tensor:
    """``tensor`` itself where it is contiguous with offset 0, else a contiguous copy."""
    if tensor.is_contiguous and tensor.offset == 0:
        return tensor
    out = b.empty(tensor.shape, tensor.dtype, name)
    emit_copy(b, tensor, out, name)
    return out


def convert(value: str, source: DType, target: DType) -> str:
    """A WGSL expression of ``value`` (of ELEMENT_TYPE[source]) as ELEMENT_TYPE[target]."""
    have, want = ELEMENT_TYPE[source], ELEMENT_TYPE[target]
    if have == want:
        return value
    if want == "bool":
        return f"({value} != {have}(0))"
    return f"{want}({value})"
