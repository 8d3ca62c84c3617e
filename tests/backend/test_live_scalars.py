"""Where live scalars come from, and their bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

from executorch_wgpu.runtime.errors import InvalidInputError

import exports

CACHE = 12


class Writer(torch.nn.Module):
    """Writes x into a cache at a position that ``read`` takes from the other argument."""

    def __init__(self, read) -> None:
        super().__init__()
        self.read = read
        self.register_buffer("k_cache", torch.zeros(1, CACHE, 2, 4))

    def forward(self, x, where):
        torch.ops.llama.update_cache(x, self.k_cache, self.read(where))
        return self.k_cache * 1.0


def element(index):
    def read(where):
        position = where[index].item()
        torch._check(position >= 0)
        torch._check(position < CACHE)
        return position

    return read


def nested(where):
    position = where[1][2].item()
    torch._check(position >= 0)
    torch._check(position < CACHE)
    return position


def as_symint(where):
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401

    return torch.ops.et_vk.select_as_symint(where, 0, 0)


X = torch.randn(1, 2, 2, 4)
S = torch.export.Dim("S", min=1, max=5)
INT32, INT64 = torch.int32, torch.int64

SOURCES = {
    "the first, int64": (element(0), (1,), 0, INT64),
    "the first, int32": (element(0), (1,), 0, INT32),
    "the last": (element(-1), (1,), 0, INT64),
    "one of several": (element(2), (4,), 2, INT64),
    "one from the end": (element(-3), (4,), 1, INT32),
    "of a matrix": (nested, (2, 3), 5, INT64),
    "select_as_symint": (as_symint, (1,), 0, INT64),
}


def write(cache, x, at):
    cache[:, at : at + x.shape[1]] = x.numpy()


@pytest.mark.parametrize("name", SOURCES)
def test_a_position_from_a_tensor(name):
    read, shape, flat, dtype = SOURCES[name]
    where = torch.zeros(shape, dtype=dtype)
    method = exports.method(Writer(read), (X, where), ({1: S}, None))
    expected = np.zeros((1, CACHE, 2, 4), np.float32)
    for at, size in ((0, 3), (3, 1), (7, 5), (11, 1)):
        x = torch.randn(1, size, 2, 4)
        where = np.full(shape, 77, dtype=str(dtype).removeprefix("torch."))
        where.reshape(-1)[flat] = at
        (y,) = method.execute([x.numpy(), where])
        write(expected, x, at)
        np.testing.assert_array_equal(y, expected)
    for bad in (-1, CACHE, 2**31 - 1):
        where.reshape(-1)[flat] = bad
        with pytest.raises(InvalidInputError, match=str(bad)):
            method.execute([np.zeros((1, 1, 2, 4), np.float32), where])
    where.reshape(-1)[flat] = 0
    write(expected, x, 0)
    np.testing.assert_array_equal(method.execute([x.numpy(), where])[0], expected)


def test_a_value_outside_int32_is_refused_and_the_old_one_kept():
    method = exports.method(Writer(element(0)), (X, torch.zeros(1, dtype=INT64)), ({1: S}, None))
    x = np.ones((1, 1, 2, 4), np.float32)
    method.execute([x, np.array([4])])
    for bad in (2**31, 2**40 + 4, -(2**31) - 1):
        with pytest.raises(InvalidInputError, match=str(bad)):
            method.execute([x * 2, np.array([bad])])
    cache = method.state.read("k_cache")
    assert cache[0, 4].min() == 1.0 and np.abs(cache).sum() == x.size


def test_a_position_as_an_int_argument():
    class IntWriter(Writer):
        def forward(self, x, where: int):
            torch._check(where >= 0)
            torch._check(where + x.shape[1] <= CACHE)
            return super().forward(x, where)

    shapes = ({1: S}, torch.export.Dim.DYNAMIC)
    method = exports.method(IntWriter(lambda where: where), (X, 3), shapes)
    expected = np.zeros((1, CACHE, 2, 4), np.float32)
    for at, size in ((2, 3), (0, 1), (11, 1), (7, 5)):
        x = torch.randn(1, size, 2, 4)
        write(expected, x, at)
        np.testing.assert_array_equal(method.execute([x.numpy(), at])[0], expected)
    with pytest.raises(InvalidInputError, match="8"):
        method.execute([torch.randn(1, 5, 2, 4).numpy(), 8])


def test_an_unbounded_size_stays_on_the_cpu():
    from executorch_wgpu.backend.partitioner import explain_program

    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    program = exports.export(Double(), (torch.randn(3, 4),), ({0: torch.export.Dim("n")},))
    explanation = explain_program(program)
    assert any("upper bound" in row.reason for row in explanation.on_cpu), explanation


def test_nothing_is_created_or_uploaded_between_steps(monkeypatch):
    """One .pte serves every size: replays re-record, and create nothing."""
    method = exports.method(Writer(element(0)), (X, torch.zeros(1, dtype=INT64)), ({1: S}, None))
    method.execute([np.zeros((1, 5, 2, 4), np.float32), np.array([0])])
    device = method.graph.device
    created = []
    for name in dir(type(device)):
        if name.startswith("create_") and name != "create_command_encoder":
            original = getattr(device, name)

            def spy(*args, _name=name, _original=original, **kwargs):
                created.append(_name)
                return _original(*args, **kwargs)

            monkeypatch.setattr(device, name, spy, raising=False)
    for at, size in ((0, 1), (3, 5), (11, 1), (4, 2)):
        method.execute([np.zeros((1, size, 2, 4), np.float32), np.array([at])])
    assert created == []
