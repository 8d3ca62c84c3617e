"""The package works with numpy and flatbuffers alone, and importing it is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "serialization"

BLOCK_OTHERS = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "executorch", "wgpu", "jinja2", "hypothesis"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK_OTHERS + code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_without_torch() -> None:
    run(
        """
from executorch_wgpu import serialization
for name in serialization.__all__:
    assert getattr(serialization, name) is not None
from executorch_wgpu.serialization import Program, deserialize, serialize, verify, PteFile
assert callable(verify)
assert deserialize(serialize(Program(producer="x"))) == Program(producer="x")
try:
    PteFile(b"nonsense")
except serialization.InvalidProgramError:
    pass
"""
    )


def test_the_dataclasses_need_neither_numpy_nor_flatbuffers() -> None:
    run(
        """
from executorch_wgpu.serialization import Program, verify
verify(Program(producer="x"))
assert "numpy" not in sys.modules and "flatbuffers" not in sys.modules
"""
    )


def test_no_name_is_shadowed_by_a_submodule() -> None:
    """A submodule takes its package's attribute of the same name when it is first imported."""
    run(
        """
import pkgutil
from executorch_wgpu import serialization
for module in pkgutil.iter_modules(serialization.__path__):
    __import__(f"executorch_wgpu.serialization.{module.name}")
for name in serialization.__all__:
    assert type(getattr(serialization, name)) is not type(sys), name
"""
    )


def test_imports() -> None:
    """Standard library, numpy, flatbuffers and the package itself; nothing else."""
    allowed = {*sys.stdlib_module_names, "numpy", "flatbuffers"}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"


def test_files_stay_short() -> None:
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path.name
