"""TextGenerator on a model whose every logit depends on the whole cache."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from programs import chain
from pte_files import delegated, write_pte
from tiny_lm import (
    CACHE,
    CONTEXT,
    EOS,
    MOST,
    VOCAB,
    Letters,
    constants,
    continuation,
    logits,
    method,
    tiny_pte,
)  # fmt: skip

from executorch_wgpu.runtime import FED_BACK, Program, Runtime, TextGenerator
from executorch_wgpu.runtime.errors import InvalidInputError, InvalidProgramError
from executorch_wgpu.runtime.generate import Finish

PROMPT = [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50]
#: temperature, top_p, top_k, seed: greedy.
MORE: list[Any] = [
    np.zeros(1, np.float32), np.ones(1, np.float32), np.zeros(1, np.int64), np.zeros(1, np.int64)
]  # fmt: skip
KINDS = ["pipelined", "three in flight", "one at a time", "host"]
OPTIONS: dict[str, dict[str, Any]] = {
    "pipelined": {},
    "three in flight": {"depth": 3},
    "one at a time": {"pipelined": False},
    "host": {"sample_on_host": True},
}


def load(device: Any, data: bytes | None = None) -> Program:
    return Runtime.get().load_program(data or tiny_pte(), device=device)


def generator(device: Any, kind: str = "pipelined", **options: Any) -> TextGenerator:
    return TextGenerator(load(device), **{**OPTIONS[kind], **options})


def until_eos(tokens: list[int]) -> list[int]:
    for i, token in enumerate(tokens):
        if token in EOS:
            return tokens[:i]
    return tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, MOST, MOST + 1, 2 * MOST + 3])
def test_greedy(device: Any, kind: str, length: int) -> None:
    """Through chunked prefill, and every step of decoding."""
    text = generator(device, kind)
    assert text.pipelined == (kind in ("pipelined", "three in flight"))
    prompt = [(i * 7) % 90 + 4 for i in range(length)]
    result = text.generate(prompt, 20, ignore_eos=True)
    assert result.token_ids == continuation(prompt, 20)
    assert result.finish is Finish.LENGTH
    figures = result.statistics
    assert (figures.prompt_tokens, figures.reused_tokens, figures.generated_tokens) == (
        length, 0, 20,
    )  # fmt: skip
    assert text.cached_ids == [*prompt, *result.token_ids[:-1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 1},
        {"temperature": 0.7, "top_k": 5, "seed": 2},
        {"temperature": 1.3, "top_p": 0.6, "seed": 3},
        {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "seed": -5},
    ],
)
def test_sampling(device: Any, kind: str, sampling: dict[str, Any]) -> None:
    """The same tokens on the GPU and on the host, however they are driven and cached."""
    text = generator(device, kind)
    expected = continuation(PROMPT, 24, **{**sampling, "seed": sampling["seed"] & 0x7FFFFFFF})
    assert text.generate(PROMPT, 24, ignore_eos=True, **sampling).token_ids == expected
    longer = [*PROMPT, *expected[:6]]
    again = text.generate(longer, 18, ignore_eos=True, **sampling)
    assert again.token_ids == expected[6:]
    assert again.statistics.reused_tokens == len(longer) - 1


def test_one_token_prefill(device: Any) -> None:
    text = generator(device, prefill_chunk=1)
    assert text.generate(PROMPT, 5, ignore_eos=True).token_ids == continuation(PROMPT, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_stop_tokens(device: Any, kind: str) -> None:
    text = generator(device, kind)
    tokens = continuation(PROMPT, 30)
    at = next(i for i in range(8, 30) if tokens[i] not in tokens[:i])
    result = text.generate(PROMPT, 30, stop=tokens[at], ignore_eos=True)
    assert result.token_ids == tokens[:at]
    assert result.finish is Finish.STOP
    assert result.statistics.generated_tokens == at + 1
    # Surplus steps have written behind the end; nobody sees them.
    assert text.cached_ids == [*PROMPT, *tokens[:at]]
    other = [*PROMPT, *tokens[:at], 60, 61]
    again = text.generate(other, 6, ignore_eos=True)
    assert again.token_ids == continuation(other, 6)
    assert again.statistics.reused_tokens == len(other) - 2


def test_eos_of_the_program_and_of_the_tokenizer(device: Any) -> None:
    prompts = [[a, b] for a in range(40, 60) for b in range(40, 44)]
    prompt = next(p for p in prompts if set(continuation(p, 40)) & set(EOS))
    expected = until_eos(continuation(prompt, 40))
    text = generator(device)
    result = text.generate(prompt, 40)
    assert (result.token_ids, result.finish) == (expected, Finish.STOP)

    class WithEos(Letters):
        eos_id = continuation(PROMPT, 4)[3]

    result = generator(device, tokenizer=WithEos()).generate(PROMPT, 9)
    assert result.token_ids == continuation(PROMPT, 4)[:3]


@pytest.mark.parametrize("kind", KINDS)
def test_context(device: Any, kind: str) -> None:
    text = generator(device, kind)
    prompt = list(range(4, 4 + CONTEXT - 3))
    result = text.generate(prompt, 100, ignore_eos=True)
    assert result.token_ids == continuation(prompt, 4)  # three rows, and one more token
    assert result.finish is Finish.CONTEXT
    full = list(range(4, 4 + CONTEXT))
    assert text.generate(full, ignore_eos=True).token_ids == continuation(full, 1)
    over = text.generate([*full, 5], 3)
    assert (over.token_ids, over.finish) == ([], Finish.CONTEXT)
    assert text.generate(PROMPT, 3, ignore_eos=True).token_ids == continuation(PROMPT, 3)


def test_exactly_as_many_as_fit(device: Any) -> None:
    prompt = list(range(4, 4 + CONTEXT - 3))
    result = generator(device).generate(prompt, 4, ignore_eos=True)
    assert result.finish is Finish.LENGTH


def test_prefix_reuse(device: Any) -> None:
    text = generator(device)
    first = text.generate(PROMPT, 5, ignore_eos=True).token_ids
    chat = [*PROMPT, *first, 70, 71]
    result = text.generate(chat, 5, ignore_eos=True)
    assert result.token_ids == continuation(chat, 5)
    # All but the last token chosen, whose row was never computed.
    assert result.statistics.reused_tokens == len(PROMPT) + 4
    branch = [*PROMPT[:6], 80]
    result = text.generate(branch, 5, ignore_eos=True)
    assert result.token_ids == continuation(branch, 5)
    assert result.statistics.reused_tokens == 6
    # The whole prompt is cached: its last token is computed again.
    result = text.generate(branch, 2, ignore_eos=True)
    assert result.statistics.reused_tokens == 6
    assert result.token_ids == continuation(branch, 2)
    text.reset()
    assert text.generate(branch, 2, ignore_eos=True).statistics.reused_tokens == 0
    plain = generator(device, reuse_prefix=False)
    for _ in range(2):
        assert plain.generate(branch, 2, ignore_eos=True).statistics.reused_tokens == 0


def test_prefill_only(device: Any) -> None:
    text = generator(device)
    result = text.generate(PROMPT, 0)
    assert (result.token_ids, result.finish) == ([], Finish.LENGTH)
    assert result.statistics.prefill_tokens_per_s > 0
    assert text.generate([*PROMPT, 50], 1).statistics.reused_tokens == len(PROMPT)


def test_snapshot_and_restore(device: Any) -> None:
    text = generator(device)
    text.generate(PROMPT, 4, ignore_eos=True)
    saved = text.snapshot()
    assert saved.token_ids == (*PROMPT, *continuation(PROMPT, 3))
    assert saved.states.nbytes == 4 * len(saved.token_ids)  # the rows in use, not the cache
    other = [90, 91, 92]
    text.generate(other, 30, ignore_eos=True)
    text.restore(saved)
    prompt = [*saved.token_ids, 55]
    result = text.generate(prompt, 6, ignore_eos=True)
    assert result.token_ids == continuation(prompt, 6)
    assert result.statistics.reused_tokens == len(saved.token_ids)


def test_fork(device: Any) -> None:
    text = generator(device)
    text.generate(PROMPT, 4, ignore_eos=True)
    before = text.gpu_bytes
    fork = text.fork()
    assert fork.cached_ids == text.cached_ids
    prompts = {text: [*text.cached_ids, 55], fork: [*text.cached_ids, 56]}
    for _ in range(2):
        for each, prompt in prompts.items():
            result = each.generate(prompt, 6, ignore_eos=True)
            assert result.token_ids == continuation(prompt, 6)
            assert result.statistics.reused_tokens == len(prompt) - 1
    assert fork.gpu_bytes == before == text.gpu_bytes  # no constants here: all its own


def test_from_within_a_callback(device: Any) -> None:
    """Snapshot and fork wait for what is in flight; what would disturb the generation is
    refused."""
    text = generator(device, tokenizer=Letters())
    forks: list[TextGenerator] = []

    def look(_: str) -> None:
        if forks:
            return
        forks.append(text.fork())
        assert text.snapshot().token_ids == tuple(text.cached_ids)
        for refused in (lambda: text.generate("A"), text.reset):
            with pytest.raises(InvalidInputError, match="in the middle of a text; wait"):
                refused()

    result = text.generate(PROMPT, 20, stream=look, ignore_eos=True)
    assert result.token_ids == continuation(PROMPT, 20)
    (fork,) = forks
    prompt = [*fork.cached_ids, 55]
    assert fork.generate(prompt, 6, ignore_eos=True).token_ids == continuation(prompt, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_text(device: Any, kind: str) -> None:
    """Whole characters, in order, and together the text."""
    text = generator(device, kind, tokenizer=Letters())
    pieces: list[str] = []
    result = text.generate("HELLO", 40, stream=pieces.append, ignore_eos=True)
    tokens = continuation(Letters().encode("HELLO"), 40)
    assert result.text == "".join(pieces)
    assert result.token_ids == tokens
    assert result.text == Letters().decode([ord("O"), *tokens])[1:]
    assert len(pieces) > 10


def test_stop_strings(device: Any) -> None:
    tokens = continuation(Letters().encode("HELLO"), 40)
    whole = Letters().decode(tokens)
    at = next(
        i for i in range(5, len(whole) - 3)
        if whole[i : i + 3].isascii() and whole.find(whole[i : i + 3]) == i
    )  # fmt: skip
    pieces: list[str] = []
    text = generator(device, tokenizer=Letters())
    result = text.generate(
        "HELLO", 40, stop=["never", whole[at : at + 3]], stream=pieces.append, ignore_eos=True
    )
    assert result.text == whole[:at] == "".join(pieces)
    assert result.finish is Finish.STOP


@pytest.mark.parametrize("kind", KINDS)
def test_interrupts(device: Any, kind: str) -> None:
    """Wherever Ctrl-C strikes, the generator can be used on."""
    text = generator(device, kind)
    struck = 0
    for i in range(12):
        prompt = [*PROMPT, 4 + i]
        timer = threading.Timer(0.001 + 0.003 * i, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            for _ in range(1000):
                text.generate(prompt, 40, ignore_eos=True)
                text.generate(PROMPT, 40, ignore_eos=True)
        except KeyboardInterrupt:
            struck += 1
        timer.join()
        cached = text.cached_ids
        assert all(
            cached[: len(p)] == p[: len(cached)]
            for p in [prompt if 4 + i in cached[11:12] else cached]
        )
        assert text.generate(prompt, 12, ignore_eos=True).token_ids == continuation(prompt, 12)
    assert struck == 12


def test_a_callback_that_fails(device: Any) -> None:
    text = generator(device, tokenizer=Letters())

    def fail(_: str) -> None:
        raise RuntimeError("no more paper")

    with pytest.raises(RuntimeError, match="no more paper"):
        text.generate(PROMPT, 20, stream=fail, ignore_eos=True)
    assert text.last is not None and text.last.finish is Finish.INTERRUPTED
    assert text.last.token_ids
    assert text.generate(PROMPT, 20, ignore_eos=True).token_ids == continuation(PROMPT, 20)


def test_threads_take_turns(device: Any) -> None:
    text = generator(device)
    prompts = [[40 + i, 50] for i in range(6)]
    results: dict[int, list[int]] = {}

    def run(i: int) -> None:
        results[i] = text.generate(prompts[i], 10, ignore_eos=True).token_ids

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: continuation(p, 10) for i, p in enumerate(prompts)}


def test_without_metadata(device: Any) -> None:
    """Bounds come from the method's arguments."""
    text = TextGenerator(load(device, tiny_pte(metadata=False)))
    assert (text.model.max_seq_len, text.model.max_context) == (MOST, CONTEXT)
    assert text.model.vocab_size == 0
    assert text.generate(PROMPT, 5).token_ids == continuation(PROMPT, 5)
    assert text.generate(PROMPT, 9, temperature=1.0).token_ids == continuation(PROMPT, 9, 1.0)


def test_forward_alone_and_generate_alone(device: Any) -> None:
    for kind, pipelined in (("forward", False), ("generate", True)):
        text = TextGenerator(load(device, tiny_pte(kind)))
        assert text.pipelined == pipelined
        assert text.generate(PROMPT, 9, ignore_eos=True).token_ids == continuation(PROMPT, 9)


def test_without_a_feedback_pair(device: Any) -> None:
    text = TextGenerator(load(device, tiny_pte(feedback=False)))
    assert not text.pipelined
    assert text.generate(PROMPT, 9, ignore_eos=True).token_ids == continuation(PROMPT, 9)


def test_methods_share_the_cache(device: Any) -> None:
    """What generate has computed, forward continues; a fork of both shares a copy."""
    program = load(device)
    forward, generate = program.load_method("forward"), program.load_method("generate")

    def step(method: Any, tokens: list[int], position: int) -> np.ndarray:
        inputs: list[Any] = [np.array([tokens]), np.array([position])]
        return np.asarray(method.execute(inputs + MORE * (method.name == "generate"))[0])

    assert step(generate, [50, 51], 0).item() == logits([50, 51]).argmax()
    np.testing.assert_array_equal(step(forward, [52], 2)[0, 0], logits([50, 51, 52]))
    forked = generate.fork()
    beside = forward.fork(beside=forked)
    step(forward, [60], 2)
    assert step(forked, [53], 3).item() == logits([50, 51, 52, 53]).argmax()
    np.testing.assert_array_equal(step(beside, [54], 4)[0, 0], logits([50, 51, 52, 53, 54]))
    np.testing.assert_array_equal(step(forward, [61], 3)[0, 0], logits([50, 51, 60, 61]))
    forward.state.reset()
    assert not generate.state.read(CACHE).any() and forked.state.read(CACHE).any()


def test_states_of_a_group_must_match(device: Any) -> None:
    data = write_pte(
        [
            delegated("forward", method("forward")),
            delegated("generate", method("generate", context=32)),
        ]
    )
    program = load(device, data)
    forward = program.load_method("forward")
    with pytest.raises(InvalidProgramError, match=(
        r"generate: state 'layers.0.attention.k_cache' of the group 'kv' is 128 bytes, "
        r"int32\[1, 32, 1, 1\], starting as zeros; in 'forward', which shares the group, it is 256"
    )):  # fmt: skip
        program.load_method("generate")
    del forward  # with the last method of the group, its states go
    assert program.load_method("generate").state.names == [CACHE]


def test_refusals(device: Any) -> None:
    text = generator(device, tokenizer=Letters())
    for match, call in {
        "has no tokens": lambda: text.generate(""),
        "token 96 of the prompt is not in the vocabulary of 96": lambda: text.generate([5, 96]),
        "token -1 of the prompt": lambda: text.generate([-1]),
        "max_new_tokens -1": lambda: text.generate("A", -1),
        "temperature -1": lambda: text.generate("A", 1, temperature=-1.0),
        "top_p 0": lambda: text.generate("A", 1, top_p=0.0),
        "top_k -1": lambda: text.generate("A", 1, top_k=-1),
        "needs a tokenizer": lambda: generator(device).generate("A"),
        "depth 4: 1 to 3 steps can": lambda: generator(device, depth=4),
        "takes 1 to 8 tokens": lambda: generator(device, prefill_chunk=9),
        r"the tokenizer list has no encode\(\)": lambda: generator(device, tokenizer=[]),
    }.items():
        with pytest.raises(InvalidInputError, match=match):
            call()
    assert text.generate("A", 2).token_ids == continuation([65], 2)


def test_programs_that_are_no_language_model(device: Any) -> None:
    for methods, match in (
        ([delegated("other", method("forward"))], "has the methods other, neither generate nor"),
        ([delegated("forward", chain(2, 8))], r"forward\(x: float32\[8\]\).*expected \(tokens"),
        ([delegated("generate", method("forward"))], "tokens, input_pos, temperature"),
        ([delegated("forward", method("forward")), constants("use_kv_cache", 0)], "KV cache"),
    ):
        with pytest.raises(InvalidProgramError, match=match):
            TextGenerator(load(device, write_pte(methods)))


def test_figures(device: Any) -> None:
    text = generator(device)
    figures = text.generate(PROMPT, 12, ignore_eos=True).statistics
    assert 0 < figures.load_ms < 60_000
    assert figures.time_to_first_token_ms > 0
    assert figures.prefill_tokens_per_s > 0 and figures.decode_tokens_per_s > 0
    assert figures.peak_host_bytes > 1 << 20
    assert figures.gpu_bytes > VOCAB * 4 + CONTEXT * 4
    assert dict(figures.lines())["prompt"] == f"{len(PROMPT)} tokens"


def test_fed_back_is_refused_where_there_is_nothing(device: Any) -> None:
    program = load(device)
    forward, generate = program.load_method("forward"), program.load_method("generate")
    with pytest.raises(InvalidInputError, match="input 0 'tokens': the program feeds no output"):
        forward.execute([FED_BACK, np.array([0])])
    with pytest.raises(InvalidInputError, match="there is nothing to feed back"):
        generate.execute([FED_BACK, np.array([0]), *MORE])
    with pytest.raises(InvalidInputError, match="input 1 'input_pos': the program feeds no"):
        generate.execute([np.array([[5]]), FED_BACK, *MORE])
    generate.execute([np.array([[5, 6]]), np.array([0]), *MORE], [])
    # Refused by a check on the host: what is fed back is still there.
    with pytest.raises(InvalidInputError, match="input_pos"):
        generate.execute([FED_BACK, np.array([CONTEXT]), *MORE])
    (token,) = generate.execute([FED_BACK, np.array([2]), *MORE])
    assert token.item() == continuation([5, 6], 2)[1]


def test_poisoned(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With inputs, scratch and outputs filled with NaN before each step, what is fed back stays."""
    monkeypatch.setenv("EXECUTORCH_WGPU_POISON", "1")
    assert generator(device).generate(PROMPT, 12, ignore_eos=True).token_ids == continuation(
        PROMPT, 12
    )


def test_profiled(device: Any) -> None:
    program = Runtime.get().load_program(tiny_pte(), device=device, profile=True)
    text = TextGenerator(program)
    assert text.generate(PROMPT, 12, ignore_eos=True).token_ids == continuation(PROMPT, 12)
    profile = text.model.method.last_profile()
    assert profile is not None and len(list(profile)) >= 3


def test_two_generators_over_one_program(device: Any) -> None:
    """Each has caches of its own, though the methods' states are one by group."""
    program = Runtime.get().load_program(tiny_pte(), device=device)
    first, second = TextGenerator(program), TextGenerator(program)
    forward = program.load_method("forward")
    one, two = [40, 41, 42], [50, 51]
    for _ in range(3):
        one += first.generate(one, 5, ignore_eos=True).token_ids
        two += second.generate(two, 4, ignore_eos=True).token_ids
        forward.execute([np.array([[7]]), np.array([0])])
    assert one == [40, 41, 42, *continuation([40, 41, 42], 15)]
    assert two == [50, 51, *continuation([50, 51], 12)]
