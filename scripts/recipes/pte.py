"""From a whole model to its ``.pte``: one delegate a method, constants methods, a tokenizer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)

from executorch_wgpu.backend import WgpuPartitioner
from executorch_wgpu.backend.options import CompileOptions
from executorch_wgpu.backend.partitioner import SplitMethodError, explain_program
from executorch_wgpu.scripts.progress import Progress, WriteProgress
from executorch_wgpu.scripts.recipes.checkpoints import Checkpoint
from executorch_wgpu.scripts.recipes.packed import Packer
from executorch_wgpu.scripts.recipes.whole import METHODS, Llama, build, export_methods
from executorch_wgpu.scripts.text.bundle import TextBundle

#: As the other named data: a multiple of a page is not needed, of a word it is.
_ALIGNMENT = 16


#: The group in which methods share their caches.
STATE_GROUP = "text"


class NotWhollyDelegatedError(ValueError):
    """A part of a model would run on the CPU; the message says which operators, and why."""


def constant_methods(model: Llama, text: TextBundle | None = None) -> dict[str, Any]:
    """What ExecuTorch's llama exporter writes beside ``forward``, and its runners read."""
    args = model.params
    methods: dict[str, Any] = {
        "get_max_seq_len": args.max_seq_len,
        "get_max_context_len": args.max_context_len,
        "get_n_layers": args.n_layers,
        "get_vocab_size": args.vocab_size,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": True,
        "enable_dynamic_shape": True,
    }
    if text is not None and text.bos_id is not None:
        methods["get_bos_id"] = text.bos_id
    if text is not None and text.eos_ids:
        methods["get_eos_ids"] = list(text.eos_ids)
    return methods


def lower(
    model: Llama,
    text: TextBundle | None = None,
    progress: Progress | None = None,
    options: CompileOptions | None = None,
    methods: Sequence[str] = METHODS,
) -> ExecutorchProgramManager:
    """Export and lower ``methods`` of ``model``, its tokenizer with them. Weights are in the
    result once, and the methods have their caches in common.

    Raises NotWhollyDelegatedError.
    """
    with _step(progress, "export"):
        exported = export_methods(model, methods)
    with _step(progress, "lower"):
        try:
            lowered = to_edge_transform_and_lower(
                exported,
                partitioner={
                    name: [WgpuPartitioner(_method_options(name, options))] for name in exported
                },
                constant_methods=constant_methods(model, text),
            )
        except SplitMethodError as error:
            raise NotWhollyDelegatedError(str(error)) from error
        for name in exported:
            _check_whole(lowered, name, model, _method_options(name, options))
        for key, data in ({} if text is None else text.named_data()).items():
            # ExecuTorch has no other way to put data into a file than through its delegates.
            lowered._named_data_store.add_named_data(key, data, alignment=_ALIGNMENT)
        return lowered.to_executorch()


def _method_options(name: str, options: CompileOptions | None) -> CompileOptions:
    """The options of a method: one group of caches, and the token that ``generate`` chooses may
    stay on the GPU as the next call's."""
    own: dict[str, Any] = {"share_state": STATE_GROUP}
    if name == "generate":
        own["feedback"] = ((0, "tokens"),)
    return dataclasses.replace(options or CompileOptions(), **own)


def _check_whole(
    lowered: EdgeProgramManager, name: str, model: Llama, options: CompileOptions | None
) -> None:
    """Raise NotWhollyDelegatedError unless the method is one call of a delegate."""
    calls = [n for n in lowered.exported_program(name).graph.nodes if n.op == "call_function"]
    delegates = [n for n in calls if "call_delegate" in str(n.target)]
    others = [n for n in calls if n not in delegates and "getitem" not in str(n.target)]
    if len(delegates) == 1 and not others:
        return
    # The graph is used up: the reasons take a new one.
    rows = explain_program(export_methods(model, [name])[name], options).on_cpu
    reasons = "\n".join(f"  {row.count} x {row.op}: {row.reason}" for row in rows)
    raise NotWhollyDelegatedError(
        f"{name}: {len(delegates)} delegates and {len(others)} operators outside them; "
        f"a whole model is one delegate. On the CPU would be\n{reasons}"
    )


def write(
    program: ExecutorchProgramManager, path: str | Path, progress: Progress | None = None
) -> None:
    """Write the file, without a copy of its content in memory. Until it is whole it has another
    name, so that a ``.pte`` that exists is one that is complete.

    Raises OSError.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            if progress is None:
                program.write_to_file(file)
            else:
                total = len(program._pte_data)
                with progress.step("write", total, "bytes") as advance:
                    program.write_to_file(WriteProgress(file, advance))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def export_checkpoint(
    checkpoint: Checkpoint,
    path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    kv_dtype: torch.dtype = torch.float32,
    max_seq_len: int = 128,
    max_context: int = 2048,
    all_logits: bool = False,
    quantize: str = "none",
    embedding_quantize: str = "none",
    matrix_units: str = "",
    methods: Sequence[str] = METHODS,
    progress: Progress | None = None,
) -> None:
    """A ``.pte`` of a checkpoint.

    Args:
        checkpoint: see ``recipes.checkpoints``.
        path: of the file.
        dtype: storage of matrices; None: as in the checkpoint, f32 where it is quantized.
        kv_dtype: storage of KV caches.
        max_seq_len: most tokens of one call.
        max_context: positions of the KV caches.
        all_logits: ``forward`` gives the logits of every token instead of those of the last.
        quantize: of linear layers: "none", "keep" (blocks of a GGUF file stay what they are) or a
            scheme of ``packed.parse``.
        embedding_quantize: of the embedding table: the same. A table that is the output matrix,
            too, stays one where both are quantized alike.
        matrix_units: as the option of this name in ``CompileOptions``.
        methods: without ``generate``, the host chooses tokens.

    Raises NotWhollyDelegatedError, OSError, and ValueError as ``whole.build``.
    """
    model = checkpoint_model(
        checkpoint,
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_seq_len=max_seq_len,
        max_context=max_context,
        all_logits=all_logits,
        quantize=quantize,
        embedding_quantize=embedding_quantize,
        progress=progress,
    )
    options = CompileOptions(matrix_units=matrix_units)
    write(lower(model, checkpoint.text, progress, options, methods), path, progress)


def checkpoint_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype | None = None,
    kv_dtype: torch.dtype = torch.float32,
    max_seq_len: int = 128,
    max_context: int = 2048,
    all_logits: bool = False,
    quantize: str = "none",
    embedding_quantize: str = "none",
    progress: Progress | None = None,
) -> Llama:
    """The model that :func:`export_checkpoint` exports. Raises ValueError as ``whole.build``."""
    args = checkpoint.model_args(
        max_seq_len=min(max_seq_len, max_context),
        max_context_len=max_context,
        generate_full_logits=all_logits,
    )

    def track(names: list[str]) -> Iterable[str]:
        if progress is None:
            return names
        return progress.over("load", names, len(names), "weights")

    packer = Packer(quantize, embedding_quantize)
    return build(
        args,
        checkpoint.weights,
        dtype=dtype or checkpoint.dtype,
        kv_dtype=kv_dtype,
        pack=packer,
        dynamic=packer.dynamic,
        track=track,
    )


def dispatch_lists(
    model: Llama, methods: Sequence[str] = METHODS, options: CompileOptions | None = None
) -> dict[str, bytes]:
    """The dispatch list of each method as a file has it, without the weights: to look at, or to
    measure over others of the same sizes."""
    from executorch.exir import EdgeCompileConfig, to_edge

    from executorch_wgpu.backend.partitioner import named_feedback
    from executorch_wgpu.backend.preprocess import lower_program
    from executorch_wgpu.serialization.writer import serialize

    config = EdgeCompileConfig(_check_ir_validity=False)
    edges = to_edge(export_methods(model, methods), compile_config=config)
    found = {}
    for name in edges.methods:
        program = edges.exported_program(name)
        options = named_feedback(program, _method_options(name, options))
        found[name] = serialize(lower_program(program, options).program)
    return found


@contextlib.contextmanager
def _step(progress: Progress | None, name: str) -> Iterator[None]:
    if progress is None:
        yield
    else:
        with progress.step(name):
            yield
