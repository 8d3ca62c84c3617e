"""Who may import whom, as docs/DESIGN.md draws it; read from the source, not from a run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("backend", "ops", "runtime", "scripts", "serialization")

#: Folder -> our packages it may import, and foreign ones beside the standard library.
ALLOWED = {
    "serialization": ({"serialization"}, {"numpy", "flatbuffers"}),
    "ops": ({"ops", "serialization"}, {"numpy", "torch", "jinja2"}),
    "backend": (
        {"backend", "ops", "serialization"},
        {"numpy", "torch", "executorch", "sympy"},
    ),
    "runtime": (
        {"runtime", "serialization"},
        {"numpy", "flatbuffers", "wgpu", "wgpudawn", "ml_dtypes"},
    ),
}
#: The one door between the runtime and ExecuTorch's own.
BRIDGE = ("executorch_bridge.py", "bridge/")


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, also inside functions."""
    package = ["executorch_wgpu", *path.relative_to(ROOT).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def files(folder: str) -> list[Path]:
    return [p for p in sorted((ROOT / folder).rglob("*.py")) if "generated" not in p.parts]


@pytest.mark.parametrize("folder", ALLOWED)
def test_arrows_run_one_way(folder):
    import sys

    ours, foreign = ALLOWED[folder]
    assert files(folder)
    for path in files(folder):
        relative = str(path.relative_to(ROOT / folder))
        if folder == "runtime" and relative.startswith(BRIDGE):
            continue
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "executorch_wgpu":
                assert len(parts) > 1 and parts[1] in ours, f"{path}: {name}"
            elif parts[0] not in sys.stdlib_module_names:
                assert parts[0] in foreign, f"{path}: {name}"


def test_every_package_is_in_the_wheel():
    """A folder with Python in it is listed in pyproject, what is .wgsl or compiled on
    first use is data."""
    import tomllib

    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = set(setup["packages"])
    for folder in OURS:
        for init in (ROOT / folder).rglob("__init__.py"):
            name = ".".join(["executorch_wgpu", *init.parent.relative_to(ROOT).parts])
            assert name in listed, f"{name} is missing from [tool.setuptools] packages"
        for shader in (ROOT / folder).rglob("*.wgsl"):
            name = ".".join(["executorch_wgpu", *shader.parent.relative_to(ROOT).parts])
            assert "*.wgsl" in setup["package-data"].get(name, []), name
        for source in [p for kind in ("c", "cpp") for p in (ROOT / folder).rglob(f"*.{kind}")]:
            name = ".".join(["executorch_wgpu", *source.parent.relative_to(ROOT).parts])
            assert source.name in setup["package-data"].get(name, []), source
