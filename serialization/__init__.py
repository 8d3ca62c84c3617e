"""The dispatch list: its dataclasses, bytes, and verifier; and a reader of ``.pte`` files.

Needs numpy and flatbuffers, nothing else; the parts that need them are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .dispatch_list import (
    BACKEND_ID,
    FORMAT_VERSION,
    LIVE_SLOTS,
    NONE,
    Access,
    Binding,
    Buffer,
    BufferKind,
    Check,
    Dispatch,
    DType,
    Expr,
    ExprOp,
    Feedback,
    Input,
    Kernel,
    Output,
    Param,
    ParamKind,
    Program,
    Route,
    Shader,
    Step,
    SymInt,
    SymSource,
    Tensor,
    ValueKind,
)
from .errors import InvalidProgramError, WgpuDelegateError

# Not lazily: once anything imports the submodule, the import system would put the module under
# the function's name. It needs the standard library only.
from .verify import verify

if TYPE_CHECKING:
    from .expressions import EvaluationError, Evaluator, evaluate, evaluate_subset, format_expr
    from .pte import PteFile, PteMethod
    from .ranges import bounds
    from .reader import deserialize
    from .requirements import device_needs
    from .wgsl_text import make_shader, shader_digest
    from .writer import serialize

_LAZY = {
    "EvaluationError": "expressions",
    "Evaluator": "expressions",
    "PteFile": "pte",
    "PteMethod": "pte",
    "bounds": "ranges",
    "deserialize": "reader",
    "device_needs": "requirements",
    "evaluate": "expressions",
    "evaluate_subset": "expressions",
    "format_expr": "expressions",
    "make_shader": "wgsl_text",
    "serialize": "writer",
    "shader_digest": "wgsl_text",
}

__all__ = [
    "BACKEND_ID",
    "FORMAT_VERSION",
    "LIVE_SLOTS",
    "NONE",
    "Access",
    "Binding",
    "Buffer",
    "BufferKind",
    "Check",
    "DType",
    "Dispatch",
    "EvaluationError",
    "Evaluator",
    "Expr",
    "ExprOp",
    "Feedback",
    "Input",
    "InvalidProgramError",
    "Kernel",
    "Output",
    "Param",
    "ParamKind",
    "Program",
    "PteFile",
    "PteMethod",
    "Route",
    "Shader",
    "Step",
    "SymInt",
    "SymSource",
    "Tensor",
    "ValueKind",
    "WgpuDelegateError",
    "bounds",
    "deserialize",
    "device_needs",
    "evaluate",
    "evaluate_subset",
    "format_expr",
    "make_shader",
    "serialize",
    "shader_digest",
    "verify",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
