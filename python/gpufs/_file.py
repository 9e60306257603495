"""Files of a mount, read and written by kernels on the mount's device: the class behind :meth:`gpufs.Mount.open`."""

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
"""Whether the pages that are read stay in the cache. ``"auto"``: those of pieces from half a page to a MiB. What is
less is read where the host has it, if the GPU can, and costs only its own bytes; what is more would
put everything else
out."""

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
    """What :meth:`File.stat` tells."""

    size: int  # bytes; of a file that is open for writing: with what was written so far
    modified_ns: int  # since the epoch, when it was opened
    changed_ns: int
    inode: int
    device: int
    mode: int  # st_mode


class File:
    """An open file of a mount, whose bytes go to memory of the mount's device and come from there.

    On a GPU, calls that read or write are made in the order of a CUDA stream and return before they
    are done: what they give can be used in that order at once. An error of theirs is raised by the
    next call that waits (:meth:`wait`, :meth:`fsync`, :meth:`stat`, :meth:`truncate`,
    :meth:`close`, :meth:`DeviceArray.numpy`) or by the next call at all that finds it. On the CPU
    CPU device all is done, and errors are raised, when a call returns, and arrays are NumPy's.

    It has no position: ``read`` and ``write`` without an offset begin at byte 0 each time. So it is
    no file for ``pickle.dump``, ``shutil.copyfileobj`` or ``numpy.save``, which would write
    everything to the same place. What only reads takes :meth:`reader`.

    ``submit_read``, ``submit_gather`` and ``submit_write`` return a ``concurrent.futures.Future``
    at once, on the CPU device too. Four such calls of a mount run at a time, in no order; each begins
    after what is in its stream when it is submitted. A future is done when the device is done with
    the call, and has the errors of that call alone. It can be cancelled until the call begins.
    Calls that wait (see above) wait for these, too, but not in a future's callback. The error of a
    write is also raised by every later :meth:`fsync`, and by :meth:`close`.

    Ctrl-C, or what else a signal handler raises, ends a call of the main thread that waits. The
    call's work goes on in the background, with the memory that it uses: what ``out`` and the file
    have then is not known before it is done.

    A context manager. Methods may be called from several threads; :meth:`close` waits for those of
    others. After it they raise ``ValueError``; in a process that was forked off ``RuntimeError``,
    and :meth:`close` does nothing there.
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
        """Opens; see :meth:`gpufs.Mount.open`."""
        self._access = _flags_of(mode)
        self._mount = mount
        # Asked for at every call.
        self._on_cpu = mount.device == "cpu"
        self.ordinal = mount.ordinal  # which GPU
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
        """Whose file it is."""
        return self._mount

    @property
    def name(self) -> str:
        """The path, as it was given."""
        return self._path

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its mount, here or in the process that this one was forked from."""
        return self._core.closed

    @property
    def descriptor(self) -> int:
        """What kernels of one's own give to ``gread`` and the other device calls, while the file is open."""
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
        """Pickled, it is its mount and its path: who unpickles it opens the file anew.

        Raises:
            TypeError: it is open for writing, which processes do not do together.
            ValueError: it is closed.
        """
        if self._access != os.O_RDONLY:
            raise TypeError(f"{self._path}: open for writing, so another process cannot have it")
        self._check_access(os.O_RDONLY)
        return _opened_again, (self._mount, self._name_for_others)

    def __repr__(self) -> str:
        """Says its path, and whether it is closed."""
        return f"<gpufs.File {self._path!r}{' closed' if self.closed else ''}>"

    def size(self) -> int:
        """Bytes of the file: as it was opened, or, if somebody writes it in this mount, as written so far. May wait."""
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
        """Reads ``n`` bytes from ``offset`` on, fewer at the end of the file; all up to it when ``n`` is negative.

        There is no position that goes on: two reads without an offset give the same bytes.

        Returns them as an array of ``uint8``, or ``out`` if that is given: a writable C-contiguous
        array on the device (on the CPU device: of NumPy) of so many bytes at least.

        Raises:
            ValueError: a negative offset, an ``out`` that is too small.
            TypeError: an ``out`` in the wrong memory.
            OSError: now or later, as the class says.
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
        """Begins to read as :meth:`read`; returns a future of what that returns, as the class says.

        An array that the future gives can be used in the order of ``stream``, and anywhere after it
        is done.

        Raises:
            ValueError: the file is closed.
            OSError: it is not open for reading. All else is the future's.
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
        """Returns a file of Python's that reads this one: for libraries that take no other.

        Raises:
            OSError: it is not open for reading.
        """
        self._check_access(os.O_RDONLY)
        return FileReader(self)

    def readinto(self, out: object, offset: SupportsIndex = 0, *, stream: Stream = None) -> int:
        """Fills ``out``, as far as the file goes, and returns how many bytes that were; else as :meth:`read`."""
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
        """Reads records of ``record_bytes`` each: record i of the result is number ``index[i]`` behind ``offset``.

        Args:
            index: integers, an array on the device or what NumPy makes an array of. record_bytes:
            at least 1. offset: where in the file record 0 begins. out: a writable C-contiguous
            array on the device, of bytes (``uint8``), as many as the result has. stream: a CUDA
            stream. keep: whether pages stay in the cache.

        Returns:
            ``uint8`` of the index's shape and, last, ``record_bytes``; or ``out``.

        Raises:
            IndexError: a record that the file has not as a whole; negative numbers count from the
            last. Of an index on
                the device later, as errors of reads are.
            ValueError: a negative offset, records of no bytes, an ``out`` of another size.
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
        """Begins to read as :meth:`gather`; returns a future of what that returns, as :meth:`submit_read`.

        Raises:
            ValueError, IndexError: as :meth:`gather`, of the arguments; what reading gives is the
            future's.
        """
        selection, start = self._records(index, record_bytes, offset)
        return self.submit_selection(selection, start, _byte(), out=out, stream=stream, keep=keep)

    def _records(
        self, index: object, record_bytes: SupportsIndex, offset: SupportsIndex
    ) -> tuple[Selection, int]:
        """Returns what a gather reads, and where the first record begins."""
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
        """Writes an array's bytes, in C order, at ``offset``; behind the end when the file was opened to append.

        There is no position that goes on: two writes without an offset go to the same place.

        Args:
            data: a C-contiguous array on the device, of which nothing may be changed until the
            stream has come behind
                the call; or what has a buffer (``bytes``, ``memoryview``), or is an array of the
                host.
            offset: bytes.
            stream: a CUDA stream.

        Returns:
            How many bytes; if they cannot be written, an ``OSError`` comes later, as the class
            says.

        Raises:
            TypeError: text, a list, Python objects: what has no bytes of its own.
        """
        return self._write(data, offset, self._work(stream))

    def submit_write(
        self, data: object, offset: SupportsIndex = 0, *, stream: Stream = None
    ) -> Future[int]:
        """Begins to write as :meth:`write`; returns a future of what that returns, as the class says.

        Of ``data`` nothing may be changed until the future is done, wherever it is. What was
        written is durable after a later :meth:`fsync`.

        Raises:
            ValueError: the file is closed.
            OSError: it is not open for writing. All else is the future's.
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
        """Describes the file: as it was when it was opened, but for its size. Waits for earlier reads and writes."""
        self._submitted.wait()
        return FileStatus(*self._core.status()[:-1])

    def truncate(self, size: SupportsIndex) -> None:
        """Makes the file ``size`` bytes long. Waits."""
        self._check_access(os.O_WRONLY)
        length = operator.index(size)
        if length < 0:
            raise ValueError(f"negative size: {length}")
        self._check_end(length)
        self._submitted.wait()
        self._core.truncate(length)

    def fsync(self) -> None:
        """Waits until all that was written is on the disk.

        Raises:
            OSError: a write, or writing back to the host, failed; what could not be written back is
            kept for the next
                try.
        """
        self._check_access(os.O_WRONLY)
        self._submitted.wait()
        self._core.sync()
        self._submitted.check()

    def wait(self) -> None:
        """Waits for all earlier reads and writes, on whatever streams, and raises what went wrong.

        What went wrong with submitted reads and writes their futures raise.
        """
        self._submitted.wait()
        self._core.wait()

    def failures(self) -> int:
        """How many calls have raised what went wrong on the device. Does not wait."""
        return self._core.failures

    def check(self) -> None:
        """Raises what has gone wrong so far. Does not wait."""
        if not self.closed:
            self._core.check()

    def close(self) -> None:
        """Closes the file, when earlier reads and writes are done; a second call waits for the first, if need be.

        After a fork it does nothing. Where Ctrl-C has ended a call whose work goes on, it does not
        wait: the file is closed when that work is done, and ``Mount.unmount`` raises what was lost.

        Raises:
            OSError: an earlier read or write failed, or what was written could not be written back
            and is lost.
        """
        if self.closed:
            self._core.close()  # may wait for another thread's
            return
        self._submitted.wait()
        try:
            self._core.close()
        except OSError as error:
            self._mount.told.add(error.filename)
            raise
        self._submitted.check()

    # ---- For gpufs.FileArray.

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
        """Reads what a selection of an array is that begins at byte ``base``."""
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
        """Begins to read it."""
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
        """Has ``call`` made by another thread, after what ``stream`` has now if it uses arrays on the device."""
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
        """An array on the device, and its address."""
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
        """By which kernels that open it share what this file has open, and see the same of it."""
        return self._opened_path

    def may_have_its_name(self) -> bool:
        """Whether kernels that open :attr:`opened_path` may share what this file has open, or is opening."""
        core = getattr(self, "_core", None)
        return core is None or not core.closed

    def identity(self) -> tuple[int, ...] | None:
        """What is different for another file, and after each change of this one; of what is open to be read.

        ``None`` where a change may leave no trace: the file is written in this mount, or it had
        changed so shortly before it was opened that the file system's clock may not have gone on
        since. Waits.
        """
        size, modified_ns, changed_ns, inode, device, _, is_shared = self._core.status()
        if is_shared or self._opened_ns - changed_ns < _COARSEST_CLOCK_NS:
            return None
        return device, inode, size, modified_ns, changed_ns

    def _opened(self) -> _core.File:
        """Opens the file.

        Kernels that open one path at a time share what the first of them opened, with the file's
        size and content of then. Here who opens to read gets what is there now: where that has
        changed, by another name of the path. Who opens to write always takes a name that no other
        file of the mount has, because the path may stand for another file since, and what it stood
        for must not be emptied, or written.
        """
        name = os.fsencode(self._path)
        path, host_path = name, name
        if self._mount.root is None:
            # Not as it is: the program may have gone to another directory since the first open.
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
        """Refuses what a closed file, or one that was opened for something else, does not do."""
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
        """How many bytes the file has behind an offset."""
        if offset < 0:
            raise ValueError(f"negative offset: {offset}")
        size = self.size()
        return size - offset if offset < size else 0

    def _stream(self, stream: Stream) -> ChosenStream:
        return NO_STREAM if self._on_cpu else chosen_stream(stream, self.ordinal)

    def _done(self, work: Work, *used: ForeignArray | None) -> None:
        """After a launch that uses arrays: what another stream does with one of them comes behind it."""
        if work.outcome is not None:
            return  # who has submitted the call waits for its end
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
        """An array that a kernel in ``chosen`` can use, and that is there when it does."""
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
    """A file of a mount as one of Python's: with a position, and to be read only; :meth:`File.reader` makes it.

    Its bytes are those that kernels see, and come to the host by one read for each call: give it to
    ``io.BufferedReader`` where calls are small. Closing it leaves the mount's file open. One thread
    at a time.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    @property
    def name(self) -> str:
        """The path, as it was given."""
        return self._file.name

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Says where the next read begins; returns that from the file's beginning on.

        Raises:
            ValueError: in front of that, or another ``whence`` than 0, 1 and 2.
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
        """Fills the buffer, as far as the file goes; returns how many bytes that were."""
        self._check_open()
        with memoryview(buffer) as given, given.cast("B") as memory:
            read = self._host_bytes(memory.nbytes)
            memory[: len(read)] = read
        return len(read)

    def readall(self) -> bytes:
        """Returns all from the position on."""
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
    """Another name of the same path."""
    return b"/." + path if path.startswith(b"/") else b"./" + path


def _opened_again(mount: Mount, path: bytes) -> File:
    return mount.open(path)


_OFFSET_MAX: Final = 2**63 - 1  # bytes; of off_t
_NAMES_OF_PATH: Final = 8
_COARSEST_CLOCK_NS: Final = 2_000_000_000  # FAT's


@functools.cache
def _byte() -> np.dtype[Any]:
    import numpy as np

    return np.dtype(np.uint8)


def _host_bytes(data: object) -> np.ndarray[Any, Any]:
    """The bytes of what lies in the host's memory, as a C-contiguous array."""
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
