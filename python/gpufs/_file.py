"""Files of a mount, read and written by kernels: the class of :meth:`gpufs.Mount.open`."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import math
import operator
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, SupportsIndex, TypeAlias, TypeVar, cast

from gpufs import _core
from gpufs._device import (
    NO_STREAM,
    Array,
    ChosenStream,
    DeviceArray,
    ForeignArray,
    Stream,
    chosen_stream,
    device_array,
    foreign_array,
    is_on_device,
    name_of,
)
from gpufs._submit import Submitted, Work

if TYPE_CHECKING:
    import numpy as np

    from gpufs._mount import Mount
    from gpufs._selection import Selection

_Result = TypeVar("_Result")

Keep: TypeAlias = Literal["auto", "always", "never"]
"""Whether the pages that a read loads stay in the cache.

``"auto"`` keeps the pages of pieces from half a page to 1 MiB. A smaller piece is read from host
memory where the GPU can do so, and costs only its own bytes. A larger piece would evict everything
else.
"""

_KEEPS: Final = {"auto": 0, "always": 1, "never": 2}
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


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What :meth:`File.stat` returns."""

    size: int  # bytes; for a file open for writing, including what was written so far
    modified_ns: int  # since the epoch, at the open
    changed_ns: int
    inode: int
    device: int
    mode: int  # st_mode


class File:
    """An open file of a mount. Reads and writes use memory of the mount's device.

    On a GPU, calls that read or write are ordered by a CUDA stream and return before the work is
    done. Work that is later in the same stream can use the result at once. An error of such a call
    is raised by the next call that waits (:meth:`wait`, :meth:`fsync`, :meth:`stat`,
    :meth:`truncate`, :meth:`close`, :meth:`DeviceArray.numpy`) or by any earlier call that finds
    it. On the CPU device the work is done, and its errors are raised, when a call returns; arrays
    are NumPy's.

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
    * Every later :meth:`fsync`, and :meth:`close`, raise the error of a submitted write, too.

    Ctrl-C, or another exception of a signal handler, ends a waiting call of the main thread. The
    call's work goes on in the background and keeps the memory that it uses. Until it is done, the
    contents of ``out`` and of the file are unspecified.

    The file is a context manager. Methods may be called from several threads; :meth:`close` waits
    for the calls of other threads. After it, methods raise ``ValueError``. After a fork, methods
    raise ``RuntimeError`` in the child process, and :meth:`close` does nothing there.
    """

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
        "_submitted",
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
        self._submitted = Submitted()
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

    def size(self) -> int:
        """Returns the bytes of the file at the open; if this mount writes it, its bytes so far.

        May wait for the device.
        """
        if self._size is None or self._core.closed:
            size, *_, is_shared = self._core.status()
            if is_shared:
                return size
            self._size = size
        return self._size

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

    def _read(
        self, n: SupportsIndex, offset: SupportsIndex, out: object | None, work: Work
    ) -> Array:
        self._check_access(os.O_RDONLY)
        wanted, start = operator.index(n), operator.index(offset)
        left = self._bytes_from(start)
        count = left if wanted < 0 or wanted > left else wanted
        chosen = work.stream
        if out is None and count != 0 and not self._on_cpu and work.outcome is None:
            failures = self._core.failures
            buffer = self._core.read_new(self._memory, count, start, chosen.handle)
            return DeviceArray(buffer, (count,), _byte(), self, chosen.owner, failures)
        result: Any
        target: ForeignArray | None = None
        if out is None:
            result, address = self._allocate((count,), _byte(), work)
        else:
            target = self._target(out, chosen)
            if target.nbytes < count:
                raise ValueError(f"out has {target.nbytes} bytes, {count} are needed")
            result, address = out, target.address
        if count != 0:
            self._core.read(address, count, start, chosen.handle, result, work.outcome)
            self._done(work, target)
        return cast("Array", result)

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
        return self.read_selection(selection, start, _byte(), out=out, stream=stream, keep=keep)

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
        return self.submit_selection(selection, start, _byte(), out=out, stream=stream, keep=keep)

    def _records(
        self, index: object, record_bytes: SupportsIndex, offset: SupportsIndex
    ) -> tuple[Selection, int]:
        """Returns the selection of a gather, and the offset of the first record."""
        import numpy as np

        from gpufs._selection import select

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

    def _write(self, data: object, offset: SupportsIndex, work: Work) -> int:
        self._check_access(os.O_WRONLY)
        start = operator.index(offset)
        if start < 0:
            raise ValueError(f"negative offset: {start}")
        chosen = work.stream
        appends = self._access & os.O_APPEND != 0
        on_device = foreign_array(data)
        if on_device is not None:
            source = self._checked(on_device, chosen)
            self._check_end(start + source.nbytes)
            self._core.write(
                source.address, source.nbytes, start, appends, chosen.handle, data, work.outcome
            )
            self._done(work, source)
            return source.nbytes
        host = _host_bytes(data)
        self._check_end(start + host.nbytes)
        if host.nbytes != 0:
            if self._on_cpu:
                self._core.write(
                    host.ctypes.data, host.nbytes, start, appends, 0, host, work.outcome
                )
            else:
                buffer = self._memory.upload(host.ctypes.data, host.nbytes, chosen.handle, host)
                self._core.write(
                    buffer.address, host.nbytes, start, appends, chosen.handle, buffer, work.outcome
                )
            self._done(work)
        return int(host.nbytes)

    def stat(self) -> FileStatus:
        """Returns the file's status at the open, with its present size.

        Waits for earlier reads and writes.
        """
        self._submitted.wait()
        return FileStatus(*self._core.status()[:-1])

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

    def failures(self) -> int:
        """Returns how many calls have raised errors of the device. Does not wait."""
        return self._core.failures

    def check(self) -> None:
        """Raises an error that the device has reported so far. Does not wait."""
        if not self.closed:
            self._core.check()

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
        try:
            self._core.close()
        except OSError as error:
            self._mount.told.add(error.filename)
            raise
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
        from gpufs._selection import HostList

        uses_index = selection.list is not None and not isinstance(selection.list, HostList)
        return self._submit(
            os.O_RDONLY,
            stream,
            (out,),
            lambda work: self._read_selection(selection, base, dtype, out, keep, work),
            uses_device=uses_index,
        )

    def _read_selection(
        self,
        selection: Selection,
        base: int,
        dtype: np.dtype[Any],
        out: object | None,
        keep: Keep,
        work: Work,
    ) -> Array:
        import numpy as np

        from gpufs._selection import HostList

        self._check_access(os.O_RDONLY)
        if keep not in _KEEPS:
            raise ValueError(f"keep must be 'auto', 'always' or 'never', not {keep!r}")
        chosen = work.stream
        nbytes = math.prod(selection.shape) * dtype.itemsize
        result: Any
        target: ForeignArray | None = None
        if out is None:
            result, address = self._allocate(selection.shape, dtype, work)
        else:
            target = self._target(out, chosen)
            if not target.has_bytes and target.dtype != name_of(dtype):
                raise TypeError(
                    f"out has items of type {target.dtype}, the result of type {name_of(dtype)}"
                )
            if target.nbytes != nbytes:
                raise ValueError(f"out has {target.nbytes} bytes, the result {nbytes}")
            if len(target.shape) > 1 and target.shape != selection.shape:
                raise ValueError(f"out has shape {target.shape}, the result {selection.shape}")
            result, address = out, target.address
        if nbytes == 0:
            return cast("Array", result)
        kept: object = None
        index: ForeignArray | None = None
        items, count, item_bytes, is_signed, length, step = 0, 0, 8, True, 0, 1
        if isinstance(selection.list, HostList):
            offsets = np.ascontiguousarray(selection.list.offsets, np.int64)
            count = offsets.size
            if self._on_cpu:
                kept, items = offsets, offsets.ctypes.data
            else:
                buffer = self._memory.upload(
                    offsets.ctypes.data, offsets.nbytes, chosen.handle, offsets
                )
                kept, items = buffer, buffer.address
        elif selection.list is not None:
            index = self._checked(selection.list.items, chosen)
            if index.kind not in "iu":
                raise IndexError("an index on the device must be of integers")
            if index.address % index.itemsize != 0:
                raise ValueError("an index on the device must be aligned to its items")
            items, count, item_bytes, is_signed = (
                index.address,
                math.prod(index.shape),
                index.itemsize,
                index.kind == "i",
            )
            length, step = selection.list.length, selection.list.stride
        self._core.read_selection(
            address,
            base + selection.offset,
            selection.before,
            selection.behind,
            selection.run_bytes,
            items,
            count,
            item_bytes,
            is_signed,
            length,
            step,
            _KEEPS[keep],
            chosen.handle,
            (result, kept),
            work.outcome,
        )
        self._done(work, target, index)
        return cast("Array", result)

    # ----

    def _work(self, stream: Stream) -> Work:
        chosen = self._stream(stream)
        return Work(chosen, chosen, None)

    def _submit(
        self,
        access: int,
        stream: Stream,
        arrays: tuple[object, ...],
        call: Callable[[Work], _Result],
        *,
        uses_device: bool = False,
    ) -> Future[_Result]:
        """Submits ``call`` to a background thread; returns its future.

        If the call uses arrays on the device, it begins after the present work of ``stream``.
        """
        self._check_access(access)
        home, memory = self._stream(stream), self._memory
        place: _core.Place | None = None
        if not self._on_cpu and (uses_device or any(map(is_on_device, arrays))):
            place = memory.place_in(home.handle)

        def run() -> _Result:
            outcome = _core.Outcome(memory)
            chosen = home if self._on_cpu else ChosenStream(memory.background_stream(), memory)
            if place is not None:
                place.hold_back(chosen.handle)
            result = call(Work(chosen, home, outcome))
            outcome.wait()
            return result

        future = self._mount.submitter.submit(run)
        self._submitted.add(future, writes=access == os.O_WRONLY)
        return future

    def _allocate(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], work: Work
    ) -> tuple[Any, int]:
        """Returns a new array on the device, and its address."""
        if self._on_cpu:
            import numpy as np

            array = np.empty(shape, dtype)
            return array, array.ctypes.data
        nbytes = math.prod(shape) * dtype.itemsize
        buffer = self._memory.allocate(nbytes, work.stream.handle, work.home.handle)
        failures = self._core.failures if work.outcome is None else None
        return DeviceArray(buffer, shape, dtype, self, work.home.owner, failures), buffer.address

    @property
    def opened_path(self) -> bytes:
        """The path under which this file was opened.

        Kernels that open it share this file's state.
        """
        return self._opened_path

    def may_have_its_name(self) -> bool:
        """Whether kernels that open :attr:`opened_path` may share this file's state."""
        core = getattr(self, "_core", None)
        return core is None or not core.closed

    def identity(self) -> tuple[int, ...] | None:
        """Returns a value that differs for other files and after each change of this file.

        Returns ``None`` if a change may leave no trace: this mount writes the file, or the file
        changed so shortly before the open that the file system's clock may not have advanced since.
        For files open for reading. Waits.
        """
        size, modified_ns, changed_ns, inode, device, _, is_shared = self._core.status()
        if is_shared or self._opened_ns - changed_ns < _COARSEST_CLOCK_NS:
            return None
        return device, inode, size, modified_ns, changed_ns

    def _opened(self) -> _core.File:
        """Opens the file.

        Kernels that open one path at the same time share the state of the first open, with the
        file's size and content at that time. An open for reading must see the present content: if
        the file has changed since, this method opens it under another name of its path. An open for
        writing always takes a name that no other file of the mount has. The path may mean another
        file by now, and the old one must not be truncated or written.
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
        self._name_for_others = path
        if self._access != os.O_RDONLY:
            path = self._opened_path = self._mount.name_to_write(self, path)
            return self._opened_as(path, name)
        for _ in range(_NAMES_OF_PATH):
            core = self._opened_as(path, name)
            self._opened_path = path
            size, modified_ns, changed_ns, inode, _, _, is_shared = core.status()
            if is_shared:
                return core
            with contextlib.suppress(OSError):
                now = os.stat(host_path)  # noqa: PTH116 - bytes
                if (now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino) == (
                    size,
                    modified_ns,
                    changed_ns,
                    inode,
                ):
                    self._size = size
                    return core
            core.close()
            path = another_name(path)
        self._opened_path = path
        return self._opened_as(path, name)

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

    def _stream(self, stream: Stream) -> ChosenStream:
        return NO_STREAM if self._on_cpu else chosen_stream(stream, self.ordinal)

    def _done(self, work: Work, *used: ForeignArray | None) -> None:
        """Orders later work of the arrays' own streams after this launch, which uses the arrays."""
        if work.outcome is not None:
            return  # the submitter waits for the call's end
        if self._on_cpu:
            self._core.check()
        for array in used:
            if (
                array is not None
                and array.stream is not None
                and array.stream != work.stream.handle
            ):
                self._memory.hold_back(array.stream, work.stream.handle)

    def _checked(self, source: ForeignArray, chosen: ChosenStream) -> ForeignArray:
        """Orders ``chosen`` after the array's own stream.

        Returns the array that its kernels can use.
        """
        if self._on_cpu:
            raise TypeError("an array in GPU memory, but the mount is on the CPU")
        if not source.is_contiguous:
            raise ValueError("an array on the device must be C-contiguous")
        memory = self._memory
        if source.nbytes != 0:
            memory.check_address(source.address)
        if source.stream is not None and source.stream != chosen.handle:
            memory.hold_back(chosen.handle, source.stream)
        return source

    def _target(self, out: object, chosen: ChosenStream) -> ForeignArray:
        if not self._on_cpu:
            target = self._checked(device_array(out), chosen)
        else:
            import numpy as np

            if not isinstance(out, np.ndarray):
                raise TypeError(
                    f"out must be a NumPy array on the CPU device, not {type(out).__name__}"
                )
            if out.dtype.hasobject:
                raise TypeError("out must not be of Python objects")
            if not out.flags.c_contiguous:
                raise ValueError("out must be C-contiguous")
            target = ForeignArray(
                out.ctypes.data,
                out.shape,
                True,
                out.itemsize,
                name_of(out.dtype),
                None,
                not out.flags.writeable,
            )
        if target.read_only:
            raise ValueError("out cannot be written")
        return target


class FileReader(io.RawIOBase):
    """A read-only Python file with a position, over a file of a mount; see :meth:`File.reader`.

    It returns the bytes that kernels see. Each call copies them to the host with one read, so use
    an ``io.BufferedReader`` for small calls. Closing it does not close the mount's file. One thread
    may use it at a time.
    """

    def __init__(self, file: File) -> None:
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
        part = self._file.read(count, self._at)
        host = part.numpy() if isinstance(part, DeviceArray) else part
        self._at += host.nbytes
        return host.data

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


def another_name(path: bytes) -> bytes:
    """Returns another name of the same path."""
    return b"/." + path if path.startswith(b"/") else b"./" + path


def _opened_again(mount: Mount, path: bytes) -> File:
    return mount.open(path)


_OFFSET_MAX: Final = 2**63 - 1  # bytes; the largest off_t
_NAMES_OF_PATH: Final = 8
_COARSEST_CLOCK_NS: Final = 2_000_000_000  # FAT has the coarsest time stamps


@functools.cache
def _byte() -> np.dtype[Any]:
    import numpy as np

    return np.dtype(np.uint8)


def _host_bytes(data: object) -> np.ndarray[Any, Any]:
    """Returns the bytes of an object in host memory, as a C-contiguous array."""
    import numpy as np

    if hasattr(data, "__array__") or hasattr(data, "__array_interface__"):
        array = np.ascontiguousarray(data)
        if array.dtype.hasobject:
            raise TypeError("an array of Python objects has no bytes to be written")
        return array
    return np.frombuffer(cast(Any, data), np.uint8)


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
