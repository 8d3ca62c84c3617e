"""Tokenizers of every kind survive the way into a file, and chat templates render."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers

from executorch_wgpu.scripts.recipes import smollm2
from executorch_wgpu.scripts.text import Text, TextBundle
from executorch_wgpu.scripts.text import gguf as gguf_text
from executorch_wgpu.scripts.text.bundle import SETTINGS_KEY, TOKENIZER_KEY
from executorch_wgpu.scripts.text.chat import render
from executorch_wgpu.scripts.text.files import from_file, from_folder
from executorch_wgpu.serialization.errors import InvalidProgramError

SAMPLES = ["Hello world", " two  spaces", "naïve café\n\n日本語 🙂", "123 4567", ""]


def through_file(bundle: TextBundle | None) -> Text:
    """The tokenizer after it has been stored."""
    assert bundle is not None
    data = {key: memoryview(value) for key, value in bundle.named_data().items()}
    found = TextBundle.from_named_data(data.keys(), data.__getitem__)
    assert found == bundle
    return Text(found)


# -- kinds of files --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def byte_bpe() -> tokenizers.Tokenizer:
    """A byte-level BPE of our own, with Llama 3's special tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|begin_of_text|>", "<|eot_id|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["hello world, the capital of France is Paris"] * 9, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    return tokenizer


def test_tokenizer_json(byte_bpe: tokenizers.Tokenizer, tmp_path: Path) -> None:
    byte_bpe.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "bos_token": {"content": "<|begin_of_text|>"},
        "eos_token": "<|eot_id|>",
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}"
        "{% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = through_file(from_folder(tmp_path))
    assert (text.bos_id, text.eos_ids) == (0, {1})
    for sample in SAMPLES:
        ids = text.encode(sample)
        assert ids == byte_bpe.encode(sample).ids and ids[0] == 0
        assert text.decode(ids) == sample
    chat = text.chat([{"role": "user", "content": "hello"}])
    assert chat[0] == 0 and chat[-1] == 1 and chat.count(0) == 1

    # What the model's configuration says goes first.
    config = {"bos_token_id": 5, "eos_token_id": [7, 1]}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text("beside")
    text = through_file(from_folder(tmp_path))
    assert (text.bos_id, text.bundle.eos_ids) == (5, (7, 1))
    assert text.apply_chat_template([]) == "beside"


@pytest.fixture(scope="session")
def pieces() -> bytes:
    """A sentencepiece model of our own, of the kind that Llama 2 has."""
    out = io.BytesIO()
    words = ["hello", "world", "the", "capital", "of", "france", "is", "paris", "and", "italy"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words[i % 9 :]) for i in range(200)]),
        model_writer=out,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return out.getvalue()


def test_sentencepiece(pieces: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(pieces)
    text = through_file(from_folder(tmp_path))
    original = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    assert (text.bos_id, text.eos_ids) == (1, {2})
    for sample in SAMPLES:
        assert text.encode(sample) == [1, *original.encode(sample)]
        assert text.decode(text.encode(sample)) == sample
    # Special tokens in a chat are single ids, and there is one bos.
    text = Text(TextBundle("sentencepiece", pieces, 1, (2,), True, "<s>{{ messages[0] }}</s>"))
    assert text.chat(["hello"]) == [1, *original.encode("hello"), 2]  # type: ignore[list-item]
    assert text.decode([1, *original.encode("hello"), 2]) == "hello"


def test_tiktoken(tmp_path: Path) -> None:
    tokens = [bytes([i]) for i in range(256)] + [b"he", b"ll", b"hell", b"hello", b" w"]
    lines = [base64.b64encode(token) + b" %d" % i for i, token in enumerate(tokens)]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\n".join(lines) + b"\n")
    text = through_file(from_file(path))
    assert text.bundle.kind == "tiktoken" and text.bos_id == 261
    assert text.eos_ids == {262, 269, 270}
    assert text.encode("hello w") == [261, 259, 260]
    for sample in SAMPLES:
        assert text.decode(text.encode(sample)) == sample
    chat = text.chat([{"role": "user", "content": "hello"}])
    assert chat.count(261) == 1 and chat.count(270) == 1
    assert text.apply_chat_template([{"role": "user", "content": " hello "}]) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_no_tokenizer(tmp_path: Path) -> None:
    assert from_folder(tmp_path) is None
    assert TextBundle.from_named_data([], lambda key: memoryview(b"")) is None


# -- inside GGUF files -----------------------------------------------------------------------


def ggml(tokenizer: tokenizers.Tokenizer, **fields: Any) -> Any:
    """Reads the metadata that a GGUF file of this tokenizer has."""
    model = json.loads(tokenizer.to_str())
    vocabulary = sorted(model["model"]["vocab"], key=model["model"]["vocab"].__getitem__)
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": vocabulary,
        "token_type": [3 if token.startswith("<|") else 1 for token in vocabulary],
        "merges": [" ".join(merge) for merge in model["model"]["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 1,
        **fields,
    }
    values = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    return values.get


@pytest.mark.parametrize("add_bos", [False, True])
def test_gguf_byte_level(byte_bpe: tokenizers.Tokenizer, add_bos: bool) -> None:
    text = through_file(gguf_text.bundle(ggml(byte_bpe, add_bos_token=add_bos)))
    assert (text.bos_id, text.eos_ids) == (0, {1})
    for sample in SAMPLES:
        ids = byte_bpe.encode(sample).ids
        assert text.encode(sample) == (ids if add_bos else ids[1:])
        assert text.decode(ids) == sample
    assert text.encode("hello<|eot_id|>")[-1] == 1


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("llama-bpe", ["I", "'LL", "Ġ", "123", "456", "7", "ĊĊ", "x"]),
        ("qwen2", ["I", "'LL", "Ġ", *"1234567", "ĊĊ", "x"]),
        ("smollm", ["I", "'", "LL", "Ġ", *"1234567", "Ċ", "Ċ", "x"]),
    ],
)
def test_gguf_splits(byte_bpe: tokenizers.Tokenizer, pre: str, words: list[str]) -> None:
    text = through_file(gguf_text.bundle(ggml(byte_bpe, pre=pre)))
    splitter = tokenizers.Tokenizer.from_str(text.bundle.data.decode()).pre_tokenizer
    assert [word for word, _ in splitter.pre_tokenize_str("I'LL 1234567\n\nx")] == words
    for sample in SAMPLES:
        assert text.decode(text.encode(sample)) == sample


def test_gguf_sentencepiece(pieces: bytes) -> None:
    original = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto.FromString(pieces)
    fields = {
        "model": "llama",
        "tokens": [piece.piece for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "token_type": [int(piece.type) for piece in model.pieces],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    get = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}.get
    text = through_file(gguf_text.bundle(get))
    for sample in [*SAMPLES, "the capital of italy"]:
        assert text.encode(sample) == [1, *original.encode(sample)]
        assert text.decode(text.encode(sample)) == sample


def test_gguf_unknown(byte_bpe: tokenizers.Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"pre 'tekken' is not supported; known: smollm"):
        gguf_text.bundle(ggml(byte_bpe, pre="tekken"))
    with pytest.raises(ValueError, match="kind 't5'"):
        gguf_text.bundle(ggml(byte_bpe, model="t5"))


def test_smollm2() -> None:
    """Ids as llama.cpp has them."""
    gguf = pytest.importorskip("gguf")
    try:
        reader = gguf.GGUFReader(str(smollm2.find_gguf()))
    except FileNotFoundError as error:
        pytest.skip(str(error))

    def get(key: str) -> Any:
        field = reader.get_field(key)
        return None if field is None else field.contents()

    text = through_file(gguf_text.bundle(get))
    assert text.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert text.encode("In 2024,") == [788, 216, 34, 32, 34, 36, 28]
    assert text.eos_ids == {0, 2} and text.bos_id == 1
    chat = text.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = text.chat([{"role": "user", "content": "Hi"}])
    assert ids.count(1) == 3 and ids.count(2) == 2


# -- templates -------------------------------------------------------------------------------


def test_templates() -> None:
    template = (
        "{%- for m in messages %}\n"
        "    {%- if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
        "    {%- if loop.index > 2 %}{% break %}{% endif %}\n"
        "{{ m | tojson }}\n"
        "{%- endfor %}"
        "{% if add_generation_prompt %}{{ strftime_now('%Y') | length }}{% endif %}"
    )
    messages = [{"role": "user", "content": "é<"}] * 3
    shown = '{"role": "user", "content": "é<"}'
    assert render(template, messages, {}) == f"\n{shown}\n{shown}4".replace("\n", "")
    assert render(template, messages, {}, add_generation_prompt=False).endswith("}")
    with pytest.raises(ValueError, match="no tools"):
        render(template, [{"role": "tool", "content": ""}], {})
    with pytest.raises(ValueError, match="chat template failed"):
        render("{% for %}", [], {})
    with pytest.raises(ValueError, match="no chat template"):
        render(None, [], {})


def test_templates_are_in_a_sandbox() -> None:
    with pytest.raises(ValueError, match="failed"):
        render("{{ messages.__class__.__mro__[1].__subclasses__() }}", [], {})
    with pytest.raises(ValueError, match="failed"):
        render("{{ messages.append(1) }}", [], {})


# -- files that are not to be trusted --------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (b"{", "not the settings"),
        (b"[]", "not the settings"),
        (b"{}", "not the settings"),
        (b'{"version": 2}', "version 2"),
        (b'{"version": 1}', "not the settings"),
        (b'{"version": 1, "kind": "rot13"}', "rot13"),
        (b'{"version": 1, "kind": "tiktoken", "eos_ids": 3}', "not the settings"),
    ],
)
def test_malformed_settings(settings: bytes, message: str) -> None:
    data = {SETTINGS_KEY: memoryview(settings), TOKENIZER_KEY: memoryview(b"")}
    with pytest.raises(InvalidProgramError, match=message):
        TextBundle.from_named_data(data.keys(), data.__getitem__)


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tiktoken"):
        Text(TextBundle("tiktoken", b""))


def test_no_torch() -> None:
    script = (
        "import sys, executorch_wgpu.scripts.text, executorch_wgpu.scripts.run_text, "
        "executorch_wgpu.scripts.eval_text, executorch_wgpu.scripts.cli\n"
        "assert not {'torch', 'executorch', 'gguf', 'wgpu', 'tokenizers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
