"""Text to token ids and back, by whichever library a tokenizer's file is for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any, Protocol

from executorch_wgpu.scripts.text.bundle import TextBundle
from executorch_wgpu.scripts.text.chat import render


class _Codec(Protocol):
    def encode(self, text: str, specials: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Text:
    """A tokenizer with its chat template.

    Attributes:
        bundle: what it was made of.
        bos_id: None where the model has none.
        eos_ids: what may end a text.

    Raises ModuleNotFoundError where the library of the tokenizer is not installed.
    """

    def __init__(self, bundle: TextBundle) -> None:
        self.bundle = bundle
        self.bos_id = bundle.bos_id
        self.eos_ids = frozenset(bundle.eos_ids)
        makers = {"tokenizers": _Json, "sentencepiece": _SentencePiece, "tiktoken": _Tiktoken}
        self._codec: _Codec = makers[bundle.kind](bundle)

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, with a bos in front where the model expects one. Special tokens
        that the text spells out are single ids."""
        return self._codec.encode(text, specials=True)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens. ``\\ufffd`` for bytes that are no character."""
        return self._codec.decode(ids)

    @property
    def has_chat(self) -> bool:
        """Whether there is a chat template."""
        return self.bundle.chat_template is not None

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, up to where the model answers.

        Raises ValueError where there is no template, or it refuses the messages.
        """
        return render(
            self.bundle.chat_template,
            messages,
            self.bundle.tokens,
            add_generation_prompt=add_generation_prompt,
        )

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The ids of a conversation, up to where the model answers. Raises ValueError as
        :meth:`apply_chat_template`."""
        # The template writes the bos itself.
        return self._codec.encode(self.apply_chat_template(messages), specials=False)


def _require(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the tokenizer of this model needs {module}: pip install {module}", name=module
        ) from error


class _Json:
    """tokenizer.json."""

    def __init__(self, bundle: TextBundle) -> None:
        self._tokenizer = _require("tokenizers").Tokenizer.from_str(bundle.data.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, specials: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=specials).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class _SentencePiece:
    """sentencepiece's .model, whose own encoder takes no special token out of a text."""

    def __init__(self, bundle: TextBundle) -> None:
        module = _require("sentencepiece")
        self._model = module.SentencePieceProcessor(model_proto=bundle.data)
        count = self._model.get_piece_size()
        self._special = {
            self._model.id_to_piece(i): i for i in range(count) if self._model.is_control(i)
        }
        names = "|".join(map(re.escape, sorted(self._special, key=len, reverse=True)))
        self._split = re.compile(f"({names})") if names else None
        self._bos = bundle.bos_id if bundle.add_bos else None

    def encode(self, text: str, specials: bool) -> list[int]:
        ids = [self._bos] if specials and self._bos is not None else []
        for part in self._split.split(text) if self._split else [text]:
            if part in self._special:
                ids.append(self._special[part])
            elif part:
                ids += self._model.encode(part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        known = [i for i in ids if not self._model.is_control(i)]
        return str(self._model.decode(known))


class _Tiktoken:
    """tiktoken's list of ranks, as Llama 3's tokenizer.model is."""

    def __init__(self, bundle: TextBundle) -> None:
        import base64

        ranks = {}
        for line in bundle.data.splitlines():
            token, _, rank = line.partition(b" ")
            if rank:
                ranks[base64.b64decode(token)] = int(rank)
        self._encoding = _require("tiktoken").Encoding(
            name="model",
            pat_str=bundle.pattern,
            mergeable_ranks=ranks,
            special_tokens=bundle.specials,
        )
        self._special = frozenset(bundle.specials.values())
        self._bos = bundle.bos_id if bundle.add_bos else None

    def encode(self, text: str, specials: bool) -> list[int]:
        ids = [self._bos] if specials and self._bos is not None else []
        return ids + list(self._encoding.encode(text, allowed_special="all"))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._encoding.decode([i for i in ids if i not in self._special]))
