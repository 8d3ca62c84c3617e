"""From an FX graph of an ExportedProgram to OpCalls: the one place that knows FX."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

from executorch_wgpu.backend.symbols import UnsupportedSymbol, to_scalar
from executorch_wgpu.ops.call import OpCall, Origin, Value
from executorch_wgpu.serialization.dispatch_list import NONE, DType

DTYPES = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.bool: DType.BOOL,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
}


class Unsupported(Exception):
    """A node that has no OpCall; the message is the reason, for the user."""


#: Operators of the symbolic chain: they compute on the host.
_SYMBOLIC_FUNCTIONS = {
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.and_, operator.or_),
    *(torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum),
}
_SYMBOLIC_OPS = {"aten.sym_size.int", "aten.sym_numel.default"}
_READS = {"aten._local_scalar_dense.default", "aten.item.default"}
_SELECT_AS_SYMINT = "et_vk.select_as_symint.default"
_ASSERTS = {
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
    "aten._assert_tensor_metadata.default",
}
#: Operators whose first result is a scale that is computed in f32 and given as f64.
_SCALE_CHOICES = {
    "quantized_decomposed.choose_qparams.tensor",
    "quantized_decomposed.choose_qparams_symmetric.tensor",
    "quantized_decomposed.choose_qparams_per_token.default",
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
}


def op_name(target: Any) -> str:
    """``aten.add.Tensor`` of an edge or ATen overload; the target's text otherwise."""
    inner = getattr(target, "_op", None)  # an edge overload wraps the ATen one
    if isinstance(inner, torch._ops.OpOverload):
        return str(inner)
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return str(getattr(target, "__name__", target))


def is_assert(node: torch.fx.Node) -> bool:
    """Whether the node only states a condition."""
    return node.op == "call_function" and op_name(node.target) in _ASSERTS


def is_scalar_read(node: torch.fx.Node) -> bool:
    """Whether the node takes an int out of a tensor."""
    if node.op != "call_function":
        return False
    name = op_name(node.target)
    return name in _READS or name == _SELECT_AS_SYMINT


def is_symbolic(node: torch.fx.Node) -> bool:
    """Whether the node computes on the host: sizes, arithmetic and comparisons of live ints."""
    if node.op != "call_function":
        return False
    if node.target in _SYMBOLIC_FUNCTIONS:
        value = node.meta.get("val")
        return isinstance(value, (torch.SymInt, torch.SymBool, int, bool))
    return op_name(node.target) in _SYMBOLIC_OPS


def is_getitem(node: torch.fx.Node) -> bool:
    """Whether the node takes one result of an operator with several."""
    return node.op == "call_function" and node.target is operator.getitem


def is_scale_choice(node: Any) -> bool:
    """Whether the node's first result is a scale that f32 holds, given as f64."""
    return (
        isinstance(node, torch.fx.Node)
        and node.op == "call_function"
        and op_name(node.target) in _SCALE_CHOICES
    )


def is_mutation(node: torch.fx.Node) -> bool:
    """Whether the node is a functionalised mutation of a custom operator."""
    return node.op == "call_function" and node.target is auto_functionalized_v2


def module_path(node: torch.fx.Node) -> str:
    """Innermost module that called the operator, such as ``layers.0.attention``; "" at the top."""
    stack = node.meta.get("nn_module_stack") or {}
    path = ""
    for entry in stack.values():
        path = entry[0] if isinstance(entry, tuple) else str(entry)
    path = path.replace("L['self'].", "").replace("L['self']", "")
    # A module called twice is numbered by the exporter: layers.0@1.
    return path.split("@")[0]


def origin_of(node: torch.fx.Node, name: str) -> Origin:
    """Operator, module path and debug handle of a node."""
    handle = node.meta.get("debug_handle")
    if isinstance(handle, (tuple, list)):  # a pass of ExecuTorch's made one node of several
        handles = tuple(int(h) for h in handle)
        first = handles[0] if handles else NONE
        return Origin(name, module_path(node), first, handles if len(handles) > 1 else ())
    return Origin(name, module_path(node), NONE if handle is None else int(handle))


class CallReader:
    """Turns nodes into OpCalls.

    ``bindings``: symbol -> live scalar. ``constant_of``: placeholder -> its torch tensor when it
    is a constant, None otherwise. ``names``: placeholder's name -> name of its parameter or
    buffer. ``arguments``: nodes that come from outside. One Value a node, kept in ``values``.
    """

    def __init__(
        self,
        bindings: Mapping[Any, Any],
        constant_of: Callable[[torch.fx.Node], torch.Tensor | None],
        names: Mapping[str, str | None],
        arguments: Collection[torch.fx.Node] = (),
    ) -> None:
        self.bindings = dict(bindings)
        self.constant_of = constant_of
        self.names = names
        self.arguments = arguments
        self.values: dict[torch.fx.Node, Any] = {}

    def value(self, node: torch.fx.Node) -> Any:
        """The Value (tuple of Values for several results, Scalar for an int) of a node. Raises
        Unsupported or UnsupportedSymbol."""
        if node not in self.values:
            constant = self.constant_of(node) if node.op == "placeholder" else None
            name = self.names.get(node.name) or node.name
            source = node.args[0] if is_getitem(node) else node
            narrow = is_scale_choice(source) and not {node, source} & {*self.arguments}
            self.values[node] = self._convert(node.meta.get("val"), name, constant, narrow)
        return self.values[node]

    def _convert(
        self, val: Any, name: str, constant: torch.Tensor | None = None, narrow: bool = False
    ) -> Any:
        if isinstance(val, torch.Tensor):
            if narrow and val.dtype is torch.float64:  # see wide_scales.py
                val = val.to(torch.float32)
            if val.dtype not in DTYPES:
                raise Unsupported(f"dtype {str(val.dtype).removeprefix('torch.')}")
            if val.is_sparse or val.is_quantized:
                raise Unsupported("a sparse or quantized tensor")
            shape = tuple(to_scalar(size, self.bindings) for size in val.shape)
            return Value(DTYPES[val.dtype], shape, name, constant)
        if isinstance(val, (torch.SymInt, torch.SymBool, int, bool)):
            return to_scalar(val, self.bindings)
        if isinstance(val, (tuple, list)):
            return tuple(self._convert(v, f"{name}.{k}", narrow=narrow) for k, v in enumerate(val))
        raise Unsupported(f"a value of type {type(val).__name__}")

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return self.value(arg)
        if isinstance(arg, (list, tuple)):
            return [self._argument(item) for item in arg]
        if isinstance(arg, (torch.SymInt, torch.SymBool)):
            return to_scalar(arg, self.bindings)
        return arg

    def call(self, node: torch.fx.Node) -> OpCall:
        """The OpCall of an operator node. Raises Unsupported or UnsupportedSymbol."""
        if is_mutation(node):
            return self._mutation(node)
        schema = getattr(node.target, "_schema", None)
        name = op_name(node.target)
        if schema is None:
            raise Unsupported(f"no schema for {name}")
        args: dict[str, Any] = {}
        for position, argument in enumerate(schema.arguments):
            if position < len(node.args):
                args[argument.name] = self._argument(node.args[position])
            elif argument.name in node.kwargs:
                args[argument.name] = self._argument(node.kwargs[argument.name])
            elif argument.has_default_value():
                args[argument.name] = argument.default_value
            else:
                raise Unsupported(f"argument {argument.name} is missing")
        result = self.value(node)
        outputs = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(v, Value) for v in outputs):
            raise Unsupported("a result that is not a tensor")
        call = OpCall(name, args, outputs, origin_of(node, name))
        if name == "aten.slice_scatter.default" and isinstance(args["self"], Value):
            # A cache written by slicing: the result is the next version of it.
            call.mutates = {0: "self"}
        return call

    def _mutation(self, node: torch.fx.Node) -> OpCall:
        """``auto_functionalized_v2(op, **kwargs, _all_bases=[...])`` returns the operator's own
        results, then the next version of each base. The OpCall's outputs are the results, then
        the versions in the order of the schema's arguments."""
        target = node.args[0]
        schema, name = target._schema, op_name(target)  # type: ignore[union-attr]
        bases = node.kwargs["_all_bases"]
        results = self.value(node)
        own = len(schema.returns)
        args: dict[str, Any] = {}
        outputs = list(results[:own])
        mutates: dict[int, str] = {}
        taken: set[int] = set()
        for argument in schema.arguments:
            key = f"_{argument.name}_base_index"
            if argument.alias_info is not None and argument.alias_info.is_write:
                views = [k for k in node.kwargs if k.startswith(f"_{argument.name}_") and k != key]
                if views or node.kwargs.get(key) is None:
                    raise Unsupported(f"{name} of a view of {argument.name}")
                index = node.kwargs[key]
                if index in taken:
                    raise Unsupported(f"{name} of one buffer twice")
                taken.add(index)
                args[argument.name] = self._argument(bases[index])
                mutates[len(outputs)] = argument.name
                outputs.append(results[own + index])
            elif argument.name in node.kwargs:
                args[argument.name] = self._argument(node.kwargs[argument.name])
            elif argument.has_default_value():
                args[argument.name] = argument.default_value
            else:
                raise Unsupported(f"argument {argument.name} is missing")
        if not all(isinstance(v, Value) for v in outputs):
            raise Unsupported("a result that is not a tensor")
        return OpCall(name, args, tuple(outputs), origin_of(node, name), mutates)


__all__ = [
    "CallReader",
    "Unsupported",
    "UnsupportedSymbol",
    "is_assert",
    "is_getitem",
    "is_mutation",
    "is_scale_choice",
    "is_scalar_read",
    "is_symbolic",
    "module_path",
    "op_name",
    "origin_of",
]
