"""What a generation gives: text, ids, why it ended, and figures."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import StrEnum


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  #: a stop token or a stop string
    LENGTH = "length"  #: ``max_new_tokens``
    CONTEXT = "context"  #: the prompt, or prompt and text, fill the model's context
    INTERRUPTED = "interrupted"  #: Ctrl-C, or an error of the caller's callback


@dataclass
class Statistics:
    """Figures of one generation, the ones that ExecuTorch's llama runner prints.

    Times are of the host's clock: ``load_ms`` to make the methods ready, ``time_to_first_token_ms``
    from the call of ``generate``. ``peak_host_bytes``: the process's largest resident set so far,
    the file's pages that are mapped included, 0 where the system does not say. ``gpu_bytes``: of
    all buffers.
    """

    load_ms: float = 0.0
    prompt_tokens: int = 0
    reused_tokens: int = 0  #: of the prompt, that were in the cache already
    generated_tokens: int = 0  #: with the stop token, if there was one
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    time_to_first_token_ms: float = 0.0
    peak_host_bytes: int = 0
    gpu_bytes: int = 0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Tokens of the prompt that were computed, a second."""
        computed = self.prompt_tokens - self.reused_tokens
        return computed / self.prefill_ms * 1e3 if self.prefill_ms else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first, a second."""
        return (self.generated_tokens - 1) / self.decode_ms * 1e3 if self.decode_ms else 0.0

    def lines(self) -> list[tuple[str, str]]:
        """Names and values, for people."""
        reused = f" ({self.reused_tokens} of them reused)" if self.reused_tokens else ""
        return [
            ("load", f"{self.load_ms:,.0f} ms"),
            ("prompt", f"{self.prompt_tokens} tokens{reused}"),
            ("prefill", f"{self.prefill_tokens_per_s:,.1f} tokens/s"),
            ("time to first token", f"{self.time_to_first_token_ms:,.1f} ms"),
            ("generated", f"{self.generated_tokens} tokens"),
            ("decode", f"{self.decode_tokens_per_s:,.1f} tokens/s"),
            ("peak host memory", f"{self.peak_host_bytes / 2**20:,.0f} MiB"),
            ("GPU memory", f"{self.gpu_bytes / 2**20:,.0f} MiB"),
        ]


@dataclass
class GenerationResult:
    """``text`` and ``token_ids`` are what was generated, without the prompt, a stop token or a stop
    string (whose tokens ``token_ids`` has)."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: Finish = Finish.INTERRUPTED
    statistics: Statistics = field(default_factory=Statistics)


def peak_host_bytes() -> int:
    """The largest resident set that this process has had; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
