"""Writes small real ``.pte`` files with ExecuTorch: ``python make_pte.py FOLDER``.

In a process of its own: importing ExecuTorch takes seconds, and the tests that read the files are
to see no torch. The backend here only stores bytes.
"""

import sys
from pathlib import Path

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_partitions_from_list_of_nodes,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.fx.passes.operator_support import OperatorSupportBase

BLOB = bytes(range(256)) * 5
WEIGHT = b"\x07" * 4096


class PteTestBackend(BackendDetails):
    """Not called WgpuBackend: ExecuTorch finds backends by the name of the class."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        store = NamedDataStore()
        store.add_named_data("layers.0.weight", WEIGHT, alignment=64)
        store.add_named_data("layers.1.weight", b"short", alignment=16)
        return PreprocessResult(
            processed_bytes=BLOB, data_store_output=store.get_named_data_store_output()
        )


class PteTestPartitioner(Partitioner):
    """Delegates every call, or every one whose target's name holds ``only``."""

    def __init__(self, only=""):
        self.only = only
        self.delegation = DelegationSpec("PteTestBackend", [CompileSpec("level", b"\x03")])

    def partition(self, exported_program):
        class Support(OperatorSupportBase):
            def is_node_supported(_, submodules, node):
                return node.op == "call_function" and self.only in str(node.target)

        tags = {}
        partitions = generate_partitions_from_list_of_nodes(
            exported_program.graph_module, op_support=Support()
        )
        for partition in partitions:
            for node in partition.nodes:
                tag = f"tag{partition.id}"
                node.meta["delegation_tag"] = tag
                tags[tag] = self.delegation
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


class Simple(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.arange(6, dtype=torch.float32).reshape(2, 3))

    def forward(self, x, y):
        return x * self.w + y, y - 1


class Extras(torch.nn.Module):
    """Returns an input, a result, a constant and an int beside each other."""

    def __init__(self):
        super().__init__()
        self.register_buffer("c", torch.tensor([1.5, -2.5]))

    def forward(self, x, y):
        return y, x + y, self.c, 7, x - y


class Permute(torch.nn.Module):
    def forward(self, x):
        return x.permute(1, 0, 2)


class Scaled(torch.nn.Module):
    def forward(self, x, n):
        return x * n


class Dynamic(torch.nn.Module):
    def forward(self, x):
        return x + 1


def save(name, module, args, folder, partitioner=None, dynamic=None, config=None, methods=None):
    exported = torch.export.export(module, args, dynamic_shapes=dynamic, strict=True)
    edge = to_edge_transform_and_lower(
        exported,
        partitioner=[partitioner] if partitioner else None,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        constant_methods=methods,
    )
    program = edge.to_executorch(config or ExecutorchBackendConfig())
    (folder / f"{name}.pte").write_bytes(program.buffer)


def main(folder):
    two = (torch.ones(2, 3), torch.ones(2, 3))
    save("portable", Simple(), two, folder)
    save("delegated", Simple(), two, folder, PteTestPartitioner())
    save(
        "inline", Simple(), two, folder, PteTestPartitioner(),
        config=ExecutorchBackendConfig(extract_delegate_segments=False),
    )  # fmt: skip
    save("mixed", Simple(), two, folder, PteTestPartitioner("mul"))
    save("extras", Extras(), (torch.ones(2), torch.ones(2)), folder, PteTestPartitioner())
    save("lists", Permute(), (torch.ones(2, 3, 4),), folder)
    save(
        "ints", Scaled(), (torch.ones(2), 3), folder, PteTestPartitioner(),
        dynamic={"x": None, "n": torch.export.Dim.DYNAMIC},
    )  # fmt: skip
    dim = torch.export.Dim("n", min=2, max=16)
    save(
        "dynamic", Dynamic(), (torch.ones(4, 3, dtype=torch.float16),), folder,
        PteTestPartitioner(), dynamic={"x": {0: dim}},
        methods={"get_max": 128, "get_list": [1, 2, 3], "get_eps": 1e-5, "use_cache": True,
                 "get_name": "llama"},
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
