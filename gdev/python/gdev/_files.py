"""Where gdev's library and daemon are, and the driver."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def programs() -> Path:
    """Returns the folder of the library and the daemon; ``GDEV_PROGRAMS`` names another."""
    chosen = os.environ.get("GDEV_PROGRAMS")
    return Path(chosen) if chosen else Path(__file__).parent / "programs"


def library() -> Path:
    """Returns the library that programs run with."""
    return programs() / "libcuda.so.1"


def daemon() -> Path:
    """Returns the daemon's program."""
    return programs() / "gdevd"


def driver() -> Path | None:
    """Returns the driver that a program would load here, or None.

    Asks the loader, which knows more folders than the library does.
    """
    chosen = os.environ.get("GDEV_DRIVER")
    if chosen:
        return Path(chosen)
    try:
        ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LAZY)
    except OSError:
        return None
    own = library().resolve()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.partition("/")[1] + line.partition("/")[2])
        if path.name.startswith("libcuda.so") and path.resolve() != own:
            return path
    return None


def socket_path() -> Path:
    """Returns the daemon's socket; ``GDEV_SOCKET`` names another.

    By default in a folder that is the user's alone, which is made here. Raises OSError.
    """
    chosen = os.environ.get("GDEV_SOCKET")
    if chosen:
        return Path(chosen)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime, "gdev") if runtime else Path(f"/tmp/gdev-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        # In /tmp anybody could have made it.
        raise PermissionError(1, "the folder is not this user's alone", str(folder))
    return folder / "socket"
