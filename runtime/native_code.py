"""Our own C: small files beside their Python, each with a way to do without.

They are compiled on first use, in a tenth of a second, into the cache that the bridge uses too.
Where others may write to that, nothing of it is loaded: each process compiles for itself.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .bridge.compile import find_compiler, kept_folder, others_may_write
from .errors import WgpuDelegateError

logger = logging.getLogger("executorch_wgpu")

#: A compiler that has not come back by then is given up.
_PATIENCE_S = 60.0


def library_of(source: Path, declarations: str, without: str) -> tuple[Any, Any] | None:
    """A cffi pair (FFI, library) of a C file, None where it cannot be had: on Windows, without a
    compiler, or when building or loading fails.

    Args:
        declarations: of what is called, for cffi.
        without: what happens then, for the log.
    """
    if sys.platform not in ("linux", "darwin"):
        return None
    ffi: Any = importlib.import_module("cffi").FFI()
    ffi.cdef(declarations)
    try:
        return ffi, _library(ffi, source)
    except (OSError, subprocess.SubprocessError, WgpuDelegateError) as error:
        logger.info("%s is not used, so %s: %s", source.name, without, error)
        return None


def address_of(ffi: Any, bindings: Any, name: str) -> Any:
    """A function of wgpu-native as ``void *`` of ``ffi``. ``bindings``: wgpu-py's ``_ffi``."""
    function = bindings.ffi.addressof(bindings.lib, name)
    return ffi.cast("void *", int(bindings.ffi.cast("uintptr_t", function)))


def _library(ffi: Any, source: Path) -> Any:
    """The library of ``source``, from the cache or built now.

    Raises:
        OSError, subprocess.SubprocessError, WgpuDelegateError: it cannot be had.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    file = f"{source.stem}-{digest}-{os.uname().machine}.so"
    folder = kept_folder(source.stem)
    if folder is not None and (folder / file).is_file() and not others_may_write(folder / file):
        # One that does not load is built again: cut short, or for another C library.
        with contextlib.suppress(OSError):
            return ffi.dlopen(str(folder / file))
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError("there is no compiler")
    if folder is not None and os.access(folder, os.W_OK):
        return ffi.dlopen(str(_build(compiler, source, folder / file)))
    # In a folder that only this user can read. What is loaded needs its file no more.
    with tempfile.TemporaryDirectory(prefix="executorch-wgpu-") as alone:
        return ffi.dlopen(str(_build(compiler, source, Path(alone, file))))


def _build(compiler: Sequence[str], source: Path, path: Path) -> Path:
    """Compiles ``source`` to ``path``.

    Raises:
        OSError, subprocess.SubprocessError: it failed.
    """
    descriptor, temporary = tempfile.mkstemp(suffix=".so", prefix=".build-", dir=path.parent)
    os.close(descriptor)
    kind = "-dynamiclib" if sys.platform == "darwin" else "-shared"
    try:
        subprocess.run(
            [*compiler, "-x", "c", "-O1", "-fPIC", kind, str(source), "-o", temporary],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
        # Linkers make a new file, as open as the umask says.
        os.chmod(temporary, 0o700)
        # Into place at once: other processes may be building, or be killed while they do.
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return path
