"""The schema, the classes generated from it and the dataclasses say the same."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from executorch_wgpu.serialization import dispatch_list as dl
from executorch_wgpu.serialization.generated import schema_generated as fb
from executorch_wgpu.serialization.reader import BINDING_DTYPE, EXPR_DTYPE
from executorch_wgpu.serialization.writer import FILE_IDENTIFIER

ROOT = Path(__file__).parents[2]
TABLES = [
    dl.SymInt, dl.Expr, dl.Buffer, dl.Tensor, dl.Shader, dl.Param, dl.Kernel, dl.Binding,
    dl.Dispatch, dl.Route, dl.Step, dl.Check, dl.Input, dl.Output, dl.Feedback, dl.Program,
]  # fmt: skip
ENUMS = [
    dl.DType, dl.SymSource, dl.ExprOp, dl.BufferKind, dl.ParamKind, dl.Access, dl.ValueKind
]  # fmt: skip


def test_generated_classes_are_current(tmp_path: Path) -> None:
    if shutil.which("flatc") is None:
        pytest.skip("needs flatc")
    subprocess.run([ROOT / "scripts" / "generate_schema", tmp_path], check=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["__init__.py", "pte_schema_generated.py", "schema_generated.py"]
    for name in names:
        committed = (ROOT / "serialization" / "generated" / name).read_text()
        assert (tmp_path / name).read_text() == committed, f"{name}: run scripts/generate_schema"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_fields(table: type) -> None:
    """Each field of a dataclass has an accessor in the generated class of that name."""
    generated = getattr(fb, table.__name__)
    for field in fields(table):
        if field.name == "format_version":
            continue  # in the header in front of the flatbuffer
        accessor = "".join(part.capitalize() for part in field.name.split("_"))
        assert hasattr(generated, accessor), f"{table.__name__}.{field.name}"


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_enums(enum: type) -> None:
    generated = {k: v for k, v in vars(getattr(fb, enum.__name__)).items() if k.isupper()}
    assert generated == {member.name: member.value for member in enum}  # type: ignore[attr-defined]


def test_structs() -> None:
    assert fb.Expr.SizeOf() == EXPR_DTYPE.itemsize
    assert fb.Binding.SizeOf() == BINDING_DTYPE.itemsize


def test_identifier() -> None:
    schema = (ROOT / "serialization" / "schema.fbs").read_text()
    assert f'file_identifier "{FILE_IDENTIFIER.decode()}";' in schema


@pytest.mark.parametrize("name", ["ScalarType", "KernelTypes", "InstructionArguments"])
def test_pte_schema_matches_executorch(name: str) -> None:
    """Enum and union numbers against the schema in ExecuTorch's wheel, if it is there."""
    executorch = pytest.importorskip("executorch")
    from executorch_wgpu.serialization.generated import pte_schema_generated as pte

    folder = Path(next(iter(executorch.__path__))) / "schema"
    text = "".join((folder / f).read_text() for f in ("scalar_type.fbs", "program.fbs"))
    text = re.sub(r"//[^\n]*", "", text)
    body = re.search(rf"\b(?:enum|union) {name}\b[^{{]*\{{([^}}]*)\}}", text)
    assert body is not None
    number = 0 if "=" in body[1] else 1  # unions count from 1, without saying so
    for item in filter(None, (part.strip() for part in body[1].split(","))):
        member, _, value = (part.strip() for part in item.partition("="))
        assert getattr(pte, name).__dict__[member] == int(value or number), member
        number += 1


@pytest.mark.parametrize(
    "table",
    ["Program", "ExecutionPlan", "Tensor", "BackendDelegate", "Chain", "ExtraTensorInfo",
     "DataSegment", "NamedData", "SubsegmentOffsets", "KernelCall", "DelegateCall", "MoveCall",
     "JumpFalseCall", "CompileSpec", "Operator", "BackendDelegateDataReference"],
)  # fmt: skip
def test_pte_slots_match_executorch(table: str) -> None:
    """Our fields are a prefix of ExecuTorch's: slots are numbered by position."""
    executorch = pytest.importorskip("executorch")

    def slots(text: str) -> list[str]:
        body = re.search(rf"\btable {table} \{{([^}}]*)\}}", re.sub(r"//[^\n]*", "", text))
        assert body is not None
        return re.findall(r"(\w+)\s*:", body[1])

    theirs = slots((Path(next(iter(executorch.__path__))) / "schema" / "program.fbs").read_text())
    ours = slots((ROOT / "serialization" / "pte_schema.fbs").read_text())
    assert ours == theirs[: len(ours)]
