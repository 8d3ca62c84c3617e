"""Text from a language model, with the loop kept on the GPU: ``TextGenerator``, ``StepLoop``."""

from __future__ import annotations

from .loop import Step, StepLoop
from .result import Finish, GenerationResult, Statistics
from .text_generator import Conversation, TextGenerator
from .tokenizer import Tokenizer, as_tokenizer

__all__ = [
    "Conversation",
    "Finish",
    "GenerationResult",
    "Statistics",
    "Step",
    "StepLoop",
    "TextGenerator",
    "Tokenizer",
    "as_tokenizer",
]
