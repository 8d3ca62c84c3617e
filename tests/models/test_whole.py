"""A whole model is one delegate; its file holds what runners ask for; the commands use it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner, Result

from executorch_wgpu.backend.options import CompileOptions
from executorch_wgpu.runtime import Runtime
from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.runtime.generate import TextGenerator
from executorch_wgpu.scripts.bench.llama import memory
from executorch_wgpu.scripts.cli import main
from executorch_wgpu.scripts.describe import dispatches_at
from executorch_wgpu.scripts.perplexity import perplexity
from executorch_wgpu.scripts.recipes import pte, whole
from executorch_wgpu.scripts.text import TextBundle, load_text
from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.pte import PteFile

import model_files as files
import model_reference as reference
import model_runs as runs

MIXES = {
    "one token at a time": [1] * 9,
    "prefill then decode": [7, 1, 1, 1],
    "chunks to the last position": [16, 16, 1, 6, 1],
}


def letters() -> TextBundle:
    """A tokenizer of single letters, with ids 0 (bos), 1 (eos) and 2 on."""
    names = ["<bos>", "<eos>", *"abcdefghijklmnopqrstuvwxyz ?.!"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="?")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}!{% endfor %}"
    return TextBundle(
        "tokenizers",
        tokenizer.to_str().encode(),
        bos_id=0,
        eos_ids=(1, 74),
        chat_template=template,
        tokens={"bos_token": "<bos>"},
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, whole.Llama]:
    """(the file of a model with all logits, its eager twin)."""
    path = tmp_path_factory.mktemp("whole") / "tiny.pte"
    args = runs.tiny_args(generate_full_logits=True)
    model = whole.build(args, whole.random_weights(args))
    pte.write(pte.lower(model, letters()), path)
    return path, model


@pytest.mark.parametrize("mix", MIXES)
def test_every_step_equals_eager(exported: Any, mix: str) -> None:
    path, model = exported
    assert runs.compare_steps(model, runs.load(path), MIXES[mix]) < 1e-4


def test_last_logits_only(tmp_path: Path) -> None:
    model = runs.export(runs.tiny_args(), tmp_path / "last.pte")
    method = runs.load(tmp_path / "last.pte")
    assert [dim.hi for dim in method.metadata.outputs[0].shape] == [1, 1, 75]
    for mix in MIXES.values():
        assert runs.compare_steps(model, method, mix) < 1e-4
    assert load_text(tmp_path / "last.pte") is None
    result = run("run", tmp_path / "last.pte", "--prompt", "a")
    assert result.exit_code == 1 and "has no tokenizer" in result.output


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [("float16", "float32"), ("bfloat16", "float16"), ("float32", "bfloat16")],
)
def test_half_storage(dtype: str, kv_dtype: str, tmp_path: Path) -> None:
    """As eager, which computes in f32 with the rounded weights."""
    path = tmp_path / "half.pte"
    options = {"dtype": getattr(torch, dtype), "kv_dtype": getattr(torch, kv_dtype)}
    model = runs.export(runs.tiny_args(attention_qkv_bias=True), path, **options)
    method = runs.load(path)
    # Where a value lies between two of the cache, the last bit of f32 decides to which it goes.
    tolerance = {"float32": 1e-4, "float16": 3e-4, "bfloat16": 3e-3}[kv_dtype]
    for mix in MIXES.values():
        assert runs.compare_steps(model, method, mix, tolerance) < tolerance
    caches = {name: method.state.read(name).dtype for name in method.state.names}
    stored = "uint16" if kv_dtype == "bfloat16" else kv_dtype
    assert {str(value) for value in caches.values()} == {stored}
    constants = runs.constant_dtypes(path)
    assert constants["layers.1.feed_forward.w2.weight"] == dtype.replace("loat", "")
    assert constants["layers.1.ffn_norm.weight"] == "f32"


def test_the_file(exported: Any) -> None:
    path, model = exported
    program = Runtime.get().load_program(path)
    values = {
        name: program.load_method(name).execute([])
        for name in program.method_names
        if name not in whole.METHODS
    }
    assert values == {
        "get_max_seq_len": [16],
        "get_max_context_len": [40],
        "get_n_layers": [2],
        "get_vocab_size": [75],
        "get_bos_id": [0],
        "get_eos_ids": [1, 74],
        "use_kv_cache": [True],
        "use_sdpa_with_kv_cache": [True],
        "enable_dynamic_shape": [True],
    }
    method = program.load_method("forward")
    assert [info.dtype for info in method.metadata.inputs] == ["int64", "int64"]
    assert method.state.names == [
        f"layers.{i}.attention.kv_cache.{name}" for i in (0, 1) for name in ("k_cache", "v_cache")
    ]
    with PteFile.open(path) as file:
        for name in whole.METHODS:
            assert file.method(name).sole_delegate() is not None
    # A decode step: nine a layer at the most, embedding, norm, head, and the token's choice.
    for name, others in (("forward", 3), ("generate", 4)):
        listed = program.dispatch_list(name)
        smallest = [symint.lo for symint in listed.symints]
        assert len(dispatches_at(listed, smallest)) <= 2 * 9 + others
    inputs = program.metadata("generate").inputs
    assert [info.dtype for info in inputs] == ["int64"] * 2 + ["float32"] * 2 + ["int64"] * 2
    text = load_text(path)
    assert text is not None and text.bundle == letters()
    # Tied to nothing: head and embedding are two; the caches' zeros are not in the file.
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert parameters < path.stat().st_size < parameters + 900_000


@pytest.mark.slow
def test_two_thousand_steps(tmp_path: Path) -> None:
    """No memory grows, and the last logits are still right."""
    path, count = tmp_path / "long.pte", 2000
    model = runs.export(runs.tiny_args(max_context_len=count + 16), path)
    generator = TextGenerator(path)
    gpu, host = [], []

    def watch(token: int) -> None:
        if token % 100 == 0:
            gpu.append(generator.gpu_bytes)
            host.append(memory()["RssAnon"])

    choose, last, steps = generator.model.choose, [], itertools.count()

    def remember(output: Any, *rest: Any) -> int:
        watch(next(steps))
        last[:] = [output.reshape(-1).copy()]
        return choose(output, *rest)

    generator.model.choose = remember  # type: ignore[method-assign]
    prompt = runs.tokens_of(7, 75)
    result = generator.generate(prompt, count, ignore_eos=True)
    assert len(result.token_ids) == count and len(set(gpu)) == 1
    assert host[-1] - host[2] < 2 << 20, host
    model.generate_full_logits = True
    expected = runs.eager_step(model, prompt + result.token_ids[:-1], 0)[-1]
    runs.assert_logits(last[0], expected)


def test_positions_end(exported: Any) -> None:
    method = runs.load(exported[0])
    with pytest.raises(InvalidInputError, match="40"):
        runs.step(method, [1, 2], 39)
    with pytest.raises(InvalidInputError, match="16"):
        runs.step(method, range(17), 0)


def test_an_unwritten_file_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(b"old")

    class Broken:
        def write_to_file(self, file: Any) -> None:
            file.write(b"half")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        pte.write(Broken(), path)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["model.pte"]
    assert path.read_bytes() == b"old"


def test_what_stays_on_the_cpu_is_named() -> None:
    args = runs.tiny_args(n_layers=1)
    model = whole.build(args, whole.random_weights(args))
    options = CompileOptions(operator_blocklist=("aten.embedding.*",))
    with pytest.raises(pte.NotWhollyDelegatedError) as caught:
        pte.lower(model, options=options, methods=["forward"])
    assert "a whole model is one delegate" in str(caught.value)
    assert "1 x aten.embedding.default: in operator_blocklist" in str(caught.value)
    with pytest.raises(pte.NotWhollyDelegatedError, match=r"embedding.* in operator_blocklist"):
        pte.lower(model, options=options, methods=["generate"])


# -- commands --------------------------------------------------------------------------------


def run(*words: object, **options: Any) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], **options)


def greedy(model: whole.Llama, ids: list[int], count: int, ends: set[int]) -> list[int]:
    """Eager's continuation."""
    model.reset()
    found: list[int] = []
    logits = runs.eager_step(model, ids, 0)[-1]
    while len(found) < count:
        token = int(logits.argmax())
        if token in ends:
            break
        found.append(token)
        logits = runs.eager_step(model, [token], len(ids) + len(found) - 1)[-1]
    return found


def test_run(exported: Any, capfd: pytest.CaptureFixture[str]) -> None:
    path, model = exported
    text = load_text(path)
    assert text is not None
    result = run("run", path, "--prompt", "hello there", "--max-new-tokens", 12)
    assert result.exit_code == 0, result.output
    expected = text.decode(greedy(model, text.encode("hello there"), 12, {1, 74}))
    assert result.stdout == expected + "\n"
    assert "upload " in capfd.readouterr().err
    for line in ("load", "prompt", "prefill", "time to first token", "decode", "peak"):
        assert line in result.stderr, result.stderr
    words = ["run", path, "--prompt", "hello there", "--max-new-tokens", 9, "--ignore-eos"]
    words += ["--temperature", 1.5, "--top-k", 20, "--seed", 3]
    warm = run(*words)
    assert warm.exit_code == 0 and warm.stdout != result.stdout[:9] + "\n"
    for switch in ("--sample-on-host", "--no-pipeline"):
        assert run(*words, switch).stdout == warm.stdout


def test_both_methods_have_one_state_and_one_set_of_weights(exported: Any) -> None:
    path, model = exported
    program = Runtime.get().load_program(path)
    forward, generate = program.load_method("forward"), program.load_method("generate")
    tokens = runs.tokens_of(9, 75)
    model.reset()
    (logits,) = forward.execute([np.array([tokens[:6]]), np.array([0])])
    runs.assert_logits(logits[0], runs.eager_step(model, tokens[:6], 0))
    settings = [np.array([0], np.float32), np.array([1], np.float32), np.array([1]), np.array([0])]
    (token,) = generate.execute([np.array([tokens[6:8]]), np.array([6]), *settings])
    assert token.shape == (1, 1)
    assert token[0, 0] == runs.eager_step(model, tokens[6:8], 6)[-1].argmax()
    (logits,) = forward.execute([np.array([tokens[8:]]), np.array([8])])
    runs.assert_logits(logits[0], runs.eager_step(model, tokens[8:], 8))
    with pytest.raises(InvalidInputError, match="seed"):
        generate.execute([np.array([[1]]), np.array([9]), *settings[:3], np.array([-1])])
    keys = [
        {b.data_key for b in program.dispatch_list(name).buffers if b.kind is BufferKind.CONSTANT}
        for name in whole.METHODS
    ]
    assert keys[0] == keys[1] and len(keys[0]) > 10
    # On the GPU once, too: what the two methods hold together is hardly more than what one does.
    both = {**forward.allocated(), **generate.allocated()}
    assert sum(both.values()) < sum(forward.allocated().values()) * 1.2


def test_chat(exported: Any) -> None:
    path, model = exported
    text = load_text(path)
    assert text is not None
    lines = "hi\n\n/reset\nyou\n/exit\nnot read\n"
    result = run("run", path, "--chat", "--max-new-tokens", 3, input=lines)
    assert result.exit_code == 0, result.output
    answers = [
        text.decode(greedy(model, text.encode(f"<bos>{line}!"), 3, {1, 74}))
        for line in ("hi", "you")
    ]
    assert result.stdout == "".join(answer + "\n" for answer in answers)
    told = run("run", path, "--chat", "--system", "be", "--max-new-tokens", 3, input="hi")
    answer = text.decode(greedy(model, text.encode("<bos>be!hi!"), 3, {1, 74}))
    assert told.stdout == answer + "\n"
    once = run("run", path, "--chat", "--prompt", "hi", "--max-new-tokens", 3, input="not read")
    assert once.stdout == answers[0] + "\n"


def test_eval(exported: Any, tmp_path: Path) -> None:
    path, model = exported
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 2)
    result = run("eval", path, "--text", text, "--json", "--window", 37)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    tokenizer = load_text(path)
    assert tokenizer is not None
    ids = tokenizer.encode(text.read_text())
    # One token at a time, and in other chunks: the same number.
    for chunk in (1, 11):
        expected = perplexity(
            lambda tokens, position: runs.eager_step(model, tokens, position),
            ids,
            window=37,
            chunk=chunk,
        )
        assert found["tokens"] == expected.tokens == len(ids) - 3
        assert found["perplexity"] == pytest.approx(expected.perplexity, rel=1e-4)


def test_perplexity_is_what_it_says() -> None:
    """Against torch's cross entropy over the whole text at once."""
    table = torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    ids = [3, 1, 4, 1, 5, 8, 2, 6]
    expected = torch.nn.functional.cross_entropy(table[ids[:-1]], torch.tensor(ids[1:])).exp()
    found = perplexity(lambda tokens, position: table[list(tokens)], ids, window=99, chunk=3)
    assert found.perplexity == pytest.approx(float(expected))
    with pytest.raises(ValueError, match="1 tokens"):
        perplexity(lambda tokens, position: table, [3], window=9, chunk=3)


def test_export_llama(tmp_path: Path) -> None:
    """From a folder of Hugging Face's to an answer, in processes of their own."""
    c = reference.config("qwen3", num_hidden_layers=1)
    weights = reference.random_weights(c)
    folder = files.write_hf(tmp_path / "model", c, weights, shards=2)
    (folder / "tokenizer.json").write_bytes(letters().data)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<bos>", "eos_token": "<eos>"}')
    path = tmp_path / "model.pte"
    command = [sys.executable, "-m", "executorch_wgpu.scripts.cli"]
    words = ["export-llama", "--hf", folder, "--out", path, "--max-context", 32]
    words += ["--max-seq-len", 8, "--all-logits"]
    made = subprocess.run([*command, *map(str, words)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    for name in ("load", "export", "lower", "write"):
        assert f"\n{name} " in made.stderr
    assert "model.pte: model, " in made.stdout
    method = runs.load(path)
    tokens = runs.tokens_of(7, 40)
    expected = reference.logits(weights, c, torch.tensor(tokens)).float().numpy()
    runs.assert_logits(runs.step(method, tokens, 0), expected, 1e-3)
    # Where torch cannot be imported, it runs all the same.
    script = f"""
        import sys
        for name in ("torch", "executorch", "gguf", "safetensors"):
            sys.modules[name] = None
        from executorch_wgpu.scripts.cli import main
        main(["run", {str(path)!r}, "--prompt", "hi", "--max-new-tokens", "2"])
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    assert len(ran.stdout) > 1 and b"time to first token" in ran.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export-llama", "--out", "x.pte"], "give one of --gguf"),
        (["export-llama", "--out", "x.bin", "--hf", "."], "ends in .pte"),
        (["export-llama", "--out", "x.pte", "--checkpoint", __file__], "--params go together"),
        (["run", __file__], "give --prompt, --chat or both"),
        (["run", __file__, "--prompt", "a", "--system", "b"], "--system goes with --chat"),
        (["run", __file__, "--prompt", "a"], "not a .pte file"),
        (["eval", __file__, "--text", __file__], "not a .pte file"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    result = run(*words)
    assert result.exit_code in (1, 2)
    assert message in result.output and "Traceback" not in result.output


def test_a_context_that_was_not_trained(tmp_path: Path) -> None:
    c = reference.config("llama")
    folder = files.write_hf(tmp_path / "model", c, reference.random_weights(c))
    result = run("export-llama", "--hf", folder, "--out", tmp_path / "x.pte")
    assert result.exit_code == 1
    assert "--max-context 2048: model was trained for 64 positions" in result.output
