"""Many steps, many threads, killed processes: nothing wrong, nothing lost, nothing left behind.

The model is runtime/generate/tiny_lm.py, whose logits are an integer hash of every row of its
cache: one row that is wrong, missing or stale changes every token after it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "runtime"), str(TESTS / "runtime" / "generate")]

from tiny_lm import VOCAB, continuation, tiny_pte  # noqa: E402

from executorch_wgpu.runtime import InvalidInputError, Runtime, TextGenerator  # noqa: E402
from executorch_wgpu.runtime.device import is_native, request_device  # noqa: E402
from executorch_wgpu.runtime.graph import WebGPUGraph  # noqa: E402

from programs import accumulator  # isort: skip  # noqa: E402

CONTEXT = 512


class Walk:
    """Generators over one program, and for each the tokens that its caches must hold."""

    def __init__(self, device: Any, seed: int, reloads: bool) -> None:
        self.rng = random.Random(seed)
        self.program = Runtime.get().load_program(tiny_pte(context=CONTEXT), device=device)
        self.texts: list[tuple[TextGenerator, list[int]]] = []
        for options in ({"depth": 2}, {"depth": 3}, {"pipelined": False, "sample_on_host": True}):
            text = TextGenerator(self.program, **options)
            self.texts.append((text, []))
        self.saved: list[tuple[Any, list[int], int]] = []
        self.steps = self.checked = self.refused = self.forks = self.restored = self.reloaded = 0
        self.reloads = reloads

    def prompt(self, history: list[int]) -> list[int]:
        """What the caches hold and more, or part of it, or something new."""
        rng = self.rng
        new = [rng.randrange(2, VOCAB) for _ in range(rng.randrange(1, 12))]
        kept = rng.choice((len(history), rng.randrange(len(history) + 1), 0))
        room = CONTEXT - 40
        return [*history[:kept], *new] if kept + len(new) < room else new

    def generate(self) -> None:
        rng = self.rng
        at = rng.randrange(len(self.texts))
        text, history = self.texts[at]
        prompt, count = self.prompt(history), rng.randrange(1, 32)
        sampling: dict[str, Any] = {}
        if rng.random() < 0.5:
            sampling = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": rng.randrange(99)}
        result = text.generate(prompt, count, ignore_eos=True, **sampling)
        whole = [*prompt, *result.token_ids]
        assert len(result.token_ids) == min(count, CONTEXT - len(prompt) + 1)
        for i in {len(prompt), len(whole) - 1, rng.randrange(len(prompt), len(whole))}:
            assert whole[i : i + 1] == continuation(whole[:i], 1, **sampling), (at, i, sampling)
            self.checked += 1
        self.steps += len(result.token_ids)
        self.texts[at] = (text, text.cached_ids)
        assert text.cached_ids == whole[: len(text.cached_ids)]

    def refuse(self) -> None:
        """Calls that do not fit leave everything as it was."""
        text, history = self.rng.choice(self.texts)
        method, before = text.model.method, text.model.method.state.read(text_cache(text))
        tokens, pos = np.zeros((1, 1), np.int64), np.array([0])
        rest = [np.ones(1, np.float32)] * 2 + [np.zeros(1, np.int64)] * 2
        rest = rest if text.model.samples else []
        for inputs in (
            [tokens, np.array([CONTEXT]), *rest],
            [tokens, np.array([-1]), *rest],
            [np.zeros((1, 2), np.int64), np.array([CONTEXT - 1]), *rest],
            [np.zeros((1, 9), np.int64), pos, *rest],
            [tokens.astype(np.float32), pos, *rest],
            [np.full((1, 1), 1 << 40), pos, *rest],
            [tokens],
        ):
            with pytest.raises(InvalidInputError):
                method.execute(inputs)
            self.refused += 1
        for prompt in ([VOCAB], [-1]):
            with pytest.raises(InvalidInputError):
                text.generate(prompt, 3)
        np.testing.assert_array_equal(method.state.read(text_cache(text)), before)
        assert text.cached_ids == history

    def fork(self) -> None:
        text, history = self.rng.choice(self.texts)
        self.texts.append((text.fork(), list(history)))
        self.forks += 1
        if len(self.texts) > 6:
            del self.texts[self.rng.randrange(3, len(self.texts))]

    def save(self) -> None:
        at = self.rng.randrange(3)
        text, history = self.texts[at]
        self.saved.append((text.snapshot(on_host=self.rng.random() < 0.5), list(history), at))
        del self.saved[:-4]

    def restore(self) -> None:
        if not self.saved:
            return
        conversation, history, at = self.rng.choice(self.saved)
        text, _ = self.texts[at]
        text.restore(conversation)
        self.texts[at] = (text, list(history))
        assert text.cached_ids == history
        self.restored += 1

    def reset(self) -> None:
        at = self.rng.randrange(len(self.texts))
        self.texts[at][0].reset()
        self.texts[at] = (self.texts[at][0], [])

    def reload(self) -> None:
        """The device goes; what was saved in host memory is still good."""
        if not self.reloads:
            return
        graph = self.texts[0][0].model.method.graph
        assert graph is not None
        graph.device.destroy()
        self.program.reload()
        self.texts = [(text, []) for text, _ in self.texts]
        self.saved = [s for s in self.saved if s[0].states.on_host]
        self.reloaded += 1

    def run(self, steps: int) -> None:
        acts = [self.generate] * 12 + [self.refuse, self.fork, self.save, self.restore, self.reset]
        while self.steps < steps:
            self.rng.choice(acts)()
            if self.rng.random() < 0.03:
                self.reload()


def text_cache(text: TextGenerator) -> str:
    return text.model.method.state.names[0]


@pytest.mark.parametrize(
    "steps", [500, pytest.param(10_000, marks=pytest.mark.slow)], ids=lambda steps: f"{steps} steps"
)
def test_many_steps(steps: int) -> None:
    """Restarts, forks, snapshots, refused calls and lost devices between decode steps."""
    device = request_device()
    walk = Walk(device, steps, reloads=is_native(device))
    walk.run(steps)
    print({name: value for name, value in vars(walk).items() if isinstance(value, int)})
    assert walk.checked > steps // 30 and walk.refused and walk.forks and walk.restored


@pytest.mark.parametrize(
    "steps", [60, pytest.param(1000, marks=pytest.mark.slow)], ids=lambda steps: f"{steps} steps"
)
def test_eight_threads_over_four_programs(device: Any, steps: int) -> None:
    """Two threads a program, each with its own caches; they share weights, pipelines, a device."""
    programs = [
        Runtime.get().load_program(tiny_pte(context=128 + 32 * i), device=device) for i in range(4)
    ]
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            rng = random.Random(number)
            text = TextGenerator(programs[number % 4], pipelined=number % 3 > 0)
            done = 0
            while done < steps:
                prompt = [rng.randrange(2, VOCAB) for _ in range(rng.randrange(1, 20))]
                count = rng.randrange(1, 24)
                ids = text.generate(prompt, count, ignore_eos=True).token_ids
                last = [*prompt, *ids]
                if ids[-1:] != continuation(last[:-1], 1):
                    failures.append((number, prompt, ids))
                done += len(ids)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]


# -- processes that are killed --------------------------------------------------------------

_USE = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from programs import accumulator
from executorch_wgpu.runtime import guard
from executorch_wgpu.runtime.device import request_device
from executorch_wgpu.runtime.graph import WebGPUGraph
print("ready", flush=True)
graph = WebGPUGraph(request_device(), accumulator(), label="forward")
print(graph.execute([np.ones(8, np.float32), np.array([0])])[0][0])
print(type(guard.native_calls()).__name__)
"""


def start(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _USE.format(folder=str(TESTS / "runtime"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EXECUTORCH_WGPU_CACHE": str(cache), "EXECUTORCH_WGPU_API": "wgpu"},
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output.split()


def guarded(cache: Path) -> list[Path]:
    return [p for p in (cache / "guard").glob("*.so") if not p.name.startswith(".")]


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_the_cache_usable(kills: int, tmp_path: Path) -> None:
    rng = random.Random(kills)
    for i in range(kills):
        # A new folder now and then, so that the build is what the kill meets.
        cache = tmp_path / str(i // 3)
        process = start(cache)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.6)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if i % 3 == 2 or i == kills - 1:
            said = finish(start(cache))
            assert said[:2] == ["ready", "1.0"], said
            if said[2] == "GuardedCalls":
                assert len(guarded(cache)) == 1


def test_processes_share_a_cache(tmp_path: Path) -> None:
    """Two at once find it empty; both go well and agree on one file."""
    processes = [start(tmp_path) for _ in range(2)]
    said = {tuple(finish(process)) for process in processes}
    assert len(said) == 1 and said.pop()[:2] == ("ready", "1.0")
    assert len(list((tmp_path / "guard").glob("*"))) in (0, 1)


def test_a_broken_cache_is_no_harm(tmp_path: Path) -> None:
    """A file that is no library is built again; in place of a folder that cannot be, one of the
    process's own is used, or the calls are made unguarded."""
    said = finish(start(tmp_path))
    assert said[1] == "1.0"
    for path in guarded(tmp_path):
        path.write_bytes(b"not a library")
    assert finish(start(tmp_path))[1:] == said[1:]
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert finish(start(blocked / "cache"))[1] == "1.0"


def test_the_same_bits_from_run_to_run(device: Any) -> None:
    """Same program, device and route: the same bits, in a graph of its own each time."""
    x = np.random.default_rng(3).standard_normal(8).astype(np.float32)
    seen = set()
    for _ in range(5):
        graph = WebGPUGraph(device, accumulator())
        for _ in range(3):
            (y,) = graph.execute([x, np.array([0])])
        seen.add(y.tobytes())
    assert len(seen) == 1
