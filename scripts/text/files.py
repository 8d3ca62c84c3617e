"""Tokenizers as models are published with them: files in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from executorch_wgpu.scripts.text.bundle import TextBundle


def from_folder(folder: str | Path) -> TextBundle | None:
    """The tokenizer of a folder: tokenizer.json, or tokenizer.model (sentencepiece or tiktoken).
    None where neither is there."""
    folder = Path(folder)
    for name in ("tokenizer.json", "tokenizer.model"):
        if (folder / name).is_file():
            return from_file(folder / name)
    return None


def from_file(path: str | Path) -> TextBundle:
    """A tokenizer's file, with what the folder's other files say of it: tokenizer_config.json,
    generation_config.json, config.json, chat_template.jinja.

    Raises OSError and ValueError.
    """
    path = Path(path)
    data, folder = path.read_bytes(), path.parent
    settings = _read_json(folder / "tokenizer_config.json")
    tokens = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token") and isinstance(value, (str, dict))
    }
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        template = beside.read_text()
    bos_id, eos_ids = _ids(folder)
    common = {"chat_template": template, "tokens": tokens, "bos_id": bos_id, "eos_ids": eos_ids}
    if path.suffix == ".json":
        return _tokenizer_json(data, common)
    if _is_tiktoken(data):
        return _tiktoken(data, common)
    return _sentencepiece(data, common)


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _ids(folder: Path) -> tuple[int | None, tuple[int, ...]]:
    """Ids of bos and eos as the model's configuration has them; generation's goes first."""
    bos, eos = None, None
    for name in ("generation_config.json", "config.json"):
        config = _read_json(folder / name)
        bos = config.get("bos_token_id") if bos is None else bos
        eos = config.get("eos_token_id") if eos is None else eos
    return bos, tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)


def _tokenizer_json(data: bytes, common: dict[str, Any]) -> TextBundle:
    added = {token["content"]: token["id"] for token in json.loads(data).get("added_tokens") or ()}
    tokens = common["tokens"]
    if common["bos_id"] is None:
        common["bos_id"] = added.get(tokens.get("bos_token"))
    if not common["eos_ids"] and tokens.get("eos_token") in added:
        common["eos_ids"] = (added[tokens["eos_token"]],)
    return TextBundle("tokenizers", data, **common)


def _is_tiktoken(data: bytes) -> bool:
    """Whether the file is lines of ``base64 rank``."""
    first = data[:200].split(b"\n", 1)[0].split()
    return len(first) == 2 and first[1].isdigit()


def _tiktoken(data: bytes, common: dict[str, Any]) -> TextBundle:
    """Llama 3's: the words' pattern and the special tokens are not in the file."""
    from pytorch_tokenizers.constants import CL100K_PAT_STR, LLAMA_SPECIAL_TOKENS

    count = sum(1 for line in data.splitlines() if line.strip())
    specials = {name: count + i for i, name in enumerate(LLAMA_SPECIAL_TOKENS)}
    ends = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
    common["bos_id"] = specials["<|begin_of_text|>"]
    common["eos_ids"] = common["eos_ids"] or tuple(specials[name] for name in ends)
    common["tokens"] = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    if common["chat_template"] is None:
        common["chat_template"] = _LLAMA3_CHAT
    return TextBundle(
        "tiktoken", data, add_bos=True, pattern=CL100K_PAT_STR, specials=specials, **common
    )


def _sentencepiece(data: bytes, common: dict[str, Any]) -> TextBundle:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_proto=data)
    bos, eos = model.bos_id(), model.eos_id()
    if common["bos_id"] is None and bos >= 0:
        common["bos_id"] = bos
    if not common["eos_ids"] and eos >= 0:
        common["eos_ids"] = (eos,)
    named = {"bos_token": bos, "eos_token": eos}
    common["tokens"] = {
        **{name: model.id_to_piece(i) for name, i in named.items() if i >= 0},
        **common["tokens"],
    }
    return TextBundle("sentencepiece", data, add_bos=bos >= 0, **common)


#: Meta's files have no template. This is the format that Llama 3's model card describes.
_LLAMA3_CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{ message['content'] | trim }}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
