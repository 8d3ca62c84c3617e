"""The tokenizer inside a GGUF file, as one that the usual libraries read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executorch_wgpu.scripts.text.bundle import TextBundle

#: Values of ``tokenizer.ggml.token_type``.
_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6

#: Tokens that end a turn or a text in chats, beside the one that the file calls eos.
_ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>")

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: ``tokenizer.ggml.pre`` -> the regular expression that splits words; "" for GPT-2's.
_SPLITS = {
    "default": "",
    "gpt-2": "",
    "llama-bpe": _WORDS + r"|\p{N}{1,3}" + _REST,
    "qwen2": _WORDS + r"|\p{N}" + _REST,
}


def bundle(get: Callable[[str], Any]) -> TextBundle | None:
    """The tokenizer of a file, whose metadata ``get`` reads by key. None where there is none.

    Raises ValueError for a kind that is not supported.
    """
    kind = get("tokenizer.ggml.model")
    if kind is None:
        return None
    tokens: list[str] = get("tokenizer.ggml.tokens")
    types: list[int] = get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    bos, eos = get("tokenizer.ggml.bos_token_id"), get("tokenizer.ggml.eos_token_id")
    add_bos = get("tokenizer.ggml.add_bos_token")
    if kind == "gpt2":
        add_bos = bool(add_bos)
        data = _byte_level_bpe(get, tokens, types, bos if add_bos else None)
        name = "tokenizers"
    elif kind == "llama":
        add_bos = add_bos is None or bool(add_bos)
        data, name = _sentencepiece(get, tokens, types), "sentencepiece"
    else:
        raise ValueError(f"a tokenizer of kind {kind!r} in a GGUF file is not supported")
    controls = {tokens[i]: i for i, t in enumerate(types) if t == _CONTROL}
    ends = [eos, get("tokenizer.ggml.eot_token_id"), *(controls.get(name) for name in _ENDS)]
    named = {
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": get("tokenizer.ggml.padding_token_id"),
    }
    return TextBundle(
        kind=name,
        data=data,
        bos_id=None if bos is None else int(bos),
        eos_ids=tuple(dict.fromkeys(int(i) for i in ends if i is not None)),
        add_bos=add_bos,
        chat_template=get("tokenizer.chat_template"),
        tokens={role: tokens[int(i)] for role, i in named.items() if i is not None},
    )


def _byte_level_bpe(
    get: Callable[[str], Any], tokens: list[str], types: list[int], bos: int | None
) -> bytes:
    """A tokenizer.json of the pairs that the file merges, over the bytes of words."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    split = get("tokenizer.ggml.pre") or "default"
    merges = [tuple(merge.split(" ", 1)) for merge in get("tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split == "llama-bpe")
    )
    if split == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), _bytes(pre_tokenizers, True)]
        )
    elif split in _SPLITS:
        steps = [_bytes(pre_tokenizers, not _SPLITS[split])]
        if _SPLITS[split]:
            pattern = tokenizers.Regex(_SPLITS[split])
            steps.insert(0, pre_tokenizers.Split(pattern, behavior="isolated"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    else:
        known = ", ".join(["smollm", *_SPLITS])
        raise ValueError(f"tokenizer.ggml.pre {split!r} is not supported; known: {known}")
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], int(bos))]
        )
    for kind, special in ((_CONTROL, True), (_USER, False)):
        found = [
            tokenizers.AddedToken(token, special=special, normalized=False)
            for token, t in zip(tokens, types, strict=True)
            if t == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(found)
    return tokenizer.to_str().encode()


def _bytes(pre_tokenizers: Any, use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _sentencepiece(get: Callable[[str], Any], tokens: list[str], types: list[int]) -> bytes:
    """A sentencepiece model of the file's pieces and scores."""
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto()
    scores = get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    for token, score, kind in zip(tokens, scores, types, strict=True):
        model.pieces.add(piece=token, score=float(score), type=int(kind))
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    model.trainer_spec.vocab_size = len(tokens)
    model.trainer_spec.byte_fallback = _BYTE in types
    for name, field in (("unknown", "unk_id"), ("bos", "bos_id"), ("eos", "eos_id")):
        value = get(f"tokenizer.ggml.{name}_token_id")
        setattr(model.trainer_spec, field, -1 if value is None else int(value))
    model.trainer_spec.pad_id = -1
    prefix = get("tokenizer.ggml.add_space_prefix")
    model.normalizer_spec.add_dummy_prefix = prefix is None or bool(prefix)
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.name = "identity"
    content: bytes = model.SerializeToString()
    return content
