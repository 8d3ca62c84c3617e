"""How large a dispatch list may be: every bound that the reader, the writer and the verifier
enforce, in one place.

They are not limits of the format's fields but of what a player is asked to chew: a hostile file
must not make it allocate without end, and each is far above what a real program needs (a 30-layer
llama has about 700 dispatches, 100 expressions and 300 kB of WGSL).
"""

from __future__ import annotations

#: Bytes of a whole payload, header included.
MAX_PAYLOAD_BYTES = 64 << 20

#: Elements of all vectors together, after decoding: bounds the time that a hostile file can take.
MAX_ELEMENTS = 1 << 21

#: Characters of all text together, after decoding (a file may point at one string many times).
MAX_TEXT_CHARS = 64 << 20

#: The same for each byte of a file. A real one has less than one: every text is stored once, and
#: labels that repeat are short.
TEXT_CHARS_A_BYTE = 8

MAX_SYMINTS = 1024
MAX_EXPRS = 1 << 16
MAX_BUFFERS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_SHADERS = 1 << 13
MAX_KERNELS = 1 << 15
MAX_STEPS = 1 << 16
MAX_CHECKS = 1 << 12
MAX_VALUES = 1 << 12  #: inputs, and outputs
MAX_ROUTES = 64  #: of one step
MAX_DISPATCHES = 1 << 17  #: of all routes of all steps together, and so many routes
MAX_BINDINGS = 32  #: of one dispatch
MAX_PARAMS = 256  #: of one kernel
MAX_DEBUG_HANDLES = 1024  #: of one dispatch
MAX_CHECK_ARGS = 16
MAX_RANK = 16
MAX_REQUIREMENTS = 64  #: features, limits or extensions in one list

#: Characters of one name, label, key, op or module path.
MAX_NAME_CHARS = 1024
MAX_MESSAGE_CHARS = 4096

#: UTF-8 bytes of one shader.
MAX_WGSL_BYTES = 1 << 20

#: Bytes of one buffer: 1 TiB, beyond any device, so that sums stay far inside 64 bits.
MAX_BUFFER_BYTES = 1 << 40

#: Invocations of one workgroup. WebGPU's default is 256; no adapter offers more than this.
MAX_WORKGROUP_INVOCATIONS = 1024
MAX_WORKGROUP_BYTES = 1 << 20

#: WebGPU binds at multiples of this on every adapter (its default and largest alignment).
BINDING_ALIGNMENT = 256

#: The range of every value of every expression: a player in any language has 64-bit integers.
MIN_VALUE = -(1 << 63)
MAX_VALUE = (1 << 63) - 1
