"""Files and folders that are there whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Gives the name of a new, empty file, which gets the name ``path`` at the end of the ``with`` block.

    If the block raises, or the process ends, nothing has happened to ``path``. The file lies in the same folder.

    Raises:
        OSError: no file can be made there, or ``path`` is something else than a file; with ``path`` as ``filename``,
            also where the block raises it with the other name.
    """
    target = os.fsdecode(path)
    folder, name = os.path.split(target)
    made: str | None = None
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(target).st_mode):  # noqa: PTH116 - it may be bytes that are no text
                raise OSError(errno.EINVAL, "not a regular file", target)
        descriptor, made = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".part", dir=Path(folder).absolute())
        os.fchmod(descriptor, 0o666 & ~_umask())
        os.close(descriptor)
        yield made
        os.replace(made, target)  # noqa: PTH105
        made = None
    except OSError as error:
        if made is None or error.filename is None or os.fsdecode(error.filename) == made:
            raise OSError(error.errno, error.strerror, target) from error
        raise
    finally:
        if made is not None:
            with contextlib.suppress(OSError):
                os.unlink(made)  # noqa: PTH108


@contextlib.contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """The same for a folder: ``path`` is none yet, or an empty one.

    Raises:
        OSError: as above; also where something is in the folder.
    """
    target = os.path.normpath(os.fsdecode(path))
    folder, name = os.path.split(target)
    made: str | None = None
    try:
        with contextlib.suppress(FileNotFoundError):
            if os.listdir(target):  # noqa: PTH208 - it may be bytes that are no text
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        made = tempfile.mkdtemp(prefix=f".{name[:100]}.", suffix=".part", dir=Path(folder).absolute())
        os.chmod(made, 0o777 & ~_umask())  # noqa: PTH101
        yield made
        os.rename(made, target)  # noqa: PTH104
        made = None
    except OSError as error:
        # Of what is in the folder, too: it has that name for nobody else.
        if made is None or error.filename is None or os.fsdecode(error.filename).startswith(made):
            raise OSError(error.errno, error.strerror, target) from error
        raise
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _umask() -> int:
    """The process's mask of permissions, which only the kernel tells without changing it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
