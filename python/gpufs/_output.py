"""Files and folders that are there whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

unfinished: set[str] = set()
"""Files and folders that are half written, or wanted for a while only."""


def remove_unfinished() -> None:
    """Removes all ``unfinished``: for a process that ends without leaving its ``with`` blocks. By any thread."""
    for path in list(unfinished):
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - it may be bytes that are no text
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _half_written(path: str) -> Iterator[None]:
    unfinished.add(path)
    try:
        yield
    finally:
        unfinished.discard(path)


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], made_of: Iterable[str | bytes | os.PathLike[str] | os.PathLike[bytes]] = ()
) -> Iterator[str]:
    """Gives the name of a new, empty file, which gets the name ``path`` at the end of the ``with`` block.

    If the block raises, or the process ends, nothing has happened to ``path``. The file lies in the same folder. Where
    ``path`` is a link, the file that it leads to is replaced.

    Raises:
        OSError: no file can be made there, or ``path`` is something else than a file, or one of those that the new one
            is made of, ``made_of``; with ``path`` as ``filename``, also where the block raises it with the other name.
    """
    target = os.fsdecode(path)
    folder, name = os.path.split(os.path.realpath(target))
    made: str | None = None
    try:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(target)  # noqa: PTH116 - it may be bytes that are no text
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", target)
            if any(os.path.samestat(status, os.stat(source)) for source in made_of):  # noqa: PTH116 - as above
                raise OSError(errno.EINVAL, "would be lost: it is one of the files that are read", target)
        descriptor, made = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".part", dir=folder)
        os.fchmod(descriptor, 0o666 & ~_umask())
        os.close(descriptor)
        with _half_written(made):
            yield made
            os.replace(made, os.path.join(folder, name))  # noqa: PTH105, PTH118 - as above
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
        with _half_written(made):
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
