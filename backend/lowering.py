"""From an operator chain to a dispatch list: lower each call, plan memory, build the program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from executorch_wgpu.backend.build import ConstantData, build_program
from executorch_wgpu.ops import registry
from executorch_wgpu.ops.builder import Builder
from executorch_wgpu.ops.call import ChainInput, OpCall, OpChain, Origin, Value
from executorch_wgpu.ops.elementwise.pointwise import emit_copy
from executorch_wgpu.ops.tensor import Storage, Tensor, contiguous_strides, dtype_bytes
from executorch_wgpu.serialization.dispatch_list import BufferKind, Program


@dataclass(frozen=True)
class LoweredProgram:
    """A dispatch list and the content of its constants and states: named-data key -> bytes-like
    in storage layout."""

    program: Program
    data: ConstantData


def lower_chain(chain: OpChain) -> LoweredProgram:
    """Lower ``chain``. Every call must be supported (``registry.unsupported_reason`` is None);
    raises NotImplementedError with the reason otherwise, ValueError for a condition on static
    numbers that can never hold (a cache too short for its update, say)."""
    return _ChainLowering(chain).run()


class _ChainLowering:
    def __init__(self, chain: OpChain) -> None:
        self.chain = chain
        self.builder = Builder(matrix_units=chain.matrix_units)
        self.tensors: dict[Value, Tensor] = {}
        #: Where values came from, for the copies made of them.
        self.origins: dict[Value, Origin] = {}
        self.last_use = _last_uses(chain)

    def run(self) -> LoweredProgram:
        chain, b = self.chain, self.builder
        inputs = [self._input(item) for item in chain.inputs]
        for value, name in chain.states.items():
            self.tensors[value] = _state_tensor(value, name, chain.share_state)
        for position, call in enumerate(chain.calls):
            with b.at(call.origin):
                self._call(position, call)
        outputs = self._outputs()
        self._store_states()
        # After the operators' own: where both state a condition, theirs has the better message.
        for check in chain.checks:
            b.check(check.condition, check.message, *check.args)
        return LoweredProgram(*build_program(b, chain, inputs, outputs))

    def _input(self, item: ChainInput) -> Tensor | None:
        if item.value is None:
            return None
        shape, dtype = item.value.shape, item.value.dtype
        storage = Storage(BufferKind.INPUT, dtype_bytes(shape, dtype), item.name)
        tensor = Tensor(dtype, shape, contiguous_strides(shape), 0, storage)
        self.tensors[item.value] = tensor
        return tensor

    def tensor(self, value: Value) -> Tensor:
        if value not in self.tensors:
            if value.constant is None:
                raise AssertionError(f"{value} is used before it is defined")
            self.tensors[value] = self.builder.constant(value.constant, value.dtype, value.name)
        return self.tensors[value]

    def _call(self, position: int, call: OpCall) -> None:
        entry = registry.lowering_of(call.op)
        reason = registry.unsupported_reason(call)
        if entry is None or reason is not None:
            raise NotImplementedError(f"{call.op} at {call.origin.module_path}: {reason}")
        arguments = {name: self._resolve(arg) for name, arg in call.args.items()}
        for name in call.mutates.values():
            arguments[name] = self._writable(position, call, arguments[name])
        results = entry.lower(self.builder, replace(call, args=arguments))
        results = results if isinstance(results, tuple) else (results,)
        for value, result in zip(call.outputs, results, strict=True):
            self.origins[value] = call.origin
            self.tensors[value] = result

    def _resolve(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            return self.tensor(arg)
        if isinstance(arg, (list, tuple)):
            return [self._resolve(item) for item in arg]
        return arg

    def _writable(self, position: int, call: OpCall, old: Tensor) -> Tensor:
        """The tensor that holds the next version of ``old``: the same storage when nobody reads
        an older version later (nor is it bound beside it in this call), a copy otherwise."""
        storage = old.storage
        read_later = any(
            tensor.storage is storage and self.last_use.get(value, -1) > position
            for value, tensor in self.tensors.items()
        )
        operands = [v for v in call.input_values() if self.tensor(v).storage is storage]
        owned = storage.kind in (BufferKind.STATE, BufferKind.SCRATCH)
        if owned and not read_later and len(operands) == 1:
            return old
        copy = self.builder.empty(old.shape, old.dtype, "version")
        emit_copy(self.builder, old, copy, "copy_version")
        return copy

    def _outputs(self) -> list[Tensor | None]:
        """Each tensor output in a buffer of its own: a result that fills a scratch buffer from
        the start moves there, everything else (inputs, constants, views, state, duplicates) is
        copied."""
        found: list[Tensor | None] = []
        for index, value in enumerate(self.chain.outputs):
            if not isinstance(value, Value):
                found.append(None)
                continue
            tensor = self.tensor(value)
            storage = tensor.storage
            if (
                storage.kind is BufferKind.SCRATCH
                and tensor.offset == 0
                and tensor.is_contiguous
                and storage.size_bytes
                == max(4, (dtype_bytes(tensor.shape, tensor.dtype) + 3) // 4 * 4)
                and tensor.dtype is value.dtype
            ):
                storage.kind = BufferKind.OUTPUT
                storage.name = f"output {index}"
                found.append(tensor.with_layout(tensor.shape, contiguous_strides(tensor.shape)))
                continue
            out = self.builder.empty(value.shape, value.dtype, f"output {index}", BufferKind.OUTPUT)
            origin = replace(self.origins.get(value, Origin()), op="wgpu.copy_output")
            with self.builder.at(origin):
                emit_copy(self.builder, tensor, out, f"copy_output_{index}")
            found.append(out)
        return found

    def _store_states(self) -> None:
        """Bring the last version of each state home. Sources that are themselves states are
        copied aside first: the order of the stores must not matter."""
        pending: list[tuple[Tensor, Tensor]] = []
        for first, last in self.chain.results.items():
            home, tensor = self.tensors[first], self.tensor(last)
            if tensor.storage is home.storage and tensor.strides == home.strides:
                continue
            if tensor.storage.kind is BufferKind.STATE:
                aside = self.builder.empty(tensor.shape, tensor.dtype, "state_aside")
                with self.builder.at(_home_of(home)):
                    emit_copy(self.builder, tensor, aside, "copy_state_aside")
                tensor = aside
            pending.append((tensor, home))
        for tensor, home in pending:
            with self.builder.at(_home_of(home)):
                emit_copy(self.builder, tensor, home, "store_state")


def _home_of(state: Tensor) -> Origin:
    """The module that a state's name says it belongs to."""
    return Origin("wgpu.store_state", state.storage.name.rpartition(".")[0])


def _last_uses(chain: OpChain) -> dict[Value, int]:
    """Position of the last call that reads each value; past the end for what leaves."""
    last: dict[Value, int] = {}
    for position, call in enumerate(chain.calls):
        for value in call.input_values():
            last[value] = position
    end = len(chain.calls)
    for value in [*chain.outputs, *chain.results.values()]:
        if isinstance(value, Value):
            last[value] = end
    return last


def _state_tensor(value: Value, name: str, share: str) -> Tensor:
    initial = value.constant
    # Caches start as zeros nearly always; those need no bytes in the file.
    data = None if initial is None or not bool((initial != 0).any()) else initial.contiguous()
    shape = tuple(int(size) for size in value.shape)
    size = dtype_bytes(shape, value.dtype)
    storage = Storage(BufferKind.STATE, size, name, data, (value.dtype, shape), share=share)
    return Tensor(value.dtype, value.shape, contiguous_strides(value.shape), 0, storage)
