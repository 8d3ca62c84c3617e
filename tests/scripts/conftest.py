"""A command line to run in-process, and a small file to run it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pte_maker import tiny_pte

from executorch_wgpu.scripts.cli import main


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.pte`` of two dispatches with a cache; see pte_maker.py."""
    path = tmp_path_factory.mktemp("scripts") / "tiny.pte"
    path.write_bytes(tiny_pte())
    return path


@pytest.fixture
def cli() -> Callable[..., Result]:
    """Runs ``executorch-wgpu`` with the given words."""

    def run(*words: object) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words])

    return run
