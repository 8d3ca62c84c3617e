"""What a ``.pte`` holds of a tokenizer: two entries of its named data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from typing import Any

from executorch_wgpu.serialization.errors import InvalidProgramError

#: Keys of the named data: everything small as JSON, and the tokenizer's own file.
SETTINGS_KEY = "text/settings.json"
TOKENIZER_KEY = "text/tokenizer"

#: Version of the settings.
_VERSION = 1

#: Kinds of tokenizer files: tokenizer.json, sentencepiece's .model, tiktoken's list of ranks.
KINDS = ("tokenizers", "sentencepiece", "tiktoken")


@dataclasses.dataclass(frozen=True)
class TextBundle:
    """A tokenizer's file and what goes with it.

    Attributes:
        kind: one of :data:`KINDS`.
        data: the tokenizer's file.
        bos_id: what a text begins with; None where there is none.
        eos_ids: what may end one; the first is the main one.
        add_bos: whether the bos goes in front of a prompt that is no chat. A tokenizer.json says
            that itself, and this is not looked at.
        chat_template: Jinja, None where there is none.
        tokens: texts of special tokens by their role, such as ``bos_token``, for the template.
        pattern: tiktoken: the regular expression that splits words.
        specials: tiktoken: ids of special tokens by their text.
    """

    kind: str
    data: bytes
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool = False
    chat_template: str | None = None
    tokens: dict[str, str] = dataclasses.field(default_factory=dict)
    pattern: str = ""
    specials: dict[str, int] = dataclasses.field(default_factory=dict)

    def named_data(self) -> dict[str, bytes]:
        """Entries for the ``.pte``."""
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "data"
        }
        text = json.dumps({"version": _VERSION, **settings}, ensure_ascii=False)
        return {SETTINGS_KEY: text.encode(), TOKENIZER_KEY: self.data}

    @classmethod
    def from_named_data(
        cls, keys: Collection[str], read: Callable[[str], memoryview]
    ) -> TextBundle | None:
        """The bundle among a file's named data, None where there is none.

        Raises InvalidProgramError for one that is malformed or of a newer version.
        """
        if SETTINGS_KEY not in keys:
            return None
        try:
            settings: dict[str, Any] = json.loads(bytes(read(SETTINGS_KEY)))
            version = settings.pop("version")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidProgramError(f"{SETTINGS_KEY}: not the settings of a tokenizer") from error
        if not isinstance(version, int) or version > _VERSION:
            raise InvalidProgramError(
                f"{SETTINGS_KEY}: version {version}, this package reads up to {_VERSION}"
            )
        names = {field.name for field in dataclasses.fields(cls)}
        try:
            bundle = cls(
                data=bytes(read(TOKENIZER_KEY)),
                **{name: value for name, value in settings.items() if name in names},
            )
            bundle = dataclasses.replace(bundle, eos_ids=tuple(map(int, bundle.eos_ids)))
        except (TypeError, ValueError) as error:
            raise InvalidProgramError(f"{SETTINGS_KEY}: not the settings of a tokenizer") from error
        if bundle.kind not in KINDS:
            raise InvalidProgramError(f"{SETTINGS_KEY}: unknown kind of tokenizer {bundle.kind!r}")
        return bundle
