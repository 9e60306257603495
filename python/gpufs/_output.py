"""Atomic creation of files and folders: complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_MARK: Final = ".gpufs-"  # in the names of half-written files; other programs do not use it
_ACCESS_LIST: Final = "system.posix_acl_access"

unfinished: set[str] = set()
"""Paths of files and folders that are half written or temporary."""


def remove_unfinished() -> None:
    """Removes all ``unfinished`` paths, when the process exits inside a ``with`` block.

    Any thread may call it.
    """
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
    path: str | os.PathLike[str],
    made_of: Iterable[str | bytes | os.PathLike[str] | os.PathLike[bytes]] = (),
) -> Iterator[str]:
    """Yields the name of a new file, which gets the name ``path`` at the end of the block.

    If the block raises, or the process or the machine stops, ``path`` is unchanged. The file is on
    the disk before it gets the name, and the name is on the disk when the block has ended. The new
    file is in the same folder; if the process is killed, the next call for ``path`` removes it.

    If ``path`` is a symbolic link, its target is replaced. The file keeps its permissions and its
    access control list, and its owner if this user may change owners. A file that did not exist
    gets the default permissions. Waits for the disk.

    Args:
        path: the file to create or to replace.
        made_of: the files that the block reads; ``path`` must not be one of them.

    Raises:
        OSError: no file can be created there; ``path`` is not a regular file, has other names (hard
            links), which would keep the old content, or is in ``made_of``. ``filename`` is
            ``path``, even if the block raises the error with the temporary name.
    """
    target = os.fsdecode(path)
    folder, name = os.path.split(os.path.realpath(target))
    made: str | None = None
    descriptor = -1
    replaced: os.stat_result | None = None
    try:
        with contextlib.suppress(FileNotFoundError):
            replaced = os.stat(target)  # noqa: PTH116 - it may be bytes that are no text
            if not stat.S_ISREG(replaced.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", target)
            if any(
                os.path.samestat(replaced, os.stat(source))  # noqa: PTH116 - as above
                for source in made_of
            ):
                raise OSError(
                    errno.EINVAL, "would be lost: it is one of the files that are read", target
                )
            if replaced.st_nlink > 1:
                text = (
                    f"has {replaced.st_nlink} names (hard links), of which the others would keep "
                    "the old content"
                )
                raise OSError(errno.EINVAL, f"{text}: remove this one first", target)
        _remove_leftovers(folder, name)
        made, descriptor = _make(folder, name, is_folder=False)
        with _half_written(made):
            yield made
            _permit(descriptor, 0o666, target, replaced)
            os.fsync(descriptor)
            os.replace(made, os.path.join(folder, name))  # noqa: PTH105, PTH118 - as above
        made = None
        _sync_folder(folder)
    except OSError as error:
        if made is None or error.filename is None or os.fsdecode(error.filename) == made:
            raise OSError(error.errno, error.strerror, target) from error
        raise
    finally:
        if made is not None:
            with contextlib.suppress(OSError):
                os.unlink(made)  # noqa: PTH108
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the name of a new folder; otherwise as :func:`replacing`.

    ``path`` must not exist, or must be an empty folder.

    Raises:
        OSError: as for :func:`replacing`; also if the folder is not empty.
    """
    target = os.path.normpath(os.fsdecode(path))
    above, name = os.path.split(target)
    folder = os.fspath(Path(above).absolute())
    made: str | None = None
    descriptor = -1
    replaced: os.stat_result | None = None
    try:
        with contextlib.suppress(FileNotFoundError):
            if os.listdir(target):  # noqa: PTH208 - it may be bytes that are no text
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
            replaced = os.stat(target)  # noqa: PTH116 - as above
        _remove_leftovers(folder, name)
        made, descriptor = _make(folder, name, is_folder=True)
        with _half_written(made):
            yield made
            _permit(descriptor, 0o777, target, replaced)
            _sync_tree(made)
            os.rename(made, target)  # noqa: PTH104
        made = None
        _sync_folder(folder)
    except OSError as error:
        # Errors for files inside the folder, too: callers must not see the temporary name.
        if made is None or error.filename is None or os.fsdecode(error.filename).startswith(made):
            raise OSError(error.errno, error.strerror, target) from error
        raise
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


# The process that writes a half-written file holds a lock on it. A file without a lock is a
# leftover.


def _make(folder: str, name: str, *, is_folder: bool) -> tuple[str, int]:
    """Makes a file or folder that only this user can use.

    Returns its path, and the descriptor that holds its lock.
    """
    prefix, suffix = _prefix(name), ".part"
    while True:
        if is_folder:
            made = tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=folder)
            # another process removed it as a leftover before it was locked
            try:
                descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
        else:
            descriptor, made = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=folder)
        # The file system has no locks, so no process can find leftovers there.
        try:
            is_own = _lock(descriptor, made)
        except OSError:
            is_own = True
        if is_own:
            return made, descriptor
        os.close(descriptor)


def _prefix(name: str) -> str:
    # A file name has at most 255 bytes.
    return f".{os.fsdecode(os.fsencode(name)[:200])}{_MARK}"


def _lock(descriptor: int, path: str) -> bool:
    """Locks an open file. Returns false if it is locked already, or has lost its name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_leftovers(folder: str, name: str) -> None:
    """Removes files and folders that killed processes left for this name."""
    pattern = re.compile(rf"{re.escape(_prefix(name))}[a-z0-9_]{{8}}\.part")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if not _lock(descriptor, entry.path):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    elif entry.is_file(follow_symlinks=False):
                        os.unlink(entry.path)  # noqa: PTH108
                finally:
                    os.close(descriptor)


def _permit(descriptor: int, anybodys: int, target: str, replaced: os.stat_result | None) -> None:
    """Copies the permissions of the replaced file, or sets the default ones of a new file."""
    if replaced is None:
        os.fchmod(descriptor, anybodys & ~_umask())
        return
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, replaced.st_uid, replaced.st_gid)
    mode = stat.S_IMODE(replaced.st_mode) & 0o777
    # A different group gets the permissions of all other users.
    if os.fstat(descriptor).st_gid != replaced.st_gid:
        mode = (mode & ~0o070) | (mode & 0o007) << 3
    os.fchmod(descriptor, mode)
    try:
        access_list = os.getxattr(target, _ACCESS_LIST)
    except OSError:  # there is no list, or the file system has none
        return
    # Without the list, the group's permissions would be those of the list's mask.
    os.setxattr(descriptor, _ACCESS_LIST, access_list)


def _sync_folder(folder: str) -> None:
    """Syncs a folder's entries to the disk."""
    # A folder that this user cannot read cannot be opened, so it cannot be synced alone.
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        os.sync()
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: str) -> None:
    """Syncs a folder and everything in it to the disk."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(
                os.path.join(path, name),  # noqa: PTH118 - it may be bytes that are no text
                os.O_RDONLY | os.O_NOFOLLOW,
            )
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _sync_folder(path)


def _umask() -> int:
    """Returns the process's umask. Only /proc reports it without changing it."""
    with contextlib.suppress(OSError, ValueError):
        for line in (
            Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        ):
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
