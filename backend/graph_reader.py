"""Reads an ExportedProgram as an operator chain, and says of each node whether it could be.

The partitioner reads the whole program to ask, ``preprocess`` reads one partition to lower: the
same code answers both, so what is tagged always lowers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from executorch_wgpu.backend import fx_adapter as fx
from executorch_wgpu.backend.live_scalars import LiveScalars, Readings, Source
from executorch_wgpu.backend.symbols import (
    UnsupportedSymbol,
    environment_of,
    recorded_range,
    symbols_of,
    to_scalar,
)
from executorch_wgpu.backend.wide_scales import scale_leaves
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.call import ChainCheck, ChainInput, OpChain, Value
from executorch_wgpu.ops.symbolic import INT32_MAX, Scalar, Sym, symbol
from executorch_wgpu.ops.tensor import dtype_bytes
from executorch_wgpu.serialization.dispatch_list import SymSource

#: No buffer of a dispatch list may be larger; a size that could be is not bounded in earnest.
MAX_TENSOR_BYTES = 1 << 36

_INTEGER = (torch.int64, torch.int32)
_CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass
class _Element:
    """A part of an input tensor on the way to one element: the placeholder, the flat offset
    (negative: from the end), and the sizes and strides left to select from."""

    node: torch.fx.Node
    offset: int
    dims: list[tuple[Any, int | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """A part of a graph, read as the delegate that it would become. ``nodes``: in order.
    ``kept``: placeholders of the constants and states that go into the delegate."""

    nodes: tuple[torch.fx.Node, ...]
    kept: frozenset[torch.fx.Node]

    def inputs(self) -> list[torch.fx.Node]:
        """What the delegate takes as arguments."""
        inside = {*self.nodes, *self.kept}
        needed = [source for node in self.nodes for source in node.all_input_nodes]
        return [node for node in dict.fromkeys(needed) if node not in inside]

    def outputs(self) -> list[torch.fx.Node]:
        """What is used outside."""
        inside = set(self.nodes)
        return [node for node in self.nodes if any(user not in inside for user in node.users)]


class GraphReader:
    """One ExportedProgram in edge dialect, or a part of it.

    ``user_inputs``: nodes that are arguments, in order. ``live``: its live scalars.
    ``reader``: turns its nodes into OpCalls. With ``assume``, numbers that the graph computes
    (the length of a ``nonzero``) count as known where they are bounded: to a delegate that gets a
    tensor of that length they are.
    """

    def __init__(
        self, program: ExportedProgram, part: Part | None = None, *, assume: bool = False
    ) -> None:
        self.program = program
        signature = program.graph_signature
        self.kinds = {spec.arg.name: spec.kind for spec in signature.input_specs}
        self.targets = {spec.arg.name: spec.target for spec in signature.input_specs}
        self.mutated = {
            spec.arg.name: spec.target
            for spec in signature.output_specs
            if spec.kind is OutputKind.BUFFER_MUTATION
        }
        if part is None:
            self.nodes = list(program.graph.nodes)
            self.user_inputs = [
                node
                for node in self.nodes
                if node.op == "placeholder" and self.kinds.get(node.name) not in _CONSTANT_KINDS
            ]
        else:
            self.nodes, self.user_inputs = list(part.nodes), part.inputs()
        self._inside = None if part is None else frozenset(part.nodes)
        self._arguments = frozenset(self.user_inputs)
        self.live = self._live_scalars()
        if assume:
            self._assume()
        self.reader = fx.CallReader(
            self.live.bindings, self._constant, self.targets, self._arguments
        )

    # -- constants and states --------------------------------------------------------------

    def is_mutated(self, node: torch.fx.Node) -> bool:
        """Whether the placeholder is a buffer that the program updates."""
        return self.targets.get(node.name) in self.mutated.values() and (
            self.kinds.get(node.name) is InputKind.BUFFER
        )

    def tensor_of(self, node: torch.fx.Node) -> torch.Tensor | None:
        """The parameter, buffer or constant behind a placeholder, None for an argument."""
        if self.kinds.get(node.name) not in _CONSTANT_KINDS or node in self._arguments:
            return None
        target = self.targets[node.name]
        for home in (self.program.state_dict, self.program.constants):
            if target in home:
                tensor = home[target]
                return tensor.detach() if isinstance(tensor, torch.Tensor) else None
        return None

    def _constant(self, node: torch.fx.Node) -> torch.Tensor | None:
        tensor = self.tensor_of(node)
        # Values hold constants as the builder wants them: contiguous, without autograd.
        return None if tensor is None else tensor.contiguous()

    # -- live scalars ----------------------------------------------------------------------

    def _live_scalars(self) -> LiveScalars:
        readings = Readings(self.program.range_constraints)
        position = {node: k for k, node in enumerate(self.user_inputs)}
        for node, k in position.items():
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                readings.add(Source(SymSource.INT_ARG, k, 0), value, node.name)
            elif isinstance(value, torch.Tensor):
                for d, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        name = f"{node.name}.shape[{d}]"
                        readings.add(Source(SymSource.INPUT_DIM, k, d), size, name)
        for node in self.nodes:
            if fx.is_scalar_read(node):
                value, element = node.meta.get("val"), self.element(node)
                if element is not None and isinstance(value, torch.SymInt):
                    name = f"{element.node.name}[{element.offset}]"
                    source = Source(
                        SymSource.TENSOR_ELEMENT, position[element.node], element.offset
                    )
                    readings.add(source, value, name)
            elif node.op == "call_function":
                self._note_indexing(readings, node)
        return readings.resolve()

    def _assume(self) -> None:
        live = self.live
        for node in self.nodes:
            for value in _numbers(node.meta.get("val")):
                for sym in sorted(symbols_of([value]) - {*live.bindings, *live.problems}, key=str):
                    lo, hi = recorded_range(
                        sym, environment_of(value), self.program.range_constraints
                    )
                    if hi is None or hi > INT32_MAX:
                        live.problems[sym] = f"{sym} has no upper bound: state one, torch._check"
                    else:
                        index = len(live.symints) + len(live.bindings)
                        live.bindings[sym] = symbol(index, str(sym), max(lo or 0, 0), hi)

    def _note_indexing(self, readings: Readings, node: torch.fx.Node) -> None:
        """What a live scalar addresses bounds it: a cache, a slice, a selected dimension."""

        def value(arg: Any) -> Any:
            return arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg

        if fx.is_mutation(node):
            arguments, name = dict(node.kwargs), fx.op_name(node.args[0])
            bases = node.kwargs["_all_bases"]
        else:
            arguments, name, bases = {}, fx.op_name(node.target), []
        if name == "aten._assert_scalar.default":
            readings.asserts(value(node.args[0]))
            return
        if name in ("llama.update_cache.default", "llama.sdpa_with_kv_cache.default") and bases:
            update = value(arguments["value" if "update" in name else "key"])
            cache = value(bases[0])
            readings.indexes(value(arguments["start_pos"]), update.shape[1], cache.shape[1])
        elif name == "llama.custom_sdpa.default" and len(node.args) > 3:
            query, key = value(node.args[0]), value(node.args[1])
            readings.indexes(value(node.args[3]), query.shape[1], key.shape[1])
        elif name in ("aten.slice_copy.Tensor", "aten.slice.Tensor") and len(node.args) > 2:
            source, result = value(node.args[0]), value(node)
            dim = node.args[1]
            if isinstance(source, torch.Tensor) and isinstance(dim, int) and source.dim():
                start = value(node.args[2])
                readings.indexes(start, result.shape[dim], source.shape[dim])
        elif name in ("aten.select_copy.int", "aten.select.int"):
            source, dim = value(node.args[0]), node.args[1]
            if isinstance(source, torch.Tensor) and isinstance(dim, int) and source.dim():
                readings.indexes(value(node.args[2]), None, source.shape[dim])

    def element(self, node: torch.fx.Node) -> _Element | None:
        """Which element of which integer input a scalar read takes; None when it reads
        something computed."""
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        found = self._locate(source)
        if found is not None and fx.op_name(node.target) == "et_vk.select_as_symint.default":
            found = _select(found, node.args[1], node.args[2])
        if found is None or any(not _is_one(size) for size, _ in found.dims):
            return None
        return found

    def is_element(self, node: torch.fx.Node) -> bool:
        """Whether the node is a part of an integer input, on the way to one element of it."""
        return self._locate(node) is not None

    def _locate(self, node: torch.fx.Node) -> _Element | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in _INTEGER:
            return None
        if node in self._arguments:
            dims: list[tuple[Any, int | None]] = []
            stride: int | None = 1
            for size in reversed(value.shape):
                dims.insert(0, (size, stride))
                whole = stride is not None and not isinstance(size, torch.SymInt)
                stride = stride * size if whole else None
            return _Element(node, 0, dims)
        if node.op != "call_function" or not node.args:
            return None
        source, name = node.args[0], fx.op_name(node.target)
        if not isinstance(source, torch.fx.Node):
            return None
        found = self._locate(source)
        if found is None:
            return None
        if name in ("aten.select_copy.int", "aten.select.int"):
            return _select(found, node.args[1], node.args[2])
        entry = registry.lowering_of(name)
        same = entry is not None and (entry.views or "to_copy" in name or "dim_order_copy" in name)
        if same and all(_is_one(size) for size, _ in found.dims) and _is_one_element(value):
            return _Element(found.node, found.offset, [])
        return None

    # -- asking ----------------------------------------------------------------------------

    def reason(self, node: torch.fx.Node) -> str | None:
        """Why the node cannot be delegated, None when it can. For operator nodes and the
        symbolic chain; a getitem has the reason of its source."""
        try:
            if fx.is_getitem(node):
                source = node.args[0]
                assert isinstance(source, torch.fx.Node)
                return self.reason(source)
            if fx.is_scalar_read(node):
                if self.element(node) is None:
                    return "reads a number that is computed, not given as an input"
                self.reader.value(node)
                return None
            if fx.is_assert(node):
                self.condition(node)
                return None
            if fx.is_symbolic(node):
                self.reader.value(node)
                return None
            name = fx.op_name(node.args[0] if fx.is_mutation(node) else node.target)
            if registry.lowering_of(name) is None:
                return f"no lowering for {name}"
            if fx.is_scale_choice(node):
                reason = scale_leaves(node, self._inside)
                if reason is not None:
                    return reason
            call = self.reader.call(node)
            reason = registry.unsupported_reason(call)
            return reason or _too_large([*call.input_values(), *call.outputs])
        except fx.Unsupported as problem:
            return str(problem)
        except UnsupportedSymbol as problem:
            unknown = symbols_of([_sizes(node)]) & set(self.live.problems)
            return self.live.problems[min(unknown, key=str)] if unknown else str(problem)

    def condition(self, node: torch.fx.Node) -> tuple[Scalar, str] | None:
        """The condition of an assert node and its message; None for one that says nothing new
        (a range, which the SymInt's bounds hold, or metadata)."""
        if fx.op_name(node.target) != "aten._assert_scalar.default":
            return None
        argument = node.args[0]
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
        message = node.args[1] if len(node.args) > 1 else "assertion failed"
        free = symbols_of([value])
        if len(free) <= 1:
            return None  # a range of one symbol: see live_scalars on why it is not restated
        return to_scalar(value, self.live.bindings), str(message)

    # -- reading ---------------------------------------------------------------------------

    def chain(self) -> OpChain:
        """The whole program as an operator chain. Raises Unsupported or UnsupportedSymbol for
        what :meth:`reason` has a reason against."""
        inputs: list[ChainInput] = []
        chain = OpChain([], inputs, [], list(self.live.symints))
        for k, node in enumerate(self.user_inputs):
            value = self.reader.value(node)
            if isinstance(value, Value):
                inputs.append(ChainInput(node.name, value))
            else:
                source = Source(SymSource.INT_ARG, k, 0)
                inputs.append(ChainInput(node.name, symint=self.live.by_source.get(source)))
        for node in self.nodes:
            if node.op == "placeholder" and self.is_mutated(node):
                value = self.reader.value(node)
                chain.states[value] = self.targets[node.name]
                chain.results[value] = value
        chain.checks = [c for c in self.live.checks if _worth_checking(c)]
        for node in self.nodes:
            if node.op != "call_function":
                continue
            if fx.is_getitem(node):
                self._getitem(node)
            elif fx.is_assert(node):
                stated = self.condition(node)
                if stated is not None and isinstance(stated[0], Sym):
                    chain.checks.append(ChainCheck(*stated))
            elif fx.is_scalar_read(node) or fx.is_symbolic(node):
                self.reader.value(node)
            else:
                chain.calls.append(self.reader.call(node))
        self._outputs(chain)
        return chain

    def _getitem(self, node: torch.fx.Node) -> None:
        source, index = node.args
        self.reader.values[node] = self.reader.value(source)[index]  # type: ignore[arg-type,index]

    def _outputs(self, chain: OpChain) -> None:
        output = self.nodes[-1]
        specs = self.program.graph_signature.output_specs
        by_target = {name: value for value, name in chain.states.items()}
        for spec, arg in zip(specs, output.args[0], strict=True):  # type: ignore[arg-type]
            value = self.reader.value(arg) if isinstance(arg, torch.fx.Node) else arg
            if spec.kind is OutputKind.BUFFER_MUTATION and spec.target in by_target:
                chain.results[by_target[spec.target]] = value
            elif isinstance(value, (Value, int, Sym)):
                chain.outputs.append(value)
            else:
                raise fx.Unsupported(f"an output of type {type(value).__name__}")


def _worth_checking(check: ChainCheck) -> bool:
    return isinstance(check.condition, Sym) or not check.condition


def _select(found: _Element, dim: Any, index: Any) -> _Element | None:
    if not isinstance(dim, int) or not isinstance(index, int) or not found.dims:
        return None
    dim = dim % len(found.dims)
    size, stride = found.dims[dim]
    if index < 0 and not isinstance(size, torch.SymInt):
        index += size
    rest = found.dims[:dim] + found.dims[dim + 1 :]
    if index < 0:
        # From the end of a live size: only where the dimension is all there is.
        if found.offset != 0 or stride != 1 or any(not _is_one(s) for s, _ in rest):
            return None
        return _Element(found.node, index, rest)
    if stride is None:
        return None if index else _Element(found.node, found.offset, rest)
    return _Element(found.node, found.offset + index * stride, rest)


def _is_one(size: Any) -> bool:
    return not isinstance(size, torch.SymInt) and size == 1


def _is_one_element(value: torch.Tensor) -> bool:
    return all(_is_one(size) for size in value.shape)


def _numbers(value: Any) -> list[Any]:
    """The ints, live or not, of a node's value: its sizes, or itself."""
    values = value if isinstance(value, (list, tuple)) else [value]
    found: list[Any] = []
    for one in values:
        found += list(one.shape) if isinstance(one, torch.Tensor) else [one]
    return found


def _sizes(node: torch.fx.Node) -> list[Any]:
    """Every number in the values around a node."""
    return [n for item in [node, *node.all_input_nodes] for n in _numbers(item.meta.get("val"))]


def _too_large(values: list[Value]) -> str | None:
    for value in values:
        size = dtype_bytes(value.shape, value.dtype)
        if size > MAX_TENSOR_BYTES:
            return f"{list(value.shape)} may need {size} bytes: give its sizes an upper bound"
    return None
