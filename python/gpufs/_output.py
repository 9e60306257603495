"""Files and folders that are there whole, or not at all."""

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

_MARK: Final = ".gpufs-"  # in the names of what is half written, which nobody else gives
_ACCESS_LIST: Final = "system.posix_acl_access"

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
    path: str | os.PathLike[str],
    made_of: Iterable[str | bytes | os.PathLike[str] | os.PathLike[bytes]] = (),
) -> Iterator[str]:
    """Gives the name of a new, empty file, which gets the name ``path`` at the end of the ``with`` block.

    If the block raises, or the process or the machine ends, nothing has happened to ``path``: the
    file is on the disk before it gets the name, and the name is when the block has ended. The file
    lies in the same folder; if the process is killed, the next one that writes ``path`` removes it.
    Where ``path`` is a link, the file that it leads to is replaced. Permissions and the access
    control list stay, and the owner, if this user may give files away; a new file has those of any.

    Raises:
        OSError: no file can be made there, or ``path`` is something else than a file, has other
        names (hard links),
            which would keep the old content, or is one of those that the new one is made of,
            ``made_of``; with ``path`` as ``filename``, also where the block raises it with the
            other name.
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
            # noqa: PTH116 - as above
            if any(os.path.samestat(replaced, os.stat(source)) for source in made_of):
                raise OSError(
                    errno.EINVAL, "would be lost: it is one of the files that are read", target
                )
            if replaced.st_nlink > 1:
                text = f"has {replaced.st_nlink} names (hard links), of which the others would keep the old content"
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
    """The same for a folder: ``path`` is none yet, or an empty one.

    Raises:
        OSError: as above; also where something is in the folder.
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
        # Of what is in the folder, too: it has that name for nobody else.
        if made is None or error.filename is None or os.fsdecode(error.filename).startswith(made):
            raise OSError(error.errno, error.strerror, target) from error
        raise
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


# What is half written is locked by the process that writes it. What is not locked is a leftover.


def _make(folder: str, name: str, *, is_folder: bool) -> tuple[str, int]:
    """Makes a file or a folder that only this user can use; returns its path, and the descriptor that has it locked."""
    prefix, suffix = _prefix(name), ".part"
    while True:
        if is_folder:
            made = tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=folder)
            try:
                descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # taken for a leftover, before it was locked
                continue
        else:
            descriptor, made = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=folder)
        try:
            is_own = _lock(descriptor, made)
        except OSError:  # no locks in this file system: then nobody finds leftovers there
            is_own = True
        if is_own:
            return made, descriptor
        os.close(descriptor)


def _prefix(name: str) -> str:
    # Names have at most 255 bytes.
    return f".{os.fsdecode(os.fsencode(name)[:200])}{_MARK}"


def _lock(descriptor: int, path: str) -> bool:
    """Locks what was opened; False if another one has, or if it is no longer what has that name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_leftovers(folder: str, name: str) -> None:
    """Removes what processes that were killed left of a file, or folder, of this name."""
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
    """Gives what was made the permissions of what it replaces; or those of any that is new."""
    if replaced is None:
        os.fchmod(descriptor, anybodys & ~_umask())
        return
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, replaced.st_uid, replaced.st_gid)
    mode = stat.S_IMODE(replaced.st_mode) & 0o777
    if os.fstat(descriptor).st_gid != replaced.st_gid:  # another group may do what everybody may
        mode = (mode & ~0o070) | (mode & 0o007) << 3
    os.fchmod(descriptor, mode)
    try:
        access_list = os.getxattr(target, _ACCESS_LIST)
    except OSError:  # there is none, or there can be none
        return
    # Without it the permissions of the group would be those of the list's mask.
    os.setxattr(descriptor, _ACCESS_LIST, access_list)


def _sync_folder(folder: str) -> None:
    """Brings a folder's names to the disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # one whose names cannot be read, which cannot be had by itself
        os.sync()
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: str) -> None:
    """Brings a folder to the disk, with all that is in it."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            # noqa: PTH118
            descriptor = os.open(os.path.join(path, name), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _sync_folder(path)


def _umask() -> int:
    """The process's mask of permissions, which only the kernel tells without changing it."""
    with contextlib.suppress(OSError, ValueError):
        for line in (
            Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        ):
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
