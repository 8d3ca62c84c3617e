"""Quantizes modules with PT2E, as users do."""

from __future__ import annotations

from typing import Any

import torch
from torchao.quantization.pt2e import allow_exported_model_train_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e


def quantized(
    model: torch.nn.Module,
    inputs: tuple[Any, ...],
    quantizer: Any,
    dynamic_shapes: Any = None,
    *,
    qat: bool = False,
) -> torch.nn.Module:
    """The converted model, calibrated on ``inputs``."""
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic_shapes)
    prepared = (prepare_qat_pt2e if qat else prepare_pt2e)(program.module(), quantizer)
    prepared(*inputs)
    module = convert_pt2e(prepared)
    allow_exported_model_train_eval(module)
    return torch.nn.Sequential(module)
