"""WgpuBackend: what ExecuTorch calls with each partition."""

from __future__ import annotations

from functools import partial

import numpy as np
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from executorch_wgpu.backend.graph_reader import GraphReader
from executorch_wgpu.backend.lowering import LoweredProgram, lower_chain
from executorch_wgpu.backend.named_data import ArrayData
from executorch_wgpu.backend.options import CompileOptions
from executorch_wgpu.backend.passes import run_passes
from executorch_wgpu.serialization.dispatch_list import BufferKind
from executorch_wgpu.serialization.origins import debug_handle_map
from executorch_wgpu.serialization.writer import serialize

#: Alignment in bytes of each constant in the file: a page of GPU upload, and enough for any view.
DATA_ALIGNMENT = 64


def lower_program(
    program: ExportedProgram, options: CompileOptions | None = None
) -> LoweredProgram:
    """An exported program in edge dialect, all of whose nodes are supported, as a dispatch list.
    Raises what ``GraphReader.chain`` and ``lower_chain`` raise, and ValueError for a feedback pair
    whose output or input is not the delegate's."""
    chain = GraphReader(program).chain()
    if options is not None:
        chain.share_state = options.share_state
        chain.matrix_units = options.matrix_units
        chain.feedback = _feedback(program, options)
    return lower_chain(run_passes(chain))


def _feedback(program: ExportedProgram, options: CompileOptions) -> list[tuple[int, int]]:
    """The feedback pairs by position among the delegate's outputs and inputs."""
    outputs = [str(name) for name in program.graph_signature.user_outputs]
    inputs = [str(name) for name in program.graph_signature.user_inputs]
    pairs = []
    for output, name in options.feedback:
        if output not in outputs or name not in inputs:
            raise ValueError(
                f"feedback of {output} to {name}: no such pair: the delegate gives "
                f"{', '.join(outputs) or 'nothing'} and takes {', '.join(inputs) or 'nothing'}"
            )
        pairs.append((outputs.index(str(output)), inputs.index(name)))
    return pairs


class WgpuBackend(BackendDetails):
    """The backend; its name is the delegate's id in the ``.pte``."""

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        """The program itself: lowering only reads it, and a copy would hold all weights again."""
        return edge_program

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Lower one partition: the blob is the dispatch list, weights go to the named data."""
        options = CompileOptions.from_specs(compile_specs)
        lowered = lower_program(edge_program, options)
        # Weights are read when the file is written. Initial values of states are copied: whoever
        # runs the module in between changes them.
        states = {b.data_key for b in lowered.program.buffers if b.kind is BufferKind.STATE}
        store = NamedDataStore()
        for key in lowered.data:
            read = partial(lowered.data.__getitem__, key)
            if key in states:
                read = partial(_same, lowered.data[key].copy())
            store.add_named_data(
                key,
                ArrayData(read, lowered.data.size(key), identity=key),
                alignment=DATA_ALIGNMENT,
                external_tag=options.external_constants or None,
            )
        return PreprocessResult(
            processed_bytes=serialize(lowered.program),
            debug_handle_map=debug_handle_map(lowered.program),
            data_store_output=store.get_named_data_store_output(),
        )


def _same(array: np.ndarray) -> np.ndarray:
    return array
