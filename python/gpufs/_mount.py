"""The class :class:`gpufs.Mount`, which is also :func:`gpufs.mount`."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    cast,
)

from gpufs import _core
from gpufs._array import ArrayEntry, FileArray, TensorHeaders, entry_of, layout_of
from gpufs._file import File, another_name
from gpufs._submit import Submitter
from gpufs.sizes import Size, parse_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpufs.metrics import MetricsServer

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

DEFAULT_METRICS_PORT: Final = 9464  # the usual port of a metrics exporter

_UNLIMITED: Final = 2**64 - 1  # the host API's "half of the host's memory"


class Statistics(TypedDict):
    """Counters of a mount since it began, over all multiprocessors; see :meth:`Mount.stats`."""

    hits: int  # pages found in the cache
    minor_faults: int  # pages that another group was loading at that moment
    direct_loads: int  # pages that the GPU copied from registered host memory
    staged_loads: int  # pages that a host worker loaded
    bulk_loads: int  # pages that the copy engine loaded, in runs
    open_loads: int  # pages that came with the answer to an open
    load_errors: int
    evictions: int  # pages evicted to make room for others
    reclaims: int  # evictions ahead of need (a part of `evictions`)
    lost_races: int  # loads abandoned because another group had begun the same load
    no_frames: int  # calls that ended in ENOBUFS
    direct_bytes: int  # file bytes loaded by the direct path
    staged_bytes: int  # file bytes loaded by the staged path
    bulk_bytes: int  # file bytes loaded by the bulk path
    open_bytes: int  # file bytes that came with an open
    read_bytes: int  # bytes returned to callers of gread
    opens: int  # opens that asked the host
    reopens: int  # opens of files that were already open: no round trip
    closes: int
    rpcs: int  # requests to the host
    rpc_wait_ns: int  # total time that groups waited for answers
    rpc_failures: int  # requests abandoned: the service died, or the deadline passed
    sent_bytes: int  # bytes sent to sinks
    written_bytes: int  # bytes taken from callers of gwrite
    write_backs: int  # dirty pages written to their files
    write_back_bytes: int  # the dirty bytes of these pages
    write_back_errors: int  # write requests that failed
    extents_registered: int  # ranges of files registered for direct loads
    extent_bytes: int  # bytes of these ranges
    # Ranges not registered: the budget was used up, the range was not in the host's page cache, or
    # the driver refused.
    extents_refused: int
    host_open_files: int
    requests_served: int
    # Entry b: major faults that took at least 2**b and less than 2**(b + 1) ns.
    fault_latency_ns: list[int]


class Options(TypedDict):
    """The options of a mount with their defaults filled in; see :attr:`Mount.options`."""

    ordinal: int
    cache_bytes: int
    page_bytes: int
    workers: int
    extent_budget_bytes: int
    extent_bytes: int
    channel_slots: int
    staging_bytes: int
    bulk_bytes: int
    rings: int
    open_files: int
    cpu_threads: int
    reclaim_timeout_ns: int
    request_timeout_ns: int
    unmount_timeout_ns: int
    read_only: bool
    maps_files: bool
    root: bytes | None


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """One file that kernels have open now."""

    path: str  # as os.fsdecode returns it
    size: int  # bytes, at the open
    hits: int  # pages found in the cache since the open
    page_loads: int  # pages loaded, by any path
    direct_loads: int  # pages loaded by the direct or the bulk path
    loaded_bytes: int
    holders: int  # opens that are not closed yet
    extents: int  # ranges registered for direct loads


@dataclass(frozen=True, slots=True)
class FileError:
    """A failed host operation on a file."""

    path: str  # as os.fsdecode returns it
    errno: int
    operation: Literal["write-back", "sync", "close"]
    # The failure happened during the unmount. Nothing retries it, so bytes may be lost.
    at_unmount: bool
    count: int  # how often the same failure happened
    # The last close could not write these bytes; they may be lost.
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class FileErrors:
    """What :meth:`Mount.file_errors` returns."""

    errors: list[FileError]  # in the order of their first occurrence
    dropped: int  # failures for which the list had no room


class DeviceRef:
    """A mount's handle for kernels, in memory of the mount's device.

    :meth:`Mount.device_ref` returns it. Kernels take it as ``const gpufs::mount_ref*``. Pass it as
    follows:

    * where integers are 64-bit arguments (CuPy, ``cuda.core``, Numba): ``ref.address``;
    * where only arrays are pointers (PyTorch): ``torch.as_tensor(ref, device="cuda")``, which
      copies nothing. Every library that knows ``__cuda_array_interface__`` sees an array of bytes.

    The handle keeps the mount alive. After the mount is closed, the address is invalid.
    """

    # The handle is a pointer because all four libraries can pass one: cuda.core and PyTorch cannot
    # pass structs as arguments, and Numba has no C++ types.

    __slots__ = ("_address", "_mount")

    def __init__(self, mount: Mount, address: int) -> None:
        self._mount = mount
        self._address = address

    def __repr__(self) -> str:
        """Returns a text with the address and the mount."""
        return f"<gpufs.DeviceRef at {self._address:#x} of {self._mount!r}>"

    def __reduce__(self) -> NoReturn:
        """Raises ``TypeError``: an address has no meaning in another process."""
        raise TypeError(
            "a handle for kernels is one only in its process: pickle the mount, and ask it there"
        )

    @property
    def address(self) -> int:
        """The address: in GPU memory, or in the process's memory for a mount on the CPU device."""
        return self._address

    @property
    def mount(self) -> Mount:
        """The mount of this handle."""
        return self._mount

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The handle's bytes as an array in GPU memory; libraries must not write to it.

        Raises:
            AttributeError: the mount is on the CPU device.
        """
        if self._mount.device != "cuda":
            raise AttributeError(
                "the mount is on the CPU device, and its handle in no GPU's memory"
            )
        return {
            "shape": (_core.device_ref_bytes,),
            "typestr": "|u1",
            # The data is declared writable, because PyTorch does not take read-only arrays.
            "data": (self._address, False),
            "strides": None,
            "version": 3,
        }


class Mount:
    """A GPU file system instance: a page cache on one device, and the service that fills it.

    The mount is a context manager. It is unmounted at the end of the ``with`` block, by
    :meth:`unmount`, when it is garbage, or when the interpreter exits. All methods may be called
    from several threads.

    After a fork, methods raise ``RuntimeError`` in the child process, and :meth:`unmount` does
    nothing there: neither the GPU nor the service threads survive a fork. After :meth:`unmount`,
    methods raise ``ValueError``, as those of a closed file do. :meth:`file_errors` still works
    then.

    Sizes are numbers of bytes, or text such as ``"8GiB"``.

    Args:
        device: ``"cuda"`` for a GPU, ``"cpu"`` for the CPU device, ``"auto"`` for a GPU if there is
            one and for the CPU device otherwise.
        ordinal: the GPU's number, counted from 0 as CUDA does.
        cache: bytes of the page cache, rounded down to whole pages. ``None``: a quarter of the
            GPU's free memory; 256 MiB on the CPU device.
        page: bytes of a page, a power of two from 512 to 2 MiB.
        workers: service threads. ``None``: half the cores, at least 1, at most 8.
        pinned: bytes of host memory that may be mapped and registered for direct loads. 0: none, so
            all loads are staged. ``None``: half of the host's memory.
        extent: bytes of one registered range, a power of two, at least a page and 64 KiB.
        staging: bytes of pinned host memory for each request, a power of two from 8 KiB to 1 MiB.
            The answer to an open contains the whole file if it is not larger than this.
        slots: concurrent requests, at most 4096. ``None``: 512 on a GPU, 64 on the CPU device.
        bulk: the most bytes that the copy engine loads at once for ``gfadvise`` and large reads, at
            most 16 MiB. A sequential read of a file uses a quarter of it. 0: pages are loaded one
            by one.
        rings: groups of frames that are allocated and evicted together. ``None``: one per
            multiprocessor, fewer for small caches.
        open_files: files open at the same time, at most 131,072.
        cpu_threads: threads of a launch on the CPU device. ``None``: one per core.
        reclaim_timeout_s: seconds after which a call that finds every frame pinned fails with
            ``ENOBUFS``.
        request_timeout_s: total seconds that one request may take; after that it fails with
            ``EIO``. While the process is stopped, at most a tenth of a second counts for each stop.
        unmount_timeout_s: seconds that unmounting waits for kernels and threads that do not end.
        read_only: kernels cannot change anything (``EROFS``). The map of dirty bytes, an eighth of
            the cache's size in addition to the cache, is not allocated.
        maps_files: the service copies to and from mappings of files, and installs a handler of
            SIGBUS for this. ``False``: no handler, and half the rate of staged loads.
        root: a folder. Paths are relative to it, and nothing outside of it is served (``EXDEV``).
            ``None``: all files that the process may open. An empty path is refused.

    Raises:
        ValueError: an invalid option; the text says which.
        TypeError: an option of the wrong type.
        OSError: ``ENODEV``: there is no such GPU. ``ENOTSUP``: gpufs was built without CUDA.
            ``ENOMEM``: not enough memory on the device or on the host. ``EIO``: the driver failed.
            ``ENOSYS``: the system cannot confine paths to ``root`` (before Linux 5.6). Other
            errors: ``root`` cannot be opened.

    Waits until the GPU is awake and the memory is allocated, which may take seconds.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_core",
        "_files",
        "_finalizer",
        "_headers",
        "_latch",
        "_memory",
        "_servers",
        "_written",
        "root",
        "submitter",
        "told",
    )

    def __init__(
        self,
        *,
        device: Device = "auto",
        ordinal: SupportsIndex = 0,
        cache: Size | None = None,
        page: Size = 4096,
        workers: SupportsIndex | None = None,
        pinned: Size | None = None,
        extent: Size = 64 << 20,
        staging: Size = 32 << 10,
        slots: SupportsIndex | None = None,
        bulk: Size = 8 << 20,
        rings: SupportsIndex | None = None,
        open_files: SupportsIndex = 131072,
        cpu_threads: SupportsIndex | None = None,
        reclaim_timeout_s: float = 1.0,
        request_timeout_s: float = 120.0,
        unmount_timeout_s: float = 20.0,
        read_only: bool = False,
        maps_files: bool = True,
        root: str | bytes | os.PathLike[str] | None = None,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name != "self"}
        if not isinstance(device, str):
            raise TypeError(
                f"device must be 'auto', 'cpu' or 'cuda', not {device!r}; which GPU is `ordinal`"
            )
        given_root = None if root is None else os.fsencode(root)
        # Absolute: it stays the same folder when the program changes its directory. Bytes, so no
        # Path.
        self.root = os.path.abspath(given_root) if given_root else given_root  # noqa: PTH100
        self._asked: dict[str, Any] = asked | {"root": self.root}
        self._core = _core.Mount(
            device=device,
            ordinal=operator.index(ordinal),
            cache_bytes=0 if cache is None else _positive("cache", parse_size(cache)),
            page_bytes=_positive("page", parse_size(page)),
            workers=_count("workers", workers),
            extent_budget_bytes=_UNLIMITED if pinned is None else parse_size(pinned),
            extent_bytes=_positive("extent", parse_size(extent)),
            channel_slots=_count("slots", slots),
            staging_bytes=_fitting("staging", parse_size(staging)),
            bulk_bytes=parse_size(bulk),
            rings=_count("rings", rings),
            open_files=_count("open_files", open_files),
            cpu_threads=_count("cpu_threads", cpu_threads),
            reclaim_timeout_ns=_nanoseconds("reclaim_timeout_s", reclaim_timeout_s),
            request_timeout_ns=_nanoseconds("request_timeout_s", request_timeout_s),
            unmount_timeout_ns=_nanoseconds("unmount_timeout_s", unmount_timeout_s),
            read_only=read_only,
            maps_files=maps_files,
            root=given_root,
        )
        if device == "auto" and self._core.device == "cpu" and _misses_gpu():
            text = (
                "on the CPU device, because this gpufs was built without CUDA: "
                "install it again with GPUFS_CUDA=ON"
            )
            warnings.warn(f"{text}, or ask for device='cpu'", RuntimeWarning, stacklevel=2)
        self._memory: _core.DeviceMemory | None = None
        self._headers = TensorHeaders()
        self._files: weakref.WeakSet[File] = weakref.WeakSet()
        # Guards _written, and guards _files against changes during an iteration.
        self._latch = threading.Lock()
        self._written: weakref.WeakValueDictionary[bytes, File] = weakref.WeakValueDictionary()
        self._servers: list[MetricsServer] = []
        self.submitter = Submitter()  # for the submit_... calls of files
        # Paths of files whose lost bytes an exception has already reported.
        self.told: set[str] = set()
        # The finalizer also runs at interpreter exit: the service's threads must not outlive the
        # CUDA runtime.
        self._finalizer = weakref.finalize(
            self,
            _unmount,
            self._core,
            self._files,
            self._latch,
            self._servers,
            self.submitter,
            self.told,
        )

    def __enter__(self) -> Self:
        """Returns the mount."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Unmounts. If an exception is in flight, errors of :meth:`unmount` become its notes."""
        if error is None:
            self.unmount()
            return
        try:
            self.unmount()
        except Exception as lost:  # the exception in flight matters more
            error.add_note(f"gpufs: unmounting failed, too: {lost}")

    def __repr__(self) -> str:
        """Returns a text with the device and the cache's size."""
        if self.closed:
            return "<gpufs.Mount closed>"
        options = self.options
        return (
            f"<gpufs.Mount on {self.device_name!r}, cache {options['cache_bytes']} bytes "
            f"in pages of {options['page_bytes']}>"
        )

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Mount], tuple[dict[str, Any]]]:
        """Pickles the mount's options. Unpickling makes a new mount with a cache of its own."""
        self._core.stats()  # raises if the mount is closed
        return _mounted_again, (self._asked,)

    def device_memory(self) -> _core.DeviceMemory:
        """Returns the allocator for arrays on the mount's device."""
        if self._memory is None:
            self._memory = _core.DeviceMemory(self._core)
        return self._memory

    @property
    def core(self) -> _core.Mount:
        """The extension module's mount."""
        return self._core

    def name_to_write(self, file: File, path: bytes) -> bytes:
        """Reserves for ``file`` a name of ``path`` that no other file open for writing has.

        Returns the name.
        """
        # Also after a fork: the thread that would release the latch may not exist in this process.
        if self.closed:
            return path
        with self._latch:
            while (other := self._written.get(path)) is not None and other.may_have_its_name():
                path = another_name(path)
            self._written[path] = file
        return path

    def unmount(self) -> None:
        """Closes the open files, ends the service and frees the cache. A second call does nothing.

        Writes back the dirty bytes of files that kernels left open, and syncs these files. Waits
        for other threads' calls on this mount, and for kernels that use it at most
        ``unmount_timeout_s``. If a kernel does not end, its bytes are not written, and the memory
        that it may still use stays allocated.

        Does not wait for calls that Ctrl-C has ended: the mount is closed when their work is done,
        or ends with the process.

        Raises:
            OSError: the first error of a file, raised after all work is done: bytes may be lost.
                This includes errors of files that were garbage before they were closed.
                ``filename`` is the file; :meth:`file_errors` returns all errors. ``ETIMEDOUT``: a
                kernel or a call of the host does not end.
        """
        self._finalizer()

    def close(self) -> None:
        """Does the same as :meth:`unmount`."""
        self.unmount()

    @property
    def closed(self) -> bool:
        """Whether the mount was closed, in this process or before the fork in its parent."""
        return self._core.closed

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device that the mount runs on."""
        return cast(Literal["cpu", "cuda"], self._core.device)

    @property
    def device_name(self) -> str:
        """The GPU's name, or the CPU device's name with its number of threads."""
        return self._core.device_name

    @property
    def ordinal(self) -> int:
        """The GPU's number, counted from 0."""
        return self._core.ordinal

    @property
    def multiprocessors(self) -> int:
        """The number of the GPU's multiprocessors, or of the CPU device's threads."""
        return self._core.multiprocessors

    @property
    def direct_path(self) -> str:
        """``"on"``, or the reason why every load is staged."""
        return self._core.direct_path

    @property
    def bulk_path(self) -> str:
        """``"on"``, or the reason why runs of pages are loaded page by page."""
        return self._core.bulk_path

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.options["page_bytes"]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the page cache."""
        return self.options["cache_bytes"]

    @property
    def options(self) -> Options:
        """All options in the host API's units (bytes, nanoseconds), with the defaults filled in."""
        return cast(Options, self._core.options)

    def open(self, path: AnyPath, mode: str = "rb") -> File:
        """Opens a file of the host. A kernel opens it; reads and writes use the device's memory.

        The file shows what other programs wrote before the open. It may not show what they write
        while it is open (close-to-open consistency). Waits for the host.

        Args:
            path: relative to the mount's root, or to the current directory if there is no root.
            mode: as for Python's ``open`` of binary files; the ``b`` may be left out: ``"rb"``,
                ``"r+b"``, ``"wb"``, ``"w+b"``, ``"ab"``, ``"a+b"``, ``"xb"``, ``"x+b"``.

        Raises:
            OSError: as ``open``: ``FileNotFoundError`` and so on, with ``errno`` and ``filename``.
            ValueError: an invalid mode.
        """
        file = File(self, path, mode)
        with self._latch:
            self._files.add(file)
        if self.closed:  # another thread has closed the mount in the meantime
            file.close()
        return file

    def array(
        self,
        path: AnyPath,
        dtype: npt.DTypeLike | object = None,
        shape: SupportsIndex | Iterable[SupportsIndex] | None = None,
        offset: SupportsIndex = 0,
        *,
        name: str | None = None,
    ) -> FileArray:
        """Opens an array in a file. Reads only the header, if the format has one. Waits for it.

        Args:
            path: a ``.npy`` file; a ``.safetensors`` file, with ``name``; any file, with ``dtype``.
            dtype: the type of a raw file's items: a NumPy type or its name (also ``"bfloat16"``,
                ``"float8_e4m3fn"``, ``"float8_e5m2"``), or a PyTorch type.
            shape: the shape of a raw file, in C order. One entry may be -1. ``None``: one dimension
                with all items of the file.
            offset: bytes of a raw file before the first item.
            name: the name of a tensor in a safetensors file.

        Raises:
            OSError: the file cannot be opened or read.
            ValueError: the file is not of its format, or is shorter than its header says.
            KeyError: the file has no tensor of that name.
            TypeError: an unsupported type, or arguments that contradict each other.
        """
        file = self.open(path)
        try:
            return FileArray(file, layout_of(file, self._headers, dtype, shape, offset, name))
        except BaseException:
            file.close()
            raise

    def tensors(self, path: AnyPath) -> dict[str, ArrayEntry]:
        """Returns the tensors of a safetensors file by name, in the file's order.

        Each entry has the tensor's type, shape and position. An entry of an unsupported type has
        only the type's name. The header is parsed once, and :meth:`array` uses it too, until the
        file changes. Waits for the file.

        Raises:
            OSError: the file cannot be opened or read.
            ValueError: it is not a safetensors file, or it is damaged.
        """
        with self.open(path) as file:
            return {name: entry_of(name, layout) for name, layout in self._headers.of(file).items()}

    def device_ref(self) -> DeviceRef:
        """Returns the mount's handle for user kernels, and wakes the service. Does not wait.

        Kernels take it as ``const gpufs::mount_ref*``. Call this method before each launch: the
        handle stays the same, but an idle service that is not woken needs some milliseconds to see
        a kernel's first request. Kernels must end before the mount is closed; the unmount waits for
        them.
        """
        return DeviceRef(self, self._core.device_ref())

    def stats(self) -> Statistics:
        """Returns the counters of the mount and of its service. Does not wait for kernels."""
        return cast(Statistics, self._core.stats())

    def file_stats(self) -> list[FileStatistics]:
        """Returns the counters of each file that kernels have open. Does not wait for kernels."""
        return [
            FileStatistics(os.fsdecode(path), *numbers)
            for path, *numbers in self._core.file_stats()
        ]

    def file_errors(self) -> FileErrors:
        """Returns the errors of files so far; works after :meth:`unmount` too.

        The list includes errors that a kernel has already received.
        """
        errors, dropped = self._core.file_errors()
        return FileErrors(
            [
                FileError(
                    os.fsdecode(path),
                    number,
                    cast(Literal["write-back", "sync", "close"], what),
                    at_unmount,
                    count,
                    given_up,
                )
                for path, number, what, at_unmount, count, given_up in errors
            ],
            dropped,
        )

    def sync_folder(self, path: AnyPath) -> None:
        """Makes a folder's entries durable, as ``os.fsync`` of the folder. Waits for the disk.

        Raises:
            OSError: the path cannot be opened as a folder, or the sync failed; ``filename`` is the
                path.
        """
        self._core.sync_folder(os.fsencode(path))

    @contextlib.contextmanager
    def timeline(self, path: AnyPath, *, events_max: SupportsIndex = 1_000_000) -> Iterator[None]:
        """Records the service's work in the ``with`` block, and writes it to a file at the end.

        The file is JSON in the Trace Event Format, for Perfetto or ``chrome://tracing``. It has one
        bar for each open, staged read, close and send, on the worker that served it, and one for
        each registration. Direct loads and hits do not involve the host; :meth:`stats` counts them.
        After ``events_max`` events, further events are only counted.

        Raises:
            OSError: the file cannot be written.
        """
        with Path(os.fsdecode(path)).open("w", encoding="utf-8") as file:
            self._core.start_timeline(operator.index(events_max))
            try:
                yield
            finally:
                file.write(self._core.stop_timeline())

    def serve_metrics(
        self, *, address: str = "127.0.0.1", port: int = DEFAULT_METRICS_PORT, files: bool = False
    ) -> MetricsServer:
        """Serves :meth:`stats` to Prometheus and ``gpufs top``, until server or mount is closed.

        :func:`gpufs.metrics.serve` describes the endpoint, and serves several mounts at one
        address. Does not wait.

        Args:
            address: the IP address to listen on.
            port: the port to listen on. 0: any free port.
            files: whether to serve the counters of open files, too.

        Raises:
            OSError: the server cannot listen there; ``filename`` is the address with the port.
            ValueError: an invalid port.
        """
        from gpufs import metrics

        self._core.stats()  # raises if the mount is closed
        server = metrics.serve(self, address=address, port=port, files=files)
        self._servers.append(server)
        if self.closed:  # another thread has closed the mount in the meantime
            server.close()
        return server

    def register_file(self, path: AnyPath) -> int:
        """Maps and registers a file for direct loads, within the budget ``pinned``.

        Reads the file into the host's page cache first, and waits for that. Without this call the
        service registers files in the background, when they are in the host's page cache.

        Returns:
            The bytes registered; 0 if there is no direct path.

        Raises:
            OSError: the file cannot be opened; ``errno`` says why, and ``filename`` is the path.
        """
        return self._core.register_file(os.fsencode(path))

    def drop_extents(self) -> None:
        """Unregisters and unmaps all extents, which ends the direct path for them.

        Waits until no other thread uses the mount. No kernel of the mount may run.
        """
        self._core.drop_extents()

    def synchronize(self) -> None:
        """Waits until the device has finished all work.

        Raises:
            OSError: ``EIO``: a kernel failed.
        """
        self._core.synchronize()


def _mounted_again(options: dict[str, Any]) -> Mount:
    return Mount(**options)


mount = Mount
"""The same as :class:`gpufs.Mount`: ``gpufs.mount(cache="8GiB")`` makes a mount."""


def _unmount(
    core: _core.Mount,
    files: weakref.WeakSet[File],
    latch: threading.Lock,
    servers: list[MetricsServer],
    submitter: Submitter,
    told: set[str],
) -> None:
    for server in servers:
        server.close()
    first: Exception | None = None
    try:
        left: list[File] = []
        # After a fork the mount is closed: the thread that would release the latch may not exist.
        if not core.closed:
            with latch:
                left = list(files)
        for file in left:
            try:
                file.close()
            except Exception as error:  # the other files must be closed too
                first = first or error
    finally:
        submitter.close()
        try:
            core.unmount()
        except Exception as error:
            if _is_told(core, told):
                pass
            elif first is None:
                first = error
            else:
                first.add_note(f"gpufs: unmounting failed, too: {error}")
    if first is not None:
        raise first


def _is_told(core: _core.Mount, told: set[str]) -> bool:
    """Returns whether the files' close has already raised every loss that unmounting reports."""
    errors, dropped = core.file_errors()
    lost = [
        given_up and os.fsdecode(path) in told
        for path, _, what, at_unmount, _, given_up in errors
        if at_unmount or given_up or what == "close"
    ]
    return bool(lost) and all(lost) and dropped == 0


def _misses_gpu() -> bool:
    if _core.examine_cuda()["built_version"] != 0:
        return False
    from gpufs._machine import gpu_devices

    return bool(gpu_devices())


def _count(name: str, count: SupportsIndex | None) -> int:
    if count is None:
        return 0
    number = operator.index(count)
    if not 0 < number < 2**32:
        raise ValueError(f"{name} must be at least 1: {number}")
    return number


def _positive(name: str, size_bytes: int) -> int:
    if size_bytes == 0:
        raise ValueError(f"{name} must not be 0 bytes")
    return size_bytes


def _fitting(name: str, size_bytes: int) -> int:
    if not 0 < size_bytes < 2**32:
        raise ValueError(f"{name} must be between 8 KiB and 1 MiB: {size_bytes} bytes")
    return size_bytes


def _nanoseconds(name: str, seconds: float) -> int:
    if not 0 < seconds < 2**33:
        raise ValueError(f"{name} must be greater than 0 and finite: {seconds}")
    return round(seconds * 1e9)
