"""Fusions of matmuls, pointwise chains and cache updates: what they match, and what they leave."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.lowering import lower_chain
from executorch_wgpu.backend.passes import OPTIONAL, run_passes
from executorch_wgpu.backend.passes.chain_index import ChainIndex
from executorch_wgpu.backend.passes.rewrite import closes_cycle, sort_calls
from executorch_wgpu.ops.call import OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.joined import JoinedRows
from executorch_wgpu.runtime.graph import WebGPUGraph
from executorch_wgpu.scripts.recipes import llama
from executorch_wgpu.serialization.dispatch_list import BufferKind, DType

import exports

F32 = DType.F32


class Function(nn.Module):
    """A function of the module, which has some layers and vectors."""

    def __init__(self, function, width: int = 16, hidden: int = 24, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.a = nn.Linear(width, hidden, bias)
        self.b = nn.Linear(width, hidden, bias)
        self.c = nn.Linear(width, 8, bias)
        self.down = nn.Linear(hidden, width, bias)
        self.scale = nn.Parameter(torch.randn(hidden))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def silu(x):
    return nn.functional.silu(x)


def chain_of(module: nn.Module, inputs, shapes=None) -> OpChain:
    return run_passes(GraphReader(exports.edge(module, inputs, shapes)).chain())


def work(chain: OpChain) -> list[str]:
    """Operators that compute."""
    views = ("view", "permute", "split", "slice", "select", "squeeze", "expand")
    return [c.op for c in chain.calls if not any(view in c.op for view in views)]


def check(module: nn.Module, inputs, device, expected: list[str] | int) -> OpChain:
    """The operators after the passes (or their number), and the results."""
    chain = chain_of(module, inputs)
    found = work(chain)
    assert found == expected or len(found) == expected, found
    want = module(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    graph = graph_of(device, chain)
    for got, right in zip(graph.execute([t.numpy() for t in inputs]), want, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), right.detach(), atol=1e-4, rtol=1e-3)
    return chain


def graph_of(device, chain: OpChain) -> WebGPUGraph:
    lowered = lower_chain(chain)
    return WebGPUGraph(device, lowered.program, lowered.data, "test")


X = torch.randn(1, 5, 16)
H = torch.randn(1, 5, 24)

# -- linear layers and what follows them ----------------------------------------------------------

ONE_LINEAR = {
    "residual": lambda m, x, h: h + m.a(x),
    "residual first": lambda m, x, h: m.a(x) + h,
    "scaled residual": lambda m, x, h: h * 0.5 + m.a(x),
    "activation": lambda m, x, h: nn.functional.gelu(m.a(x)),
    "a vector": lambda m, x, h: m.a(x) * m.scale + h,
    "swiglu": lambda m, x, h: silu(m.a(x)) * m.b(x),
    "swiglu the other way round": lambda m, x, h: m.b(x) * silu(m.a(x)),
    "gated by gelu": lambda m, x, h: nn.functional.gelu(m.a(x), approximate="tanh") * m.b(x),
    "swiglu and a residual": lambda m, x, h: h + silu(m.a(x)) * m.b(x),
    "difference": lambda m, x, h: m.a(x) - m.b(x) * 2,
    "one row": lambda m, x, h: m.a(x[:, -1]) + h[:, 0],
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ONE_LINEAR)
def test_what_becomes_one_dispatch(device, form, bias):
    chain = check(Function(ONE_LINEAR[form], bias=bias), (X, H), device, ["wgpu.linear"])
    (linear,) = (call for call in chain.calls if call.op == "wgpu.linear")
    both = any(word in form for word in ("swiglu", "gated", "difference"))
    assert linear["pairs"] == both


NEAR_MISSES = {
    # Used twice, or leaving: the sum itself is needed.
    "sum used twice": (lambda m, x, h: (y := m.a(x)).mean(-1) + (h + y).mean(-1), 5),
    "sum leaves": (lambda m, x, h: (y := m.a(x), h + y), 2),
    "gate leaves": (lambda m, x, h: (g := m.a(x), silu(g) * m.b(x)), 2),
    # Not one element for one element.
    "a number a row": (lambda m, x, h: m.a(x) * h[..., :1], 2),
    "more rows than the sum": (lambda m, x, h: m.a(x[:, :1]) + h, 2),
    "another view": (lambda m, x, h: m.a(x).view(1, 5, 4, 6) + h.view(1, 5, 4, 6), 2),
    # Two inputs: nothing to share. The later one takes in the other's result.
    "gates of different inputs": (lambda m, x, h: silu(m.a(x)) * m.b(x * 2), 3),
    # A weight that is read twice keeps its order.
    "one weight twice": (lambda m, x, h: silu(m.a(x)) * m.a(x), 2),
    "a gate's weight elsewhere": (
        lambda m, x, h: (silu(m.a(x)) * m.b(x), m.a(x[:, :2])),
        3,
    ),
}


@pytest.mark.parametrize("form", NEAR_MISSES)
def test_what_stays_apart_is_right(device, form):
    function, count = NEAR_MISSES[form]
    chain = check(Function(function), (X, H), device, count)
    assert not any(call["pairs"] for call in chain.calls if call.op == "wgpu.linear")


def test_matmuls_that_are_no_linear_layers_stay(device):
    module = Function(
        lambda m, x, w, b: (x[0] @ w, torch.addmm(b, x[0], w, alpha=2), x[0] @ m.scale[:, None])
    )
    module.scale = nn.Parameter(torch.randn(16))
    inputs = (X, torch.randn(16, 3), torch.randn(3))
    chain = check(module, inputs, device, 3)
    assert "wgpu.linear" not in work(chain)


# -- linear layers side by side -------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_layers_over_one_input_are_one(device, bias):
    module = Function(lambda m, x: (m.a(x), m.c(x).view(1, 5, 2, 4), m.b(x).sum(-1)), bias=bias)
    chain = check(module, (X,), device, ["wgpu.linear", "aten.sum.dim_IntList"])
    linear = next(call for call in chain.calls if call.op == "wgpu.linear")
    assert linear["weight"].shape == (56, 16) and linear["weight"].name == "a+c+b.weight"
    assert linear.origin.module_path == "a+c+b"
    # Joined when the program is written, not before.
    assert isinstance(linear["weight"].constant, JoinedRows)


def test_a_bias_on_one_side_only_keeps_them_apart(device):
    module = Function(lambda m, x: (m.a(x), m.b(x)))
    module.b = nn.Linear(16, 24, bias=True)
    check(module, (X,), device, ["wgpu.linear", "wgpu.linear"])


def test_tied_weights_stay_apart(device):
    """Two names for one tensor: in a joined weight it would be stored again."""
    embedding = nn.functional.embedding
    module = Function(lambda m, x, i: (m.a(x), m.c(x), embedding(i, m.c.weight)))
    apart = ["wgpu.linear", "wgpu.linear", "aten.embedding.default"]
    check(module, (X, torch.arange(5)), device, apart)


# -- pointwise chains -----------------------------------------------------------------------------

POINTWISE = {
    "a line": (lambda m, x, y: torch.exp(-x.abs()) * 2 + 1, 1),
    "a diamond": (lambda m, x, y: torch.sigmoid(x) * x + torch.tanh(x) * y, 1),
    "a broadcast operand": (lambda m, x, y: (x + y[:, :1]) * y, 1),
    "a comparison": (lambda m, x, y: torch.where(torch.logical_and(x > y, x < 1), x, -y), 1),
    "used twice": (lambda m, x, y: (z := torch.exp(x)).mean(-1, keepdim=True) + z * 2, 3),
    "leaves": (lambda m, x, y: (z := x * y, z + 1), 2),
    "a smaller result": (lambda m, x, y: torch.exp(x[..., :1]) * y, 2),
    "converted": (lambda m, x, y: (x > 0).float() + y, 3),
}


@pytest.mark.parametrize("form", POINTWISE)
def test_chains_of_pointwise_operators(device, form):
    function, count = POINTWISE[form]
    module = Function(function)
    check(module, (X, torch.randn(1, 5, 16)), device, count)


def test_a_kernel_binds_no_more_than_it_can(device):
    """Eight operands do not fit one dispatch: the chain is cut."""
    inputs = tuple(torch.randn(3, 4) for _ in range(9))
    module = Function(lambda m, *xs: sum(x * (i + 1) for i, x in enumerate(xs)))
    chain = check(module, inputs, device, 2)
    assert all(len(call.input_values()) <= 6 for call in chain.calls)


# -- views ----------------------------------------------------------------------------------------


def test_what_changes_nothing_is_dropped(device):
    module = Function(
        lambda m, x: torch.cat([x.transpose(1, 2).transpose(1, 2).clone().view(1, 5, 16)]) * 2
    )
    chain = check(module, (X,), device, ["aten.mul.Tensor"])
    assert len(chain.calls) == 1


def test_outputs_that_change_nothing(device):
    module = Function(lambda m, x: (x.clone(), x.view(1, 5, 16), (y := x + 1), y.clone()))
    chain = check(module, (X,), device, ["aten.add.Tensor"])
    assert chain.outputs[0] is chain.outputs[1] is chain.inputs[0].value


def test_permutations_meet(device):
    module = Function(lambda m, x: x.permute(2, 0, 1).permute(1, 0, 2) + 1)
    chain = check(module, (X,), device, ["aten.add.Tensor"])
    assert [call.args.get("dims") for call in chain.calls if "permute" in call.op] == [[0, 2, 1]]


# -- a llama layer --------------------------------------------------------------------------------


def layer_of(fused: bool = False, **overrides):
    args = llama.model_args(
        **{"dim": 36, "n_heads": 6, "n_kv_heads": 2, "hidden_dim": 44, "max_seq_len": 16,
           "max_context_len": 40, **overrides}
    )  # fmt: skip
    return llama.random_layer(args, 1, fused=fused)


FORMS = {
    "llama": {},
    "multi-head": {"n_kv_heads": 6},
    "one kv head": {"n_kv_heads": 1, "n_heads": 4, "dim": 32},
    "qwen2.5": {"attention_qkv_bias": True, "use_hf_rope": True},
    "qwen3": {"use_qk_norm": True, "qk_norm_before_rope": True, "use_hf_rope": True, "head_dim": 8},
    "norm after rope": {"use_qk_norm": True, "qk_norm_before_rope": False, "head_dim": 8},
}
LAYER = ["wgpu.linear", "wgpu.rope_attention", "wgpu.linear", "wgpu.linear", "wgpu.linear"]


@pytest.mark.parametrize(
    ("form", "fused"), [*((form, False) for form in FORMS), ("llama", True)], ids=str
)
def test_a_layer_is_five_calls_and_equals_eager(device, form, fused):
    layer = layer_of(fused, **FORMS[form])
    inputs, shapes = llama.example_inputs(layer), llama.dynamic_shapes(layer)
    chain = chain_of(layer, inputs, shapes)
    if form == "norm after rope":
        assert not {"wgpu.rope_update_cache", "wgpu.rope_attention"} & {*work(chain)}
    else:
        assert work(chain) == LAYER
    graph = graph_of(device, chain)
    twin = layer_of(fused, **FORMS[form])
    position = 0
    for size in (7, 1, 1, 16, 2, 12, 1):
        x, at = torch.randn(1, size, twin.dim), torch.tensor([position])
        (y,) = graph.execute([x.numpy(), at.numpy()])
        with torch.no_grad():
            torch.testing.assert_close(torch.as_tensor(y), twin(x, at), atol=1e-4, rtol=1e-3)
        position += size
    assert position == 40
    for name in graph.state.names:
        want = dict(twin.named_buffers())[name]
        torch.testing.assert_close(
            torch.as_tensor(graph.state.read(name)).view(want.shape), want, atol=1e-4, rtol=1e-3
        )


@pytest.fixture(scope="module")
def llama_edge():
    layer = layer_of()
    return exports.edge(layer, llama.example_inputs(layer), llama.dynamic_shapes(layer))


@pytest.mark.parametrize("name", OPTIONAL)
def test_each_pass_can_be_left_out(device, name, llama_edge):
    """The layer is right without any one of them, and with none."""
    skip = OPTIONAL if name == OPTIONAL[0] else (name,)
    chain = run_passes(GraphReader(llama_edge).chain(), skip)
    graph = graph_of(device, chain)
    twin = layer_of()
    for position, size in ((0, 5), (5, 1)):
        x, at = torch.randn(1, size, 36), torch.tensor([position])
        (y,) = graph.execute([x.numpy(), at.numpy()])
        with torch.no_grad():
            torch.testing.assert_close(torch.as_tensor(y), twin(x, at), atol=1e-4, rtol=1e-3)


def test_a_pass_that_is_not_there():
    with pytest.raises(ValueError, match="fuse_everything"):
        run_passes(OpChain([], [], []), ["fuse_everything"])


def test_joined_weights_are_in_the_file_once(llama_edge):
    lowered = lower_chain(run_passes(GraphReader(llama_edge).chain()))
    names = [b.name for b in lowered.program.buffers if b.kind is BufferKind.CONSTANT]
    assert "layers.0.attention.wq+wk+wv.weight" in names
    assert "layers.0.feed_forward.w1+w3.weight" in names
    assert not any(name.endswith(("wq.weight", "w1.weight")) for name in names)


class CacheReader(nn.Module):
    """Reads its caches before and after their update."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer = layer_of()
        self.form = form

    def forward(self, x, input_pos):
        cache = self.layer.block.attention.kv_cache
        before = cache.k_cache.sum() if self.form != "after" else 0
        y = self.layer(x, input_pos)
        after = cache.k_cache.sum() if self.form != "before" else 0
        return y + before, y * 2 + after


@pytest.mark.parametrize("form", ["before", "after", "both"])
def test_versions_of_a_cache_stay_apart(device, form):
    module = CacheReader(form)
    twin = CacheReader(form)
    S = {1: torch.export.Dim("S", min=1, max=16)}
    inputs = (torch.randn(1, 3, 36), torch.zeros(1, dtype=torch.int64))
    chain = chain_of(module, inputs, (S, None))
    # Whoever reads the caches afterwards keeps the attention apart from their update.
    fused = "wgpu.rope_attention" if form == "before" else "wgpu.rope_update_cache"
    assert fused in work(chain)
    graph = graph_of(device, chain)
    for position, size in ((0, 5), (5, 1), (6, 2)):
        x, at = torch.randn(1, size, 36), torch.tensor([position])
        got = graph.execute([x.numpy(), at.numpy()])
        with torch.no_grad():
            for one, want in zip(got, twin(x, at), strict=True):
                torch.testing.assert_close(torch.as_tensor(one), want, atol=1e-3, rtol=1e-3)


# -- chains by hand -------------------------------------------------------------------------------


def call(op: str, *sources: Value) -> OpCall:
    return OpCall(op, {f"x{i}": v for i, v in enumerate(sources)}, (Value(F32, (1,), op),))


def test_calls_are_sorted_by_what_they_read():
    x = Value(F32, (1,), "x")
    a = call("a", x)
    b = call("b", *a.outputs)
    c = call("c", *a.outputs, *b.outputs)
    d = call("d", x)
    chain = OpChain([c, b, d, a], [], [])
    sort_calls(chain)
    assert [one.op for one in chain.calls] == ["d", "a", "b", "c"]
    a.args["x0"] = c.outputs[0]
    with pytest.raises(ValueError):
        sort_calls(chain)


def test_a_call_between_two_closes_a_cycle():
    x = Value(F32, (1,), "x")
    a = call("a", x)
    b = call("b", *a.outputs)
    c = call("c", *b.outputs)
    d = call("d", x)
    index = ChainIndex(OpChain([a, b, c, d], [], []))
    assert closes_cycle(index, [a, c]) and closes_cycle(index, [c, a])
    assert not closes_cycle(index, [a, b]) and not closes_cycle(index, [a, d])
    assert not closes_cycle(index, [a, b, c])


def test_origins_of_several():
    origins = [Origin("x", f"layers.0.attention.{n}", h) for n, h in (("wq", 3), ("wk", 5))]
    both = Origin.of_several("linear", origins)
    assert both == Origin("linear", "layers.0.attention.wq+wk", 3, (3, 5))
    assert Origin.of_several("y", [both, Origin("z", "layers.0")]).module_path == "layers.0"
    assert Origin.of_several("y", [Origin("x", "a", 7)] * 2) == Origin("y", "a", 7)
