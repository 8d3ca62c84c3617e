"""What a benchmark was run with: it stands in every JSON that one writes."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def about(device: Any) -> dict[str, str | None]:
    """The adapter, its driver, the implementation of WebGPU and its version, ours, and the commit
    of this source where it is a git checkout ("+" behind it: with changes)."""
    from executorch_wgpu.runtime.device import is_native

    adapter = device.adapter
    native = is_native(device)
    return {
        "adapter": adapter.summary,
        "driver": str(adapter.info.get("description", "")),
        "implementation": "wgpu-native" if native else "Dawn",
        "implementation_version": _version("wgpu" if native else "wgpudawn"),
        "executorch_wgpu": _version("executorch-wgpu"),
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    folder = Path(__file__).resolve().parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short=12", "HEAD")
    return commit and commit + ("+" if git("status", "--porcelain") else "")
