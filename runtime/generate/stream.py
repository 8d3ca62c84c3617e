"""From tokens to text while they come: only complete characters, and nothing of a stop string.

A token may be a part of a character (byte-level vocabularies), and its text may depend on the one
before it (a leading space that sentencepiece drops at the start). So a window of tokens is decoded
with and without the new ones, and what they add is taken when it ends in a whole character.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
#: Tokens of the prompt decoded for context.
_CONTEXT = 6
#: A character takes at most 4 bytes: after so many tokens, what is undecodable is just that.
_PATIENCE = 8


class TextStream:
    """The text of a generation.

    Args:
        decode: ids to text; None gives no text.
        prompt: ids before the first token.
        stop: strings that end the text, and are not part of it.
        emit: called with each piece of text that is final.

    Attributes:
        text: what has been emitted.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str] | None,
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        emit: Callable[[str], object] | None = None,
    ) -> None:
        self.text = ""
        self._decode, self._emit = decode, emit
        self._stop = [word for word in stop if word]
        self._window = list(prompt[-_CONTEXT:])
        self._known = len(self._window)  # tokens of the window whose text has been taken
        self._held = ""  # taken, and possibly the start of a stop string

    def push(self, token: int) -> bool:
        """Adds a token; True when its text completes a stop string. What comes before that has
        been emitted, and nothing will be after it."""
        if self._decode is None:
            return False
        self._window.append(token)
        return self._take(self._fresh(self._decode, final=False))

    def finish(self) -> bool:
        """Emits what was held back; no more tokens will come. True when that holds a stop
        string."""
        if self._decode is None:
            return False
        if self._take(self._fresh(self._decode, final=True)):
            return True
        self._send(self._held)
        self._held = ""
        return False

    def _fresh(self, decode: Callable[[list[int]], str], final: bool) -> str:
        """The text that the window's new tokens add, "" when it is not complete."""
        if self._known == len(self._window):
            return ""
        before = decode(self._window[: self._known]) if self._known else ""
        after = decode(self._window)
        waiting = len(self._window) - self._known
        if not final and waiting <= _PATIENCE and after.endswith(_REPLACEMENT):
            return ""
        cut = len(before)
        if not after.startswith(before):
            # The context ended within a character, which the new tokens complete.
            cut = len(before.rstrip(_REPLACEMENT))
        fresh = after[cut:]
        self._window = self._window[self._known :]
        self._known = len(self._window)
        return fresh

    def _take(self, fresh: str) -> bool:
        held = self._held + fresh
        ends = [at for at in (held.find(word) for word in self._stop) if at >= 0]
        if ends:
            self._send(held[: min(ends)])
            self._held = ""
            return True
        keep = max((_overlap(held, word) for word in self._stop), default=0)
        self._send(held[: len(held) - keep])
        self._held = held[len(held) - keep :]
        return False

    def _send(self, piece: str) -> None:
        if piece:
            self.text += piece
            if self._emit is not None:
                self._emit(piece)


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``word``."""
    for length in range(min(len(text), len(word) - 1), 0, -1):
        if text.endswith(word[:length]):
            return length
    return 0
