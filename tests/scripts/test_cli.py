"""The command line: help, version, errors in one line, and what needs no torch and no GPU."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pte_maker import make_program, make_pte

from executorch_wgpu.scripts.cli import main
from executorch_wgpu.serialization.errors import InvalidProgramError
from executorch_wgpu.serialization.writer import serialize

Cli = Callable[..., Result]

COMMANDS = ("devices", "inspect", "bench")


def test_help(cli: Cli) -> None:
    result = cli("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert command in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_version(cli: Cli) -> None:
    result = cli("--version")
    assert result.exit_code == 0
    assert importlib.metadata.version("executorch-wgpu") in result.output


def test_console_command_is_installed() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="executorch-wgpu")
    assert entry.load() is main


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from executorch_wgpu.scripts.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'executorch', 'wgpu', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("command", ["inspect", "bench"])
def test_missing_file(cli: Cli, command: str, tmp_path: Path) -> None:
    result = cli(command, tmp_path / "none.pte")
    assert result.exit_code == 2
    assert "does not exist" in result.output


@pytest.mark.parametrize("command", ["inspect", "bench"])
@pytest.mark.parametrize("content", [b"", b"GIF89a, and not a program at all" * 9])
def test_not_a_pte(cli: Cli, command: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.pte"
    path.write_bytes(content)
    result = cli(command, path)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1, "one line, no traceback"
    assert "not a .pte file" in result.output


def test_truncated_file(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.pte"
    path.write_bytes(tiny.read_bytes()[:-200])
    result = cli("inspect", path)
    assert result.exit_code == 1
    assert "truncated" in result.output


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "wrong.pte"
    path.write_bytes(b"no")
    with pytest.raises(InvalidProgramError):
        CliRunner().invoke(main, ["--debug", "inspect", str(path)], catch_exceptions=False)


# -- inspect ---------------------------------------------------------------------------------


def test_inspect_text(cli: Cli, tiny: Path) -> None:
    result = cli("inspect", tiny)
    assert result.exit_code == 0, result.output
    for part in (
        "method forward: 1 x WgpuBackend",
        "written by         tests, format version 1",
        "nothing beyond WebGPU's defaults",
        "size of x in dimension 0",
        "input_pos[0]",
        "layers.0.cache",
        "wgpu/weight",
        "input_pos + S <= 32",
        "layers.0/column_sums",
        "decode: S == 1",
        "ceil_div(S * 4, 64)",
        "POSITION=input_pos",
    ):
        assert part in result.output


def test_inspect_json(cli: Cli, tiny: Path) -> None:
    result = cli("inspect", tiny, "--json")
    assert result.exit_code == 0, result.output
    described = json.loads(result.output)
    (method,) = described["methods"]
    assert method["cpu_operators"] == []
    (delegate,) = method["delegates"]
    listed = delegate["dispatch_list"]
    assert delegate["payload_bytes"] == len(serialize(make_program()))
    assert listed["inputs"][0]["shape"] == ["S", "4"]
    assert listed["inputs"][0]["shape_max"] == [8, 4]
    assert listed["inputs"][1] == {
        "name": "input_pos",
        "kind": "tensor",
        "read_by_gpu": False,
        "dtype": "i64",
        "shape": ["1"],
        "shape_max": [1],
    }
    assert listed["live_scalars"][1] == {
        "name": "input_pos",
        "source": "input_pos[0]",
        "lo": 0,
        "hi": 31,
    }
    assert listed["state"][0]["shape"] == ["32", "4"]
    assert listed["state"][0]["bytes"] == listed["bytes"]["state"] == 512
    assert listed["constants"] == [{"name": "layers.0.weight", "bytes": 16, "key": "wgpu/weight"}]
    assert listed["counts"]["dispatches"] == 3
    assert listed["counts"]["dispatches_shortest"] == 2
    append = listed["steps"][0][0]["dispatches"][0]
    kernel = listed["kernels"][append["kernel"]]
    assert kernel["params"] == {"COUNT": "S * 4", "WIDTH": 4, "POSITION": "input_pos"}
    assert kernel["workgroup_size"] == [64, 1, 1]
    assert append["bindings"][1] == {
        "buffer": "layers.0.cache",
        "kind": "state",
        "access": "read_write",
        "offset": 0,
        "bytes": 512,
    }
    assert append["debug_handle"] == 7


@pytest.mark.parametrize("label", ["layers.0/append", "append"])
def test_inspect_wgsl(cli: Cli, tiny: Path, label: str) -> None:
    result = cli("inspect", tiny, "--wgsl", label)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("// layers.0/append\n")
    assert "// override POSITION = input_pos" in result.output
    assert make_program().shaders[0].wgsl in result.output


def test_inspect_wgsl_of_no_dispatch(cli: Cli, tiny: Path) -> None:
    result = cli("inspect", tiny, "--wgsl", "nowhere")
    assert result.exit_code == 1
    assert "layers.0/append, layers.0/column_sums" in result.output


def test_inspect_unknown_method(cli: Cli, tiny: Path) -> None:
    result = cli("inspect", tiny, "--method", "backward")
    assert result.exit_code == 1
    assert "no method 'backward'" in result.output


def test_inspect_another_backend(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "other.pte"
    path.write_bytes(make_pte(b"its own format", backend="OtherBackend"))
    result = cli("inspect", path)
    assert result.exit_code == 0, result.output
    assert "another backend's" in result.output


def test_inspect_corrupt_dispatch_list(cli: Cli, tmp_path: Path) -> None:
    payload = bytearray(serialize(make_program()))
    payload[len(payload) // 2] ^= 1
    path = tmp_path / "corrupt.pte"
    path.write_bytes(make_pte(bytes(payload)))
    result = cli("inspect", path)
    assert result.exit_code == 1
    assert "corrupted" in result.output


def test_inspect_without_torch_and_without_wgpu(tiny: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'executorch', 'wgpu', 'wgpudawn'):\n"
        "    sys.modules[name] = None\n"
        "from executorch_wgpu.scripts.cli import main\n"
        "main(['inspect', sys.argv[1]])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tiny)], check=True, capture_output=True, text=True
    )
    assert "layers.0/append" in ran.stdout
