"""Builds the C++ shim once a machine, into a cache of the user's.

A built shim depends on the executorch whose headers it saw, on the compiler and on its source, and
its path names all three. Builds go to a temporary name and are moved into place, so that several
processes may build at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import WgpuDelegateError

logger = logging.getLogger("executorch_wgpu")

SOURCE = Path(__file__).with_name("shim.cpp")

#: Tried in order when CXX is not set.
_COMPILERS = ("c++", "g++", "clang++")

_INSTALL = {
    "linux": "install one: `sudo apt-get install g++` (Debian, Ubuntu), `sudo dnf install gcc-c++` "
    "(Fedora), `apk add g++` (Alpine)",
    "darwin": "install Apple's command line tools: `xcode-select --install`",
}


class BridgeError(WgpuDelegateError, RuntimeError):
    """The bridge into ExecuTorch's runtime cannot be set up. The message says what is missing and
    how to get it."""


@dataclass(frozen=True)
class ExecutorchInstall:
    """An installed executorch. ``root``: its package folder; ``version``: as it calls itself, with
    the commit it was built from."""

    root: Path
    version: str

    @property
    def library(self) -> Path:
        """The shared library of its runtime."""
        return self.root / "lib" / ("libexecutorch" + _suffix())


def shim_path(install: ExecutorchInstall) -> Path:
    """The built shim for ``install``, built now if need be.

    Raises:
        BridgeError: no compiler, or it failed.
    """
    if sys.platform not in ("linux", "darwin"):
        raise BridgeError(
            f"the bridge to executorch.runtime is built for Linux and macOS, not {sys.platform}; "
            "wholly delegated programs run in executorch_wgpu.runtime everywhere"
        )
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in install.version)
    folder = kept_folder("bridge", f"executorch-{name}", f"shim-{digest}")
    compiler = find_compiler()
    if compiler is None:
        # Built before, with a compiler that is gone: still good.
        for path in sorted(folder.glob("*" + _suffix())) if folder is not None else ():
            if not others_may_write(path):
                return path
        raise BridgeError(
            "no C++ compiler found, and the bridge to executorch.runtime has to be built once (one "
            f"file, a second or two): {_INSTALL.get(sys.platform, 'install one')}; or name yours "
            "in the environment variable CXX"
        )
    file = _compiler_id(compiler) + _suffix()
    if folder is not None and (folder / file).is_file() and not others_may_write(folder / file):
        return folder / file
    return _build(compiler, install, folder, file)


def cache_folder() -> Path:
    """Where built files are kept: ``EXECUTORCH_WGPU_CACHE``, or this package's folder in the
    user's cache (``XDG_CACHE_HOME``, ``~/.cache``, ``~/Library/Caches``).

    Raises:
        BridgeError: this user has no home.
    """
    chosen = os.environ.get("EXECUTORCH_WGPU_CACHE")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    if home and os.path.isabs(home):  # what XDG asks for: others depend on where one stands
        return Path(home) / "executorch-wgpu"
    base = "Library/Caches" if sys.platform == "darwin" else ".cache"
    try:
        return Path.home() / base / "executorch-wgpu"
    except RuntimeError as error:
        raise BridgeError(
            f"no folder to keep built files in ({error}): name one in EXECUTORCH_WGPU_CACHE"
        ) from error


def kept_folder(*names: str) -> Path | None:
    """A folder in the cache for code that will be loaded, made if need be. None where it cannot be
    had, or where others could put code of theirs."""
    try:
        folder = cache_folder().joinpath(*names)
        for part in (*reversed(folder.parents), folder):
            if not part.is_dir():
                # Not mkdir(parents=True), whose parents are as open as the umask says.
                part.mkdir(0o700, exist_ok=True)
        # What is checked is what is loaded: a link may point elsewhere a moment later.
        folder = folder.resolve()
        shared = others_may_write(folder)
    except (OSError, BridgeError) as error:
        logger.info("built files are not kept: %s", error)
        return None
    if shared:
        logger.info("built files are not kept: others may write to %s or above it", folder)
        return None
    return folder


def others_may_write(path: Path) -> bool:
    """Whether someone else than this user and root may have put the existing file or folder
    ``path`` there (resolved: no links), or may replace it: what then lies there is not loaded.

    A folder with the sticky bit, as ``/tmp``, may be written to by anyone: what is in it stays its
    owner's. A group that may write is taken for the user's own where the file is the user's.
    """
    me = os.geteuid()
    for part in (path, *path.parents):
        status = part.stat()
        open_to = 0o002 if status.st_uid == me else 0o022
        shared = status.st_mode & open_to and not (part != path and status.st_mode & stat.S_ISVTX)
        if shared or status.st_uid not in (me, 0):
            return True
    return False


def find_compiler() -> list[str] | None:
    """The compiler's command: ``CXX`` (with its arguments, if any), else the first of c++, g++ and
    clang++ that is there.

    Raises:
        BridgeError: ``CXX`` names nothing that can be run, or is no command.
    """
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        try:
            command = shlex.split(chosen)
        except ValueError as error:
            raise BridgeError(f"the environment variable CXX is {chosen!r}: {error}") from error
        found = shutil.which(command[0])
        if found is None:
            raise BridgeError(
                f"the environment variable CXX names '{command[0]}', which is not there"
            )
        return [found, *command[1:]]
    for name in _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return [found]
    return None


def _compiler_id(command: Sequence[str]) -> str:
    """Which compiler: its name, and a hash of its file's identity and its arguments."""
    real = os.path.realpath(command[0])
    status = os.stat(real)
    what = repr((real, status.st_size, status.st_mtime_ns, list(command[1:])))
    return f"{os.path.basename(real)}-{hashlib.sha256(what.encode()).hexdigest()[:16]}"


def _suffix() -> str:
    return ".dylib" if sys.platform == "darwin" else ".so"


def _build(
    compiler: Sequence[str], install: ExecutorchInstall, folder: Path | None, file: str
) -> Path:
    """``file`` in ``folder``, or in one of this process alone."""
    include = install.root / "include"
    if not include.is_dir() or not install.library.is_file():
        raise BridgeError(
            f"this executorch ({install.version}) has no C++ headers or no {install.library.name}: "
            "install the wheel from PyPI"
        )
    if folder is None or not os.access(folder, os.W_OK):
        # Readable by this user alone, and for this process only.
        folder = Path(tempfile.mkdtemp(prefix="executorch-wgpu-"))
        logger.warning(
            "there is no folder of this user's alone to keep %s in, so the bridge is built anew in "
            "every process: name one in EXECUTORCH_WGPU_CACHE",
            file,
        )
    path = folder / file
    descriptor, temporary = tempfile.mkstemp(suffix=_suffix(), prefix=".build-", dir=folder)
    os.close(descriptor)
    shared = ["-dynamiclib"] if sys.platform == "darwin" else ["-shared"]
    command = [
        *compiler,
        *("-std=c++17", "-O2", "-fPIC", *shared),
        "-DC10_USING_CUSTOM_GENERATED_MACROS",
        f'-DWGPU_BRIDGE_BUILT_FOR="{install.version}"',
        *("-isystem", str(include)),
        *("-isystem", str(include / "executorch/runtime/core/portable_type/c10")),
        str(SOURCE),
        *("-o", temporary),
        *("-L", str(install.library.parent), "-lexecutorch"),
    ]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            raise BridgeError(
                "building the bridge to executorch.runtime failed.\n"
                f"{shlex.join(command)}\n{done.stderr.strip()[:4000]}"
            )
        # Linkers make a new file, as open as the umask says.
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    logger.info("built %s in %.1f s", path, time.perf_counter() - started)
    return path
