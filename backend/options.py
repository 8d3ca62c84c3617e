"""What a user may choose ahead of time: ``WgpuPartitioner(CompileOptions(...))``."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from executorch.exir.backend.compile_spec_schema import CompileSpec

from executorch_wgpu.ops.matmul.gemm_matrix import MODES as MATRIX_MODES

#: What a call of a delegate costs by itself, in microseconds: submit, wait, read back. Measured
#: with ``python -m executorch_wgpu.scripts.bench.bridge``; see docs/EXECUTORCH.md.
CALL_COST_US = 150.0


@dataclass(frozen=True)
class CompileOptions:
    """Options of one export. They travel to the backend as ExecuTorch's CompileSpecs.

    Names are matched whole and may hold ``*`` and ``?``. Operators are written as ``explain``
    shows them (``aten.add.Tensor``, ``aten.*``), modules by their path (``layers.3.attention``),
    which stands for what is in them, too.

    Attributes:
        operator_allowlist: only these operators are delegated; None for all that can be.
        operator_blocklist: these are not.
        module_allowlist: only what these modules call is delegated; None for all.
        module_blocklist: what these call is not.
        call_cost_us: where a graph splits, a part is left on the CPU whose operators take less
            time there than moving its inputs and outputs takes, and, where it has no matrix
            product, than this plus that. 0 delegates all that can be. A graph that is delegated
            as a whole is not concerned. See backend/worth.py.
        external_constants: weights go to a ``.ptd`` file of this name beside the ``.pte`` ("" for
            none): ``program.write_tensor_data_to_file(folder)`` writes it.
        share_state: a group ("" for none). States of equal name in methods of one group are one
            state: what one method writes, the others read. Their dtype, shape and initial content
            must be equal.
        matrix_units: products of many rows with constant weights may use matrix units where a
            device has them: "" for not, "precise" for factors in parts that keep 22 bits, "fast"
            for factors that are rounded to f16 (11 bits). Sums are f32 either way. Other devices
            are not concerned. See docs/NUMERICS.md.
        feedback: pairs of an output's position and an input's name: the value may stay on the GPU
            from one call of the method to the next, as the token that was chosen. For a method
            that is one delegate.
    """

    operator_allowlist: tuple[str, ...] | None = None
    operator_blocklist: tuple[str, ...] = ()
    module_allowlist: tuple[str, ...] | None = None
    module_blocklist: tuple[str, ...] = ()
    call_cost_us: float = CALL_COST_US
    external_constants: str = ""
    share_state: str = ""
    matrix_units: str = ""
    feedback: tuple[tuple[int | str, str], ...] = ()

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError, naming the option."""
        for name in ("operator_allowlist", "module_allowlist"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _names(name, getattr(self, name)))
        for name in ("operator_blocklist", "module_blocklist"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        cost = self.call_cost_us
        if isinstance(cost, bool) or not isinstance(cost, (int, float)):
            raise TypeError(f"call_cost_us: expected a number, got {type(cost).__name__}")
        if not 0 <= cost < float("inf"):
            raise ValueError(f"call_cost_us: expected a time in microseconds, got {cost}")
        object.__setattr__(self, "call_cost_us", float(cost))
        if not isinstance(self.external_constants, str):
            raise TypeError(
                f"external_constants: expected a name, got {type(self.external_constants).__name__}"
            )
        if set(self.external_constants) & set("/\\"):
            raise ValueError(f"external_constants: a name, no path: {self.external_constants!r}")

        if not isinstance(self.share_state, str):
            raise TypeError(f"share_state: expected a name, got {type(self.share_state).__name__}")
        if self.matrix_units not in ("", *MATRIX_MODES):
            raise ValueError(
                f"matrix_units: one of {', '.join(MATRIX_MODES)} or nothing, got "
                f"{self.matrix_units!r}"
            )
        pairs = tuple(tuple(pair) for pair in self.feedback)
        for pair in pairs:
            if [type(part) for part in pair] not in ([int, str], [str, str]):
                raise TypeError(f"feedback: expected (output, name of an input), got {pair!r}")
        object.__setattr__(self, "feedback", pairs)

    # -- what the partitioner asks -----------------------------------------------------------

    def reason_against(self, op: str, module: str) -> str | None:
        """Why these options keep an operator of a module off the delegate, None when they do
        not."""
        if self.operator_allowlist is not None and not _matches(op, self.operator_allowlist):
            return "not in operator_allowlist"
        if _matches(op, self.operator_blocklist):
            return "in operator_blocklist"
        if self.module_allowlist is not None and not _within(module, self.module_allowlist):
            return "its module is not in module_allowlist"
        if _within(module, self.module_blocklist):
            return "its module is in module_blocklist"
        return None

    # -- as CompileSpecs ---------------------------------------------------------------------

    def to_specs(self) -> list[CompileSpec]:
        """One CompileSpec for each option that differs from its default."""
        return [
            CompileSpec(field.name, json.dumps(getattr(self, field.name)).encode())
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]

    @classmethod
    def from_specs(cls, specs: Iterable[CompileSpec]) -> CompileOptions:
        """The options that :meth:`to_specs` wrote.

        Raises ValueError for a key that is no option, one that is given twice, or a value that
        cannot be read; TypeError and ValueError for a value that does not fit.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for spec in specs:
            if spec.key not in known:
                names = ", ".join(sorted(known))
                raise ValueError(f"no compile option {spec.key!r}; there are: {names}")
            if spec.key in values:
                raise ValueError(f"compile option {spec.key!r} is given twice")
            try:
                values[spec.key] = json.loads(bytes(spec.value))
            except ValueError as error:
                raise ValueError(f"compile option {spec.key!r} is no JSON: {error}") from error
        return cls(**values)


def _names(option: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{option}: expected a list of names, got {value!r}")
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"{option}: expected names, got {name!r}")
        if not name:
            raise ValueError(f"{option}: an empty name")
    return tuple(value)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _within(module: str, patterns: Sequence[str]) -> bool:
    """Whether the module or one that it is part of matches."""
    parts = module.split(".")
    return any(_matches(".".join(parts[:k]), patterns) for k in range(1, len(parts) + 1))
