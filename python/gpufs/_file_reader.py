"""A Python file over a file of a mount, for libraries that read files."""

from __future__ import annotations

import io
import operator
from typing import Any, Protocol

from gpufs._device import Array, on_host


class _Readable(Protocol):
    """A file of a mount."""

    @property
    def name(self) -> str: ...

    def size(self) -> int: ...

    def read(self, n: int = -1, offset: int = 0) -> Array: ...


class FileReader(io.RawIOBase):
    """A read-only Python file with a position, over a file of a mount; see :meth:`File.reader`.

    It returns the bytes that kernels see. Each call copies them to the host with one read, so use
    an ``io.BufferedReader`` for small calls. Closing it does not close the mount's file. One thread
    may use it at a time.
    """

    def __init__(self, file: _Readable) -> None:
        self._file = file
        self._at = 0

    @property
    def name(self) -> str:
        """The path, as it was given to the open."""
        return self._file.name

    def readable(self) -> bool:
        """Returns true."""
        return True

    def seekable(self) -> bool:
        """Returns true."""
        return True

    def tell(self) -> int:
        """Returns the position of the next read, in bytes."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Sets the position of the next read; returns it, in bytes from the file's beginning.

        Raises:
            ValueError: a position before the beginning, or a ``whence`` other than 0, 1 and 2.
        """
        self._check_open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"invalid whence: {whence}")
        base = (
            0 if whence == io.SEEK_SET else self._at if whence == io.SEEK_CUR else self._file.size()
        )
        at = base + operator.index(offset)
        if at < 0:
            raise ValueError(f"negative position: {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - whatever has memory to write to
        """Fills the buffer up to the end of the file. Returns the bytes read. Waits."""
        self._check_open()
        with memoryview(buffer) as given, given.cast("B") as memory:
            read = self._host_bytes(memory.nbytes)
            memory[: len(read)] = read
        return len(read)

    def readall(self) -> bytes:
        """Returns all bytes from the position on. Waits."""
        self._check_open()
        return bytes(self._host_bytes(-1))

    def _host_bytes(self, count: int) -> memoryview:
        host = on_host(self._file.read(count, self._at))
        self._at += host.nbytes
        return host.data

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
