"""The main job: a llama layer with its KV cache, through the .pte, against eager at every step."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

from executorch_wgpu.backend import WgpuPartitioner
from executorch_wgpu.runtime import Runtime
from executorch_wgpu.runtime.errors import InvalidInputError
from executorch_wgpu.scripts.recipes import llama

import exports
from harness import assert_close

CONTEXT = 220
MIXES = {
    "prefill then decode": [7] + [1] * 9,
    "one token at a time": [1] * 8,
    "to the last position": [111, 1, 1, 1, 57, 1, 1, 47],
    "chunks": [16, 16, 3, 16, 1],
}


def small_layer(fused: bool) -> llama.Layer:
    args = llama.model_args(
        dim=36,
        n_heads=6,
        n_kv_heads=2,
        hidden_dim=44,
        max_seq_len=128,
        max_context_len=CONTEXT,
    )
    return llama.random_layer(args, seed=3, fused=fused)


@pytest.fixture(scope="module", params=["update_cache + custom_sdpa", "sdpa_with_kv_cache"])
def exported(request, tmp_path_factory):
    """(path of the .pte, function that makes the eager twin with an empty cache)."""
    fused = request.param == "sdpa_with_kv_cache"
    lowered = to_edge_transform_and_lower(
        llama.export_layer(small_layer(fused)), partitioner=[WgpuPartitioner()]
    )
    assert exports.delegates(lowered) == 1 and exports.cpu_operators(lowered) == []
    path = tmp_path_factory.mktemp("layer") / "layer.pte"
    lowered.to_executorch().save(str(path))
    return path, lambda: small_layer(fused)


def steps(mix: list[int], seed: int = 0):
    """(x, input_pos) of each step, fresh random rows."""
    generator = torch.Generator().manual_seed(seed)
    position = 0
    for size in mix:
        yield torch.randn(1, size, 36, generator=generator), torch.tensor([position])
        position += size


@pytest.fixture
def poisoned(monkeypatch):
    """Scratch and outputs hold NaN before each run: what is not written shows."""
    monkeypatch.setenv("EXECUTORCH_WGPU_POISON", "1")


@pytest.mark.parametrize("mix", MIXES)
def test_every_step_equals_eager(exported, mix, poisoned):
    path, eager = exported
    method, reference = Runtime.get().load_program(path).load_method("forward"), eager()
    assert sum(MIXES["to the last position"]) == CONTEXT
    for x, position in steps(MIXES[mix]):
        (y,) = method.execute([x.numpy(), position.numpy()])
        with torch.no_grad():
            assert_close(y, reference(x, position))


def largest_error(method, reference, positions) -> float:
    worst = 0.0
    for (x, position), given in zip(steps([7, 1, 1, 1]), positions, strict=True):
        (y,) = method().execute([x.numpy(), np.array([given])])
        with torch.no_grad():
            worst = max(worst, float((torch.as_tensor(y) - reference(x, position)).abs().max()))
    return worst


def test_the_position_and_the_cache_matter(exported):
    """Negative controls: the comparison above can fail."""
    path, eager = exported
    program = Runtime.get().load_program(path)
    kept = program.load_method("forward")
    right = [0, 7, 8, 9]
    assert largest_error(lambda: kept, eager(), right) < 1e-4
    kept = program.load_method("forward")
    assert largest_error(lambda: kept, eager(), [0, 0, 0, 0]) > 1e-2  # pinned input_pos
    fresh = lambda: program.load_method("forward")  # noqa: E731
    assert largest_error(fresh, eager(), right) > 1e-2  # a cache that forgets


def refused(method, inputs) -> str:
    with pytest.raises(InvalidInputError) as caught:
        method.execute(inputs)
    return str(caught.value)


def test_a_refused_call_names_its_numbers_and_changes_nothing(exported):
    path, eager = exported
    method, reference = Runtime.get().load_program(path).load_method("forward"), eager()
    script = list(steps([9, 1]))
    x, position = script[0]
    first = method.execute([x.numpy(), position.numpy()])[0]
    caches = {name: method.state.read(name).copy() for name in method.state.names}

    row = np.zeros((1, 1, 36), np.float32)
    assert str(CONTEXT) in refused(method, [row, np.array([CONTEXT])])
    assert "-1" in refused(method, [row, np.array([-1])])
    past = refused(method, [np.zeros((1, 5, 36), np.float32), np.array([CONTEXT - 4])])
    assert str(CONTEXT - 4) in past and "5" in past and str(CONTEXT) in past
    assert "2147483648" in refused(method, [row, np.array([2**31])])
    assert "129" in refused(method, [np.zeros((1, 129, 36), np.float32), np.array([0])])
    assert "float64" in refused(method, [np.zeros((1, 1, 36)), np.array([9])])
    assert "35" in refused(method, [np.zeros((1, 1, 35), np.float32), np.array([9])])
    refused(method, [np.zeros((1, 0, 36), np.float32), np.array([9])])
    refused(method, [np.zeros((1, 36), np.float32), np.array([9])])
    refused(method, [row])
    refused(method, [row, np.array([9]), np.array([9])])
    refused(method, [row, np.array([9.0])])

    for name, content in caches.items():
        np.testing.assert_array_equal(method.state.read(name), content)
    with torch.no_grad():
        assert_close(first, reference(*script[0]))
        (y,) = method.execute([t.numpy() for t in script[1]])
        assert_close(y, reference(*script[1]))


def test_a_decode_step_is_few_dispatches_with_names(exported):
    path, _ = exported
    method = Runtime.get().load_program(path).load_method("forward")
    program = method.graph.program
    labels = [d.label for step in program.steps for d in step.routes[0].dispatches]
    assert len(labels) <= 7
    for part in ("wq+wk+wv/linear", "rope", "update_cache_k", "sdpa_decode_split"):
        assert any(part in label for label in labels), labels
    assert all(label.startswith("layers.0") for label in labels), labels


def test_it_runs_in_a_process_without_torch(exported):
    path, eager = exported
    script = f"""
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "executorch"):
                    raise ImportError(name + " is not installed")
        sys.meta_path.insert(0, Refuse())
        import numpy as np
        from executorch_wgpu.runtime import Runtime
        method = Runtime.get().load_program({str(path)!r}).load_method("forward")
        x = np.linspace(-1, 1, 3 * 36, dtype=np.float32).reshape(1, 3, 36)
        (y,) = method.execute([x, np.array([0])])
        np.save({str(path.with_suffix(".npy"))!r}, y)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    x = torch.linspace(-1, 1, 3 * 36).reshape(1, 3, 36)
    with torch.no_grad():
        assert_close(np.load(path.with_suffix(".npy")), eager()(x, torch.tensor([0])))
