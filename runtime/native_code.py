"""Our own C: small files beside their Python, each with a way to do without.

They are compiled on first use, in a tenth of a second, into the cache that the bridge uses too.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .bridge.compile import cache_folder, find_compiler
from .errors import WgpuDelegateError

logger = logging.getLogger("executorch_wgpu")


def library_of(source: Path, declarations: str, without: str) -> tuple[Any, Any] | None:
    """A cffi pair (FFI, library) of a C file, None where it cannot be had: on Windows, without a
    compiler, or when building fails.

    Args:
        declarations: of what is called, for cffi.
        without: what happens then, for the log.
    """
    try:
        path = _built(source)
    except (OSError, subprocess.SubprocessError, WgpuDelegateError) as error:
        logger.info("%s was not built, so %s: %s", source.name, without, error)
        return None
    if path is None:
        logger.info("no compiler for %s, so %s", source.name, without)
        return None
    ffi: Any = importlib.import_module("cffi").FFI()
    ffi.cdef(declarations)
    try:
        return ffi, ffi.dlopen(str(path))
    except OSError as error:
        logger.info("%s cannot be loaded, so %s: %s", path, without, error)
        return None


def address_of(ffi: Any, bindings: Any, name: str) -> Any:
    """A function of wgpu-native as ``void *`` of ``ffi``. ``bindings``: wgpu-py's ``_ffi``."""
    function = bindings.ffi.addressof(bindings.lib, name)
    return ffi.cast("void *", int(bindings.ffi.cast("uintptr_t", function)))


def _built(source: Path) -> Path | None:
    """The compiled file, None where there is no compiler.

    Raises:
        OSError, subprocess.SubprocessError, WgpuDelegateError: building failed.
    """
    if sys.platform not in ("linux", "darwin"):
        return None
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = cache_folder() / source.stem
    path = folder / f"{source.stem}-{digest}-{os.uname().machine}.so"
    if path.is_file():
        return path
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="executorch-wgpu-"))
        path = folder / path.name
    descriptor, temporary = tempfile.mkstemp(suffix=".so", prefix=".build-", dir=folder)
    os.close(descriptor)
    kind = "-dynamiclib" if sys.platform == "darwin" else "-shared"
    try:
        subprocess.run(
            [*compiler, "-x", "c", "-O1", "-fPIC", kind, str(source), "-o", temporary],
            check=True,
            capture_output=True,
        )
        # Into place at once: other processes may be building, or be killed while they do.
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return path
