"""A language model in a ``.pte``: the methods it must have, read and checked once.

``forward(tokens i64 [1, S], input_pos i64 [1]) -> logits [1, 1 or S, V]``: the logits of the last
position, or of all; ``input_pos`` is the position of the first token, and what was computed for
earlier positions lies in the method's states.

``generate(tokens, input_pos, temperature f32 [1], top_p f32 [1], top_k i64 [1], seed i64 [1]) ->
next_token i64 [1, 1]``, optional: the same with the choice of a token on the GPU, and a feedback
pair from ``next_token`` to ``tokens``. It is called with a ``top_k`` of 1 to the vocabulary's size,
of which 1 goes with a temperature of 0, too. Where it is there, ``forward`` is not loaded.

Methods that give constants: ``get_max_seq_len`` (tokens a call), ``get_max_context_len``,
``get_vocab_size``, ``get_bos_id``, ``get_eos_ids``, ``use_kv_cache``; all optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from executorch_wgpu.serialization.dispatch_list import SymSource

from ..boundary import FED_BACK
from ..errors import InvalidProgramError
from ..metadata import TensorInfo
from ..program import Program
from .sampling import sample

_SEED_MASK = _MOST = 0x7FFFFFFF


class LanguageModel:
    """The methods of one program that generate text.

    Attributes:
        method: ``generate``, or ``forward`` where that is missing.
        samples: True when the method gives tokens, False when it gives logits.
        feeds_back: True when the token can stay on the GPU.
        max_seq_len: tokens a call takes at the most.
        max_context: positions there are.
        vocab_size: 0 when the program does not say.
        bos_id: None when the program does not say.
        eos_ids: tokens that end a text.
    """

    def __init__(self, program: Program, *, prefer_generate: bool = True) -> None:
        """Raises:
        InvalidProgramError: the program is no language model of this form.
        NotDelegatedError, UnsupportedDeviceError, OutOfDeviceMemoryError: see ``load_method``.
        """
        names = program.method_names
        self.samples = prefer_generate and "generate" in names
        name = "generate" if self.samples else "forward"
        if name not in names:
            raise InvalidProgramError(
                f"no language model: it has the methods {', '.join(sorted(names)) or 'none'}, "
                "neither generate nor forward"
            )
        self._check(program, name)
        if not _constant(program, "use_kv_cache", [True])[0]:
            raise InvalidProgramError(
                f"{name}: exported without a KV cache (use_kv_cache is False), so that each token "
                "would need the whole text again; export with one"
            )
        self.vocab_size = int(_constant(program, "get_vocab_size", [0])[0])
        bos = int(_constant(program, "get_bos_id", [-1])[0])
        self.bos_id = bos if bos >= 0 else None
        self.eos_ids = frozenset(int(i) for i in _constant(program, "get_eos_ids", []))
        # Apart: the caches hold what this model was given. A second one over the same program, or
        # a call of another of its methods, would write to them unseen.
        self.method = program.load_method(name, apart=True)
        self.feeds_back = self.samples and (0, 0) in self.method.feedback()

    def _check(self, program: Program, name: str) -> None:
        """Read the bounds off the method's arguments."""
        metadata = program.metadata(name)
        inputs = [i for i in metadata.inputs if isinstance(i, TensorInfo)]
        wanted = (
            ["int64", "int64", "float32", "float32", "int64", "int64"]
            if self.samples
            else ["int64", "int64"]
        )
        ranks = [2, 1, 1, 1, 1, 1][: len(wanted)]
        if [i.dtype for i in inputs] != wanted or [len(i.shape) for i in inputs] != ranks:
            names = "tokens, input_pos" + ", temperature, top_p, top_k, seed" * self.samples
            raise InvalidProgramError(f"{metadata}: expected ({names}) as {wanted}")
        tokens = inputs[0].shape[1]
        if tokens.lo > 1:
            raise InvalidProgramError(
                f"{metadata}: takes {tokens.lo} tokens at the least, and one must do; export "
                "with a dynamic sequence length"
            )
        limit = int(_constant(program, "get_max_seq_len", [tokens.hi])[0])
        self.max_seq_len = max(1, min(limit, tokens.hi))
        context = _constant(program, "get_max_context_len", [])
        self.max_context = int(context[0]) if context else _positions(program, name)

    def step_inputs(
        self,
        tokens: Sequence[int] | None,
        position: int,
        temperature: float,
        top_p: float,
        top_k: int,
        seed: int,
    ) -> list[object]:
        """Arguments of a call; ``tokens`` None: the one that the last call chose."""
        first: object = FED_BACK if tokens is None else np.array([tokens], np.int64)
        inputs = [first, np.array([position], np.int64)]
        if self.samples:
            # Greedy is a top_k of 1, too, by which a program can tell that it has nothing to draw.
            top_k = 1 if temperature == 0 else min(top_k or self.vocab_size or _MOST, _MOST)
            inputs += [
                np.array([temperature], np.float32),
                np.array([top_p], np.float32),
                np.array([top_k], np.int64),
                np.array([seed & _SEED_MASK], np.int64),
            ]
        return inputs

    def choose(
        self,
        output: Any,
        temperature: float,
        top_p: float,
        top_k: int,
        seed: int,
        position: int,
    ) -> int:
        """The new token, at ``position``, of a call's output."""
        if self.samples:
            return int(output.reshape(-1)[0])
        logits = output.reshape(-1, output.shape[-1])[-1]
        if logits.dtype == np.uint16:  # bfloat16 as bits
            logits = (logits.astype(np.uint32) << 16).view(np.float32)
        return sample(logits, temperature, top_p, top_k, seed & _SEED_MASK, position)

    def cache_rows(self, length: int) -> dict[str, int]:
        """How many rows of each cache ``[1, max_context, heads, size]`` are in use after
        ``length`` tokens; other states are not named."""
        return {
            name: length
            for name in self.method.state.names
            if len(shape := self.method.state.shape(name)) == 4
            and shape[:2] == (1, self.max_context)
        }

    def fork(self) -> LanguageModel:
        """The same with states of its own, copied."""
        copy = object.__new__(LanguageModel)
        copy.__dict__.update(self.__dict__)
        copy.method = self.method.fork()
        return copy


def _constant(program: Program, name: str, default: list[Any]) -> list[Any]:
    """The values that a metadata method gives, flat; ``default`` when it is not there."""
    if name not in program.method_names:
        return default
    found: list[Any] = []
    for value in program.load_method(name).execute([]):
        found += (
            value if isinstance(value, (list, tuple)) else np.asarray(value).reshape(-1).tolist()
        )
    return found or default


def _positions(program: Program, name: str) -> int:
    """The positions that ``input_pos[0]`` can name.

    Raises InvalidProgramError when nothing bounds them.
    """
    listed = program.dispatch_list(name)
    bounds = [
        symint.hi + 1
        for symint in listed.symints
        if symint.source is SymSource.TENSOR_ELEMENT and symint.index in (0, -1)
    ]
    if not bounds or min(bounds) >= 1 << 31:
        raise InvalidProgramError(
            f"{name}: nothing says how long its context is; export a method get_max_context_len"
        )
    return min(bounds)
