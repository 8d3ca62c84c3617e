"""An operator of torchao or quantized_decomposed: on the device, and as PyTorch computes it."""

from __future__ import annotations

import torch

from harness import assert_close, run_op


def run(device, name, args):
    """(result, expected) of an operator, its arguments in the order of the schema."""
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    names = [argument.name for argument in op._schema.arguments]
    filled = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    named = {**filled, **dict(zip(names, args, strict=False))}
    want = op(*args)
    if not isinstance(want, torch.Tensor):  # scales of some are float64
        want = [w.float() if w.dtype is torch.float64 else w for w in want]
    return run_op(device, name, named, want), want


def same(got, want):
    wanted = [want] if isinstance(want, torch.Tensor) else want
    for one, expected in zip(got, wanted, strict=True):
        if expected.dtype.is_floating_point:
            assert_close(one, expected, abs_tol=1e-30, rel_tol=1e-6)
        else:
            assert torch.equal(torch.as_tensor(one), expected)
