"""Files of a mount, read and written by kernels: the class of :meth:`gpufs.Mount.open`."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from gpufs._device import Array, foreign_array, is_on_device
from gpufs._file_reader import FileReader
from gpufs._selection import DeviceList, Selection, select
from gpufs._streams import Stream
from gpufs._submit import Submitted
from gpufs._transfers import Keep, Transfers, byte_type

if TYPE_CHECKING:
    import numpy as np

    from gpufs._mount import Mount


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What :meth:`File.stat` returns."""

    size: int  # bytes; for a file open for writing, including what was written so far
    modified_ns: int  # since the epoch, at the open
    changed_ns: int
    inode: int
    device: int
    mode: int  # st_mode


class File(Transfers):
    """An open file of a mount. Reads and writes use memory of the mount's device.

    On a GPU, calls that read or write are ordered by a CUDA stream and return before the work is
    done. Work that is later in the same stream can use the result at once. An error of such a call
    is raised by the next call that waits (:meth:`wait`, :meth:`fsync`, :meth:`stat`,
    :meth:`truncate`, :meth:`close`, :meth:`DeviceArray.numpy`) or by any earlier call that finds
    it. On the CPU device the work is done when a call returns, and the call raises its own errors;
    arrays are NumPy's.

    The file has no position: ``read`` and ``write`` without an offset begin at byte 0 each time. Do
    not pass it to ``pickle.dump``, ``shutil.copyfileobj`` or ``numpy.save``, which would write
    everything to the same place. For code that only reads, use :meth:`reader`.

    ``submit_read``, ``submit_gather`` and ``submit_write`` return a ``concurrent.futures.Future``
    at once, on the CPU device too:

    * At most four such calls of a mount run at a time, in any order. Each begins after the work
      that its stream has when it is submitted.
    * A future is done when the device has finished the call. It has the errors of that call alone.
      It can be cancelled until the call begins.
    * Calls that wait (see above) wait for submitted calls, too, but not in a future's callback.
    * Every later :meth:`fsync`, and :meth:`close`, raise the error of a submitted write, too. If
      none of them has raised it, ``Mount.unmount`` does.

    Ctrl-C, or another exception of a signal handler, ends a waiting call of the main thread. The
    call's work goes on in the background and keeps the memory that it uses. Until it is done, the
    contents of ``out`` and of the file are unspecified. The next call that waits raises its errors.

    The file is a context manager. Methods may be called from several threads; :meth:`close` waits
    for the calls of other threads. After it, methods raise ``ValueError``. After a fork, methods
    raise ``RuntimeError`` in the child process, and :meth:`close` does nothing there.
    """

    __slots__ = ()

    def __init__(
        self, mount: Mount, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], mode: str
    ) -> None:
        """Opens the file; see :meth:`gpufs.Mount.open`."""
        self._submitted = Submitted(mount.submitter)
        super().__init__(mount, path, mode)

    def __enter__(self) -> Self:
        """Returns the file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self.close()

    def __reduce__(self) -> tuple[Callable[[Mount, bytes], File], tuple[Mount, bytes]]:
        """Pickles the mount and the path. Unpickling opens the file anew.

        Raises:
            TypeError: the file is open for writing, which several processes cannot share.
            ValueError: the file is closed.
        """
        if self._access != os.O_RDONLY:
            raise TypeError(f"{self._path}: open for writing, so another process cannot have it")
        self._check_access(os.O_RDONLY)
        return _opened_again, (self._mount, self._name_for_others)

    def __repr__(self) -> str:
        """Returns a text with the path and whether the file is closed."""
        return f"<gpufs.File {self._path!r}{' closed' if self.closed else ''}>"

    def read(
        self,
        n: SupportsIndex = -1,
        offset: SupportsIndex = 0,
        *,
        out: object | None = None,
        stream: Stream = None,
    ) -> Array:
        """Reads ``n`` bytes from ``offset`` on into an array on the device.

        There is no position that advances: two reads without an offset return the same bytes. On a
        GPU it returns before the read is done, on the CPU device after it.

        Args:
            n: bytes to read, fewer at the end of the file. Negative: all bytes up to the end.
            offset: bytes from the beginning of the file.
            out: a writable C-contiguous array of at least ``n`` bytes on the device; of NumPy on
                the CPU device. ``None``: a new array.
            stream: the CUDA stream. ``None``: the current one.

        Returns:
            A new array of ``uint8``, or ``out``.

        Raises:
            ValueError: a negative offset, or an ``out`` that is too small.
            TypeError: an ``out`` in the wrong memory.
            OSError: now or later, as described for the class.
        """
        return self._read(n, offset, out, self._work(stream))

    def submit_read(
        self,
        n: SupportsIndex = -1,
        offset: SupportsIndex = 0,
        *,
        out: object | None = None,
        stream: Stream = None,
    ) -> Future[Array]:
        """Submits a :meth:`read`; returns a future of its result. Does not wait.

        The array of the future can be used by later work of ``stream``, and by any work after the
        future is done. The class describes futures.

        Raises:
            ValueError: the file is closed.
            OSError: the file is not open for reading. The future has all other errors.
        """
        return self._submit(
            os.O_RDONLY, stream, (out,), lambda work: self._read(n, offset, out, work)
        )

    def reader(self) -> FileReader:
        """Returns a Python file that reads this file, for libraries that need one.

        Raises:
            OSError: the file is not open for reading.
        """
        self._check_access(os.O_RDONLY)
        return FileReader(self)

    def readinto(self, out: object, offset: SupportsIndex = 0, *, stream: Stream = None) -> int:
        """Fills ``out`` up to the end of the file. Returns the bytes read.

        Arguments and errors are those of :meth:`read`.
        """
        target = self._target(out, self._stream(stream))
        start = operator.index(offset)
        count = min(target.nbytes, self._bytes_from(start))
        self.read(count, start, out=out, stream=stream)
        return count

    def gather(
        self,
        index: object,
        record_bytes: SupportsIndex,
        *,
        offset: SupportsIndex = 0,
        out: object | None = None,
        stream: Stream = None,
        keep: Keep = "auto",
    ) -> Array:
        """Reads records of ``record_bytes`` each; record i of the result is number ``index[i]``.

        On a GPU it returns before the read is done, on the CPU device after it.

        Args:
            index: integers: an array on the device, or anything that NumPy converts to an array.
                Negative numbers count from the last record.
            record_bytes: bytes of a record, at least 1.
            offset: bytes of the file before record 0.
            out: a writable C-contiguous array of ``uint8`` on the device, with as many bytes as the
                result. ``None``: a new array.
            stream: the CUDA stream. ``None``: the current one.
            keep: whether the loaded pages stay in the cache; see ``Keep``.

        Returns:
            An array of ``uint8`` with the index's shape and a last dimension of ``record_bytes``;
            or ``out``.

        Raises:
            IndexError: the file does not contain the whole record. For an index on the device this
                error comes later, as errors of reads do.
            ValueError: a negative offset, records of no bytes, or an ``out`` of another size.
            TypeError: an ``out`` of another type.
        """
        selection, start = self._records(index, record_bytes, offset)
        return self.read_selection(selection, start, byte_type(), out=out, stream=stream, keep=keep)

    def submit_gather(
        self,
        index: object,
        record_bytes: SupportsIndex,
        *,
        offset: SupportsIndex = 0,
        out: object | None = None,
        stream: Stream = None,
        keep: Keep = "auto",
    ) -> Future[Array]:
        """Submits a :meth:`gather`; returns a future of its result, as :meth:`submit_read`.

        Raises:
            ValueError, IndexError: invalid arguments, as for :meth:`gather`. The future has the
                errors of the read.
        """
        selection, start = self._records(index, record_bytes, offset)
        return self.submit_selection(
            selection, start, byte_type(), out=out, stream=stream, keep=keep
        )

    def _records(
        self, index: object, record_bytes: SupportsIndex, offset: SupportsIndex
    ) -> tuple[Selection, int]:
        """Returns the selection of a gather, and the offset of the first record."""
        import numpy as np

        length, start = operator.index(record_bytes), operator.index(offset)
        if length < 1:
            raise ValueError(f"records of {length} bytes")
        records = self._bytes_from(start) // length
        if not is_on_device(index):
            index = np.asarray(index)
            if index.size == 0:
                index = index.astype(np.int64)
        return select((records, length), (length, 1), 1, (index,), on_device=foreign_array), start

    def write(self, data: object, offset: SupportsIndex = 0, *, stream: Stream = None) -> int:
        """Writes an array's bytes, in C order, at ``offset``.

        A file opened to append ignores ``offset`` and writes at its end. There is no position that
        advances: two writes without an offset go to the same place. On a GPU it returns before the
        write is done, on the CPU device after it.

        Args:
            data: a C-contiguous array on the device; the caller must not change it before the
                stream has executed the write. Or an array of the host, or an object with a buffer
                (``bytes``, ``memoryview``).
            offset: bytes from the beginning of the file.
            stream: the CUDA stream. ``None``: the current one.

        Returns:
            The number of bytes. If they cannot be written, an ``OSError`` comes later, as described
            for the class.

        Raises:
            TypeError: text, a list, or Python objects, which have no bytes of their own.
        """
        return self._write(data, offset, self._work(stream))

    def submit_write(
        self, data: object, offset: SupportsIndex = 0, *, stream: Stream = None
    ) -> Future[int]:
        """Submits a :meth:`write`; returns a future of its result. Does not wait.

        The caller must not change ``data`` before the future is done, wherever the data is. The
        bytes are durable after a later :meth:`fsync`.

        Raises:
            ValueError: the file is closed.
            OSError: the file is not open for writing. The future has all other errors.
        """
        return self._submit(
            os.O_WRONLY, stream, (data,), lambda work: self._write(data, offset, work)
        )

    def stat(self) -> FileStatus:
        """Returns the file's status at the open, with its present size.

        Waits for earlier reads and writes.
        """
        self._submitted.wait()
        return FileStatus(*self._core.status()[:6])

    def truncate(self, size: SupportsIndex) -> None:
        """Sets the file's length to ``size`` bytes.

        Waits for earlier reads and writes, and for the host.
        """
        self._check_access(os.O_WRONLY)
        length = operator.index(size)
        if length < 0:
            raise ValueError(f"negative size: {length}")
        self._check_end(length)
        self._submitted.wait()
        self._core.truncate(length)

    def fsync(self) -> None:
        """Waits until all written bytes are on the disk.

        Raises:
            OSError: a write or a write-back failed. Bytes that could not be written back are kept,
                and the next sync or close tries again.
        """
        self._check_access(os.O_WRONLY)
        self._submitted.wait()
        self._core.sync()
        self._submitted.check()

    def wait(self) -> None:
        """Waits for all earlier reads and writes, on all streams, and raises their first error.

        Errors of submitted reads and writes are raised by their futures.
        """
        self._submitted.wait()
        self._core.wait()

    def close(self) -> None:
        """Closes the file after earlier reads and writes. A second call waits for the first.

        After a fork it does nothing. If Ctrl-C has ended a call whose work goes on, it does not
        wait: the file is closed when that work is done, and ``Mount.unmount`` raises its errors.

        Raises:
            OSError: an earlier read or write failed, or bytes could not be written back and are
                lost.
        """
        if self.closed:
            self._core.close()  # may wait for the close of another thread
            return
        self._submitted.wait()
        if self._access == os.O_RDONLY:
            self._core.close()
            return
        with self._mount.losses.raised_of(self._opened_path):
            self._core.close()
        self._submitted.check()

    # ---- For gpufs.FileArray

    def read_selection(
        self,
        selection: Selection,
        base: int,
        dtype: np.dtype[Any],
        *,
        out: object | None,
        stream: Stream,
        keep: Keep,
    ) -> Array:
        """Reads a selection of an array that begins at byte ``base``."""
        return self._read_selection(selection, base, dtype, out, keep, self._work(stream))

    def submit_selection(
        self,
        selection: Selection,
        base: int,
        dtype: np.dtype[Any],
        *,
        out: object | None,
        stream: Stream,
        keep: Keep,
    ) -> Future[Array]:
        """Submits a read of a selection; returns a future of its result."""
        uses_index = isinstance(selection.list, DeviceList)
        return self._submit(
            os.O_RDONLY,
            stream,
            (out,),
            lambda work: self._read_selection(selection, base, dtype, out, keep, work),
            uses_device=uses_index,
        )


def _opened_again(mount: Mount, path: bytes) -> File:
    return mount.open(path)
