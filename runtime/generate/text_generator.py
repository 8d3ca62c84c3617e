"""Prompt in, text out: chunked prefill, decoding with steps in flight, prefix reuse.

The host owns the logical length: the tokens whose rows in the caches are known to be right. It is
cut back before anything is submitted that writes behind it, and grows as results arrive, so that an
interrupt anywhere leaves a generator that can go on.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceLostError, InvalidInputError
from ..interrupt import Interrupts
from ..program import Program, Runtime
from ..states import Snapshot
from .loop import Step, StepLoop
from .model import LanguageModel
from .result import Finish, GenerationResult, Statistics, peak_host_bytes
from .sampling import check_sampling
from .stream import TextStream
from .tokenizer import as_ids, as_tokenizer, eos_ids


@dataclass(frozen=True)
class Conversation:
    """Where a generator was, from :meth:`TextGenerator.snapshot`: the tokens in its caches, and the
    caches, on the GPU."""

    token_ids: tuple[int, ...]
    states: Snapshot


@dataclass(frozen=True)
class _Request:
    """One call of ``generate``, checked."""

    ids: list[int]
    reused: int
    budget: int
    limit: Finish
    sampling: tuple[float, float, int, int]
    stop_ids: frozenset[int]


class TextGenerator:
    """Generates text with a program exported as a language model (see :mod:`.model`). No torch.

    Args:
        program: a loaded program, or a path to a ``.pte``.
        tokenizer: anything with ``encode`` and ``decode`` (see :func:`.tokenizer.as_tokenizer`);
            None: prompts are token ids, and there is no text.
        device, progress: for a path, see ``Runtime.load_program``.
        pipelined: True keeps the loop on the GPU where the program can: the next step is submitted
            before the token of the last has arrived. False gives the same tokens one at a time.
        depth: steps in flight when pipelined, 2 or 3.
        prefill_chunk: tokens a prefill step, at most the program's ``max_seq_len``; None: that.
        reuse_prefix: False computes every prompt anew.
        sample_on_host: True uses ``forward`` even where the program has ``generate``.

    Attributes:
        model: the program's methods and bounds.
        pipelined: whether it is.
        last: the last result, also of a generation that was interrupted.

    Raises:
        InvalidProgramError: the program is no language model of the form expected.
        InvalidInputError: ``depth`` or ``prefill_chunk`` is out of range.
        NotDelegatedError, UnsupportedDeviceError, OutOfDeviceMemoryError: see ``load_method``.
    """

    def __init__(
        self,
        program: Program | str | os.PathLike[str],
        tokenizer: Any = None,
        *,
        device: Any = None,
        pipelined: bool = True,
        depth: int = 2,
        prefill_chunk: int | None = None,
        reuse_prefix: bool = True,
        sample_on_host: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        start = time.perf_counter()
        if not isinstance(program, Program):
            program = Runtime.get().load_program(program, device=device, progress=progress)
        self.tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
        self.model = LanguageModel(program, prefer_generate=not sample_on_host)
        self.pipelined = pipelined and self.model.feeds_back
        self._loop = StepLoop(self.model.method, depth if self.pipelined else 1)
        chunk = self.model.max_seq_len if prefill_chunk is None else prefill_chunk
        if not 1 <= chunk <= self.model.max_seq_len:
            raise InvalidInputError(
                f"prefill_chunk {chunk}: the program takes 1 to {self.model.max_seq_len} tokens"
            )
        self._chunk = chunk
        self._reuse = reuse_prefix
        self._cached: list[int] = []
        self._epoch = self.model.method.epoch
        self._lock = threading.RLock()
        self._busy = False
        self._load_ms = (time.perf_counter() - start) * 1e3
        self.last: GenerationResult | None = None

    # -- generation ---------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int | None = None,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: str | int | Sequence[str | int] = (),
        stream: Callable[[str], object] | None = None,
        ignore_eos: bool = False,
    ) -> GenerationResult:
        """Continues ``prompt``. Calls from several threads take turns.

        Args:
            prompt: text, or token ids. Tokens it has in common with what the caches hold, such as
                the turns of a chat so far, are not computed again.
            max_new_tokens: None: until the context is full.
            temperature: 0 takes the most likely token.
            top_p, top_k: 1.0 and 0 are off; see :mod:`.sampling`.
            seed: with equal seeds, the same text.
            stop: strings and token ids that end the text, beside the model's eos tokens.
            stream: called with each piece of text as it comes: whole characters, and nothing of a
                stop string.
            ignore_eos: eos tokens do not end the text.

        Raises:
            InvalidInputError: an argument out of range, or a token that the model does not have.
            KeyboardInterrupt: from Ctrl-C, after the step at hand (a second Ctrl-C does not wait).
                As after an exception of ``stream``, :attr:`last` has what there was so far, and
                the generator can be used on.
            OutOfDeviceMemoryError, DeviceLostError.
        """
        with self._alone("generate"), Interrupts() as interrupts:
            start = time.perf_counter()
            result = self.last = GenerationResult()
            words, stop_ids = _split_stop(stop)
            if not ignore_eos:
                stop_ids |= self.model.eos_ids | eos_ids(self.tokenizer)
            ids = as_ids(prompt, self.tokenizer)
            check_sampling(temperature, top_p, top_k)
            request = self._request(
                ids, max_new_tokens, (temperature, top_p, top_k, seed), stop_ids
            )
            result.statistics = Statistics(
                load_ms=self._load_ms, prompt_tokens=len(ids), reused_tokens=request.reused
            )
            decode = None if self.tokenizer is None else self.tokenizer.decode
            text = TextStream(decode, ids, words, stream)
            try:
                result.finish = self._run(request, result, text, start, interrupts)
            finally:
                result.text = text.text
                result.statistics.peak_host_bytes = peak_host_bytes()
                result.statistics.gpu_bytes = self.gpu_bytes
            return result

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Not from within a callback of a generation that runs."""
        with self._lock:
            if self._busy:
                raise InvalidInputError(
                    f"{what}: the generator is in the middle of a text; wait for its end, or work "
                    "with a fork()"
                )
            self._forget_if_moved()
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    def _forget_if_moved(self) -> None:
        """The caches of a program that was reloaded are empty."""
        if self._epoch != self.model.method.epoch:
            self._epoch = self.model.method.epoch
            self._cached = []

    def _check_not_moved(self) -> None:
        """Raises DeviceLostError where the caches went while text was generated."""
        if self._epoch != self.model.method.epoch:
            raise DeviceLostError(
                f"{self.model.method.name}: the program was reloaded while it generated, and its "
                "caches are empty: generate again"
            )

    def _request(
        self,
        ids: list[int],
        max_new_tokens: int | None,
        sampling: tuple[float, float, int, int],
        stop_ids: frozenset[int],
    ) -> _Request:
        size = self.model.vocab_size
        if min(ids) < 0 or (size and max(ids) >= size):
            bad = min(ids) if min(ids) < 0 else max(ids)
            raise InvalidInputError(f"token {bad} of the prompt is not in the vocabulary of {size}")
        if max_new_tokens is not None and max_new_tokens < 0:
            raise InvalidInputError(f"max_new_tokens {max_new_tokens}: expected 0 or more")
        reused = 0
        if self._reuse:
            # The last token is computed in any case: its logits are needed.
            for mine, cached in zip(ids[:-1], self._cached, strict=False):
                if mine != cached:
                    break
                reused += 1
        # The last token chosen needs no row of the caches.
        room = self.model.max_context - len(ids) + 1
        if max_new_tokens is None or room < max_new_tokens:
            return _Request(ids, reused, max(0, room), Finish.CONTEXT, sampling, stop_ids)
        return _Request(ids, reused, max_new_tokens, Finish.LENGTH, sampling, stop_ids)

    def _run(
        self,
        request: _Request,
        result: GenerationResult,
        text: TextStream,
        start: float,
        interrupts: Interrupts,
    ) -> Finish:
        """Drives the steps; fills ``result`` but for its text."""
        if len(request.ids) > self.model.max_context:
            return Finish.CONTEXT
        statistics = result.statistics
        first = start
        del self._cached[request.reused :]
        sequence = list(request.ids)
        results = self._loop.run(self._steps(request, sequence))
        with contextlib.closing(results):
            for step, outputs in results:
                interrupts.check()
                self._check_not_moved()
                # The rows that the step wrote hold these tokens, which are known by now.
                self._cached += sequence[len(self._cached) : step.note]
                if not outputs:
                    continue
                token = self.model.choose(outputs[0], *request.sampling, step.note)
                sequence.append(token)
                now = time.perf_counter()
                statistics.generated_tokens += 1
                if statistics.generated_tokens == 1:
                    first = now
                    statistics.prefill_ms = statistics.time_to_first_token_ms = (now - start) * 1e3
                statistics.decode_ms = (now - first) * 1e3
                if token in request.stop_ids:
                    text.finish()
                    return Finish.STOP
                result.token_ids.append(token)
                if text.push(token):
                    return Finish.STOP
        if not request.budget:
            statistics.prefill_ms = (time.perf_counter() - start) * 1e3
        return Finish.STOP if text.finish() else request.limit

    def _steps(self, request: _Request, sequence: Sequence[int]) -> Iterator[Step]:
        """The calls of a generation; a step's note is the length of the sequence behind it.
        ``sequence``: prompt and the tokens known so far."""
        ids, model = request.ids, self.model
        position = request.reused
        while position < len(ids):
            tokens = ids[position : position + self._chunk]
            inputs = model.step_inputs(tokens, position, *request.sampling)
            position += len(tokens)
            self._check_not_moved()
            wanted = [0] if position == len(ids) and request.budget else []
            yield Step(inputs, wanted, position)
        for position in range(len(ids), len(ids) + request.budget - 1):
            fed = None if self.pipelined else sequence[-1:]
            self._check_not_moved()
            yield Step(model.step_inputs(fed, position, *request.sampling), [0], position + 1)

    # -- what the caches hold -----------------------------------------------------------------

    @property
    def cached_ids(self) -> list[int]:
        """The tokens in the caches, which a prompt that begins with them need not compute."""
        return list(self._cached) if self._epoch == self.model.method.epoch else []

    @property
    def gpu_bytes(self) -> int:
        """Bytes of all buffers on the GPU, those included that other generators share."""
        return sum(self.model.method.allocated().values())

    def reset(self) -> None:
        """Forgets the text so far: the next prompt is computed from its start."""
        with self._alone("reset"):
            self._cached = []

    def snapshot(self, *, on_host: bool = False) -> Conversation:
        """Keeps the text so far, to return to it with :meth:`restore` without computing it again.
        Takes memory for the rows of the caches that are in use. May be called while text is
        streamed: steps in flight are waited for first.

        Args:
            on_host: in host memory, where it outlives the device (``Program.reload``); else on the
                GPU.

        Raises:
            OutOfDeviceMemoryError, DeviceLostError.
        """
        with self._lock:
            if not self._busy:
                self._forget_if_moved()
            self._loop.drain()
            rows = self.model.cache_rows(len(self._cached))
            states = self.model.method.state.snapshot(rows, on_host=on_host)
            return Conversation(tuple(self._cached), states)

    def restore(self, conversation: Conversation) -> None:
        """Returns to a snapshot, of this generator or a fork of it.

        Raises:
            InvalidInputError: the snapshot is of another model.
        """
        with self._alone("restore"):
            self._cached = []
            self.model.method.state.restore(conversation.states)
            self._cached = list(conversation.token_ids)

    def fork(self) -> TextGenerator:
        """A second generator that goes on from here by itself. It shares the weights and has caches
        of its own. May be called while text is streamed.

        Raises:
            OutOfDeviceMemoryError, DeviceLostError.
        """
        with self._lock:
            if not self._busy:
                self._forget_if_moved()
            self._loop.drain()
            copy = object.__new__(TextGenerator)
            copy.__dict__.update(self.__dict__)
            copy.model = self.model.fork()
            copy._loop = StepLoop(copy.model.method, self._loop.depth)
            copy._cached, copy._epoch = list(self._cached), copy.model.method.epoch
            copy._lock, copy._busy = threading.RLock(), False
            copy.last = None
            return copy


def _split_stop(stop: str | int | Sequence[str | int]) -> tuple[list[str], frozenset[int]]:
    """Stop strings and stop tokens."""
    items = [stop] if isinstance(stop, (str, int)) else list(stop)
    words = [item for item in items if isinstance(item, str)]
    return words, frozenset(item for item in items if not isinstance(item, str))
