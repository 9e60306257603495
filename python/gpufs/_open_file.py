"""Opening a file of a mount, and what is known of the open file."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING, Final

from gpufs import _core

if TYPE_CHECKING:
    from gpufs._mount import Mount  # the type of a public property

_FLAGS: Final = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "a+": os.O_RDWR | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}
_OFFSET_MAX: Final = 2**63 - 1  # bytes; the largest off_t
_COARSEST_CLOCK_NS: Final = 2_000_000_000  # FAT has the coarsest time stamps


class OpenFile:
    """The base of :class:`gpufs.File` that opens it. Neither reads nor writes."""

    __slots__ = (
        "__weakref__",
        "_access",
        "_core",
        "_memory",
        "_mount",
        "_name_for_others",
        "_on_cpu",
        "_opened_ns",
        "_opened_path",
        "_path",
        "_size",
        "ordinal",
    )

    def __init__(
        self, mount: Mount, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], mode: str
    ) -> None:
        """Opens the file; see :meth:`gpufs.Mount.open`."""
        self._access = _flags_of(mode)
        self._mount = mount
        # Cached, because every call needs it.
        self._on_cpu = mount.device == "cpu"
        self.ordinal = mount.ordinal  # the GPU's number
        self._path = os.fsdecode(path)
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        self._memory = mount.device_memory()
        self._size: int | None = None
        self._opened_ns = time.time_ns()
        self._core = self._opened()

    @property
    def mount(self) -> Mount:
        """The file's mount."""
        return self._mount

    @property
    def name(self) -> str:
        """The path, as it was given to the open."""
        return self._path

    @property
    def closed(self) -> bool:
        """Whether the file or its mount was closed, here or in the parent before a fork."""
        return self._core.closed

    @property
    def descriptor(self) -> int:
        """The descriptor for ``gread`` and other device calls of user kernels, until the close."""
        return self._core.descriptor

    def size(self) -> int:
        """Returns the bytes of the file at the open; if this mount writes it, its bytes so far.

        May wait for the device.
        """
        if self._size is None or self._core.closed:
            size, *_, is_shared, _ = self._core.status()
            if is_shared:
                return size
            self._size = size
        return self._size

    def failures(self) -> int:
        """Returns how many calls have raised errors of the device. Does not wait."""
        return self._core.failures

    def check(self) -> None:
        """Raises an error that the device has reported so far. Does not wait."""
        if not self.closed:
            self._core.check()

    @property
    def opened_path(self) -> bytes:
        """The path under which this file was opened.

        Kernels that open it for reading share the state of a file that is open for reading.
        """
        return self._opened_path

    def identity(self) -> tuple[int, ...] | None:
        """Returns a value that differs for other files and after each change of this file.

        Returns ``None`` if a change may leave no trace: this mount writes the file, or the file
        changed so shortly before the open that the file system's clock may not have advanced since.
        For files open for reading. Waits.
        """
        size, modified_ns, changed_ns, inode, device, _, is_shared, _ = self._core.status()
        if is_shared or self._opened_ns - changed_ns < _COARSEST_CLOCK_NS:
            return None
        return device, inode, size, modified_ns, changed_ns

    def _opened(self) -> _core.File:
        """Opens the file.

        Kernels that open one path at the same time for reading share the state of the first open,
        with the file's size and content at that time. An open must see the present content: if the
        file has changed since, this method opens it under a new name of its path. An open for
        writing shares no state of earlier opens of the path, which may lead to another file by now.
        """
        name = os.fsencode(self._path)
        path, host_path = name, name
        if self._mount.root is None:
            # The path is made absolute: the program may have changed its directory since the first
            # open.
            with contextlib.suppress(FileNotFoundError):
                host_path = path = os.path.join(os.getcwdb(), name)  # noqa: PTH109, PTH118 - bytes
        else:
            host_path = os.path.join(self._mount.root, name)  # noqa: PTH118 - bytes
        self._name_for_others = self._opened_path = path
        core = self._opened_as(path, name)
        if self._access != os.O_RDONLY or self._is_current(core, host_path):
            return core
        core.close()
        self._opened_path = new_name(path, next(self._mount.new_names))
        return self._opened_as(self._opened_path, name)

    def _is_current(self, core: _core.File, host_path: bytes) -> bool:
        """Returns whether ``core`` has the present content of the file at the path."""
        *status, device, _, is_shared, is_written = core.status()
        try:
            now = os.stat(host_path)  # noqa: PTH116 - bytes
        except OSError:
            return False
        size, modified_ns, changed_ns, inode = status
        if (now.st_dev, now.st_ino) != (device, inode):
            return False
        if is_written:
            return True  # this mount changes the size and the times, too
        if (now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (size, modified_ns, changed_ns):
            return False
        if not is_shared:
            self._size = size
        return True

    def _opened_as(self, path: bytes, name: bytes) -> _core.File:
        try:
            return _core.File(self._mount.core, self._memory, path, name, self._access, 0o666)
        except OSError as error:
            if error.errno == errno.EXDEV and self._mount.root is not None:
                raise OSError(errno.EXDEV, "leads out of the mount's root", self._path) from None
            raise

    def _check_access(self, wanted: int) -> None:
        """Raises an error if the file is closed or was not opened for this access."""
        if self._core.closed:
            self._core.wait()  # raises
        access = self._access & os.O_ACCMODE
        if access != wanted and access != os.O_RDWR:
            what = "reading" if wanted == os.O_RDONLY else "writing"
            raise OSError(errno.EBADF, f"not open for {what}", self._path)

    def _check_end(self, end: int) -> None:
        if end > _OFFSET_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self._path)

    def _bytes_from(self, offset: int) -> int:
        """Returns the bytes of the file after ``offset``."""
        if offset < 0:
            raise ValueError(f"negative offset: {offset}")
        size = self.size()
        return size - offset if offset < size else 0


def new_name(path: bytes, number: int) -> bytes:
    """Returns another name of the same path, which differs for each number.

    It begins with the number, which takes at most three bytes for each binary digit. Between dots,
    one slash is the digit 0, two are the digit 1, and three are the number's end.
    """
    steps = [b"/" if digit == "0" else b"//" for digit in f"{number:b}"] + [b"///"]
    if path.startswith(b"/"):
        return b".".join([*steps, path])
    return b".".join([b"", *steps]) + path


def _flags_of(mode: str) -> int:
    if not isinstance(mode, str):
        raise TypeError(f"a mode must be text, not {type(mode).__name__}")
    if mode.count("t") or mode.count("b") > 1 or mode.count("+") > 1:
        raise ValueError(f"invalid mode (files are binary): {mode!r}")
    plain = mode.replace("b", "")
    if plain.endswith("+") or "+" not in plain:
        flags = _FLAGS.get(plain)
        if flags is not None:
            return flags
    raise ValueError(f"invalid mode: {mode!r}")
