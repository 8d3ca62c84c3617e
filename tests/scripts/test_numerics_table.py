"""The table of what drivers do."""

from __future__ import annotations

import json

from executorch_wgpu.scripts import numerics

#: One more: how many rounds of a loop.
ROWS = len(numerics.CASES) + len(numerics.COPIES) + len(numerics.FUNCTIONS) + 1


def test_a_column_of_this_adapter(tmp_path, capsys):
    file = tmp_path / "column.json"
    assert numerics.main(["--json", str(file)]) == 0
    [(name, column)] = json.loads(file.read_text()).items()
    assert len(column) == ROWS
    # What kernels do rely on: bits that are only moved arrive.
    assert {column[f"f32 through {way}"] for way in numerics.COPIES} == {"kept"}
    assert numerics.parsed(capsys.readouterr().out) == {name: column}


def test_columns_join(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"text\n{numerics.BEGIN}\n{numerics.END}\nmore\n")
    monkeypatch.setattr(numerics, "PAGE", page)
    for name, value in (("a", "1"), ("b", "2"), ("a", "3")):
        (tmp_path / "x.json").write_text(json.dumps({name: {"row": value}}))
        numerics.main(["--merge", str(tmp_path / "x.json")])
    assert numerics.parsed(page.read_text()) == {"a": {"row": "3"}, "b": {"row": "2"}}
    assert page.read_text().startswith("text\n") and page.read_text().endswith("\nmore\n")


def test_the_page_has_every_row():
    columns = numerics.parsed(numerics.PAGE.read_text().split(numerics.BEGIN)[1])
    assert len(columns) >= 3
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(columns, ROWS)
