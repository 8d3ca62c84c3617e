"""What a generator needs of a tokenizer, and an adapter for the usual ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from ..errors import InvalidInputError


class Tokenizer(Protocol):
    """Text to token ids and back.

    It may also have ``eos_ids`` (ids that end a text, beside those that the program names) and
    ``apply_chat_template(messages)``, which :class:`TextGenerator` does not call by itself.
    """

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, with whatever the model expects in front of it."""

    def decode(self, ids: list[int]) -> str:
        """The text of ids; ``\\ufffd`` for bytes that are no complete character."""


class _Adapter:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids(tokenizer)
        self._encode_options = {
            name: False for name in ("bos", "eos") if name in _parameters(tokenizer.encode)
        }

    def encode(self, text: str) -> list[int]:
        """As :meth:`Tokenizer.encode`."""
        encoded = self.tokenizer.encode(text, **self._encode_options)
        return [int(i) for i in getattr(encoded, "ids", encoded)]

    def decode(self, ids: list[int]) -> str:
        """As :meth:`Tokenizer.decode`."""
        return str(self.tokenizer.decode(ids))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """A :class:`Tokenizer` from a ``tokenizers.Tokenizer``, one of ``pytorch_tokenizers`` or of
    ``transformers``, or anything with ``encode`` and ``decode``.

    Raises:
        InvalidInputError: it has not both.
    """
    for name in ("encode", "decode"):
        if not callable(getattr(tokenizer, name, None)):
            raise InvalidInputError(f"the tokenizer {type(tokenizer).__name__} has no {name}()")
    return _Adapter(tokenizer)


def eos_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that end a text, as the tokenizer names them (``eos_ids``, ``eos_id``,
    ``eos_token_id``); none when it does not."""
    found: set[int] = set()
    for name in ("eos_ids", "eos_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            found.add(value)
        elif isinstance(value, Collection) and not isinstance(value, (str, bytes)):
            found.update(int(i) for i in value)
    return frozenset(found)


def _parameters(function: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in another language, and silent about it
        return ()


def as_ids(prompt: str | Sequence[int], tokenizer: Tokenizer | None) -> list[int]:
    """The ids of a prompt.

    Raises:
        InvalidInputError: text without a tokenizer, no tokens, or no integers.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InvalidInputError("a prompt in words needs a tokenizer; pass token ids")
        ids = tokenizer.encode(prompt)
    else:
        ids = [int(i) for i in prompt]
    if not ids:
        raise InvalidInputError("the prompt has no tokens; begin with the model's bos token")
    return ids
