"""Where gdev's library and daemon are, and the driver."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path


def programs() -> Path:
    """Returns the folder of the library and the daemon; ``GDEV_PROGRAMS`` names another."""
    chosen = os.environ.get("GDEV_PROGRAMS")
    return Path(chosen).resolve() if chosen else Path(__file__).resolve().parent / "programs"


def library() -> Path:
    """Returns the library that programs run with.

    Raises OSError: it is not there, or the loader could not preload it.
    """
    path = programs() / "libcuda.so.1"
    if not path.exists():
        raise FileNotFoundError(
            errno.ENOENT, "gdev's library is missing: was it built without CUDA?", str(path)
        )
    if re.search(r"[\s:]", str(path)):
        raise OSError(
            errno.EINVAL,
            "the loader takes no path with a space or a colon: move gdev, or use GDEV_PROGRAMS",
            str(path),
        )
    return path


def daemon() -> Path:
    """Returns the daemon's program."""
    return programs() / "gdevd"


def driver() -> Path | None:
    """Returns the driver that a program would load here, or None.

    Asks the loader, which knows more folders than the library does. ``GDEV_DRIVER`` names another.
    Raises OSError: that is not there, or loading a driver fails otherwise than that there is none.
    """
    chosen = os.environ.get("GDEV_DRIVER")
    if chosen:
        path = Path(chosen).resolve()
        if not path.exists():
            raise FileNotFoundError(
                errno.ENOENT, "GDEV_DRIVER names a file that is not there", str(path)
            )
        return path
    own = library().resolve()
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    others = [folder for folder in folders if not folder or Path(folder).resolve() != own.parent]
    if others == folders:
        return _loaded_driver(own)
    # Programs that use libgdev.so name its folder; the loader here would find gdev's library.
    code = f"from gdev import _files; print(_files._loaded_driver({str(own)!r}) or '')"
    asked = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"LD_LIBRARY_PATH": ":".join(others), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        why = asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"]
        text = f"loading it failed ({why[-1]}); name the driver in GDEV_DRIVER"
        raise OSError(errno.ELIBACC, text, "libcuda.so.1")
    return Path(asked.stdout.strip()) if asked.stdout.strip() else None


def _loaded_driver(own: Path | str) -> Path | None:
    """Loads the driver, and returns its path; none if there is only the library ``own``."""
    try:
        ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LAZY)
    except OSError:
        return None
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.partition("/")[1] + line.partition("/")[2])
        if path.name.startswith("libcuda.so") and path.resolve() != Path(own):
            return path
    return None


def socket_path() -> Path:
    """Returns the daemon's socket; ``GDEV_SOCKET`` names another.

    By default in a folder that is the user's alone, which is made here: not in that of a login
    session, which ends before programs do. Raises OSError.
    """
    chosen = os.environ.get("GDEV_SOCKET")
    if chosen:
        return Path(chosen).absolute()
    folder = Path(f"/tmp/gdev-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        # Anybody could have made it.
        raise PermissionError(
            errno.EPERM,
            "others may use this folder: remove it, or name a socket in GDEV_SOCKET",
            str(folder),
        )
    return folder / "socket"
