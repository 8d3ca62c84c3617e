"""f16 and bf16: stored in 16 bits, two to a 32-bit word, computed with in f32.

``halves.wgsl`` beside this file has the macros that read and write them; this is what Python
decides about them. Reading is always possible: any element is a word and a half of it. Writing is
where threads can meet, since none may write a word that another one writes too:

* four elements a thread, or two, where these are whole words that it alone owns;
* otherwise one element a thread, into its half of the word by two atomic operations.
"""

from __future__ import annotations

from executorch_wgpu.serialization.dispatch_list import DType

HALVES = (DType.F16, DType.BF16)
FLOATS = (DType.F32, *HALVES)


def is_half(dtype: DType) -> bool:
    """Whether elements take 16 bits."""
    return dtype in HALVES


def is_float(dtype: DType) -> bool:
    """Whether elements are floating-point numbers: f32 in a shader, however they are stored."""
    return dtype in FLOATS


def codec(dtype: DType) -> str:
    """The codec of ``halves.wgsl``, "" for a dtype that takes 32 bits."""
    return dtype.name.lower() if is_half(dtype) else ""


def codecs(*dtypes: DType) -> list[str]:
    """The codecs of some dtypes, each once."""
    return sorted({codec(dtype) for dtype in dtypes if is_half(dtype)})


def element(dtype: DType, vector: bool) -> str:
    """What a buffer of floats is bound as an array of: one element, or four with ``vector``."""
    if is_half(dtype):
        return "vec2<u32>" if vector else "u32"
    return "vec4<f32>" if vector else "f32"
