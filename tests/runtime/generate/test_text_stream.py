"""Text as it comes: whole characters, nothing of a stop string, and together the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from executorch_wgpu.runtime.generate.stream import TextStream


def decode_bytes(ids: list[int]) -> str:
    """A byte a token."""
    return bytes(ids).decode("utf8", "replace")


def decode_words(ids: list[int]) -> str:
    """As sentencepiece: a space before each word, but for the first."""
    return " ".join(f"w{i}" for i in ids)


def streamed(
    decode: object, prompt: list[int], tokens: list[int], stop: tuple[str, ...] = ()
) -> tuple[list[str], bool]:
    pieces: list[str] = []
    stream = TextStream(decode, prompt, stop, pieces.append)  # type: ignore[arg-type]
    ended = any(stream.push(token) for token in tokens) or stream.finish()
    assert stream.text == "".join(pieces)
    return pieces, ended


@given(st.text(max_size=40), st.text(max_size=10))
def test_bytes_become_whole_characters(text: str, prompt: str) -> None:
    pieces, _ = streamed(decode_bytes, list(prompt.encode()), list(text.encode()))
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= 4 for piece in pieces)


@given(st.lists(st.integers(0, 255), max_size=60))
def test_any_bytes(tokens: list[int]) -> None:
    """What is no UTF-8 does not hold up what follows for long."""
    pieces, _ = streamed(decode_bytes, [], tokens)
    valid = [c for c in decode_bytes(tokens) if c.isascii()]
    assert [c for c in "".join(pieces) if c.isascii()] == valid


def test_the_leading_space() -> None:
    assert streamed(decode_words, [1, 2], [3, 4])[0] == [" w3", " w4"]
    assert streamed(decode_words, [], [3, 4])[0] == ["w3", " w4"]


def test_a_prompt_that_ends_within_a_character() -> None:
    euro = list("€".encode())
    assert streamed(decode_bytes, [65, *euro[:2]], [euro[2], 66])[0] == ["€", "B"]


def test_incomplete_at_the_end() -> None:
    euro = list("€".encode())
    assert streamed(decode_bytes, [], [65, *euro[:2]])[0] == ["A", "\ufffd"]


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_strings(text: str, stop: list[str]) -> None:
    pieces, ended = streamed(decode_bytes, [], list(text.encode()), tuple(stop))
    # It ends with the character that completes a stop string, at the first of those then there.
    for length in range(1, len(text) + 1):
        found = [at for at in (text[:length].find(word) for word in stop) if at >= 0]
        if found:
            assert ended and "".join(pieces) == text[: min(found)]
            return
    assert not ended and "".join(pieces) == text


def test_what_may_become_a_stop_string_is_held_back() -> None:
    pieces: list[str] = []
    stream = TextStream(decode_bytes, [], ["</s>"], pieces.append)
    shown = []
    for token in b"a<b</s":
        assert not stream.push(token)
        shown.append("".join(pieces))
    assert shown == ["a", "a", "a<b", "a<b", "a<b", "a<b"]
    assert stream.push(ord(">"))
    assert stream.text == "a<b"


def test_without_a_tokenizer() -> None:
    stream = TextStream(None)
    assert not stream.push(1) and not stream.finish() and stream.text == ""
