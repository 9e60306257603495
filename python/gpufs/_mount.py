"""The class behind :func:`gpufs.mount`."""

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

DEFAULT_METRICS_PORT: Final = 9464  # where exporters of metrics listen by habit

_UNLIMITED: Final = 2**64 - 1  # the host API's "half of the host's memory"


class Statistics(TypedDict):
    """What a mount counted since it began, summed over its multiprocessors; see :meth:`Mount.stats`."""

    hits: int  # pages found in the cache
    minor_faults: int  # pages that another group was loading just then
    direct_loads: int  # pages that the GPU pulled from registered host memory
    staged_loads: int  # pages that a host worker brought
    bulk_loads: int  # pages that the copy engine brought, in runs
    open_loads: int  # pages that came with the answer to an open
    load_errors: int
    evictions: int  # pages given up for others
    reclaims: int  # of these: ahead of need
    lost_races: int  # loads given up because another group had begun the same
    no_frames: int  # calls that ended in ENOBUFS
    direct_bytes: int  # file bytes by the direct path
    staged_bytes: int  # by the staged path
    bulk_bytes: int  # by the bulk path
    open_bytes: int  # with an open
    read_bytes: int  # given to callers of gread
    opens: int  # that asked the host
    reopens: int  # of files that were open: no round trip
    closes: int
    rpcs: int  # requests to the host
    rpc_wait_ns: int  # time that groups waited for answers, in all
    rpc_failures: int  # requests given up: service dead, or deadline passed
    sent_bytes: int  # to sinks
    written_bytes: int  # taken from callers of gwrite
    write_backs: int  # dirty pages written to their files
    write_back_bytes: int  # ... their bytes, as far as they were dirty
    write_back_errors: int  # requests to write that failed
    extents_registered: int  # ranges of files that are registered for direct loads
    extent_bytes: int  # their size
    extents_refused: (
        int  # not registered: budget used up, not in the host's page cache, or the driver said no
    )
    host_open_files: int
    requests_served: int
    fault_latency_ns: list[
        int
    ]  # entry b: major faults that took at least 2**b and less than 2**(b + 1) ns


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

    path: str  # as os.fsdecode gives it
    size: int  # bytes, when it was opened
    hits: int  # pages found in the cache, since it was opened
    page_loads: int  # pages brought in, by whatever path
    direct_loads: int  # of these: by the direct or the bulk path
    loaded_bytes: int
    holders: int  # opens not closed yet
    extents: int  # registered for direct loads


@dataclass(frozen=True, slots=True)
class FileError:
    """What failed for a file, in the host."""

    path: str  # as os.fsdecode gives it
    errno: int
    operation: Literal["write-back", "sync", "close"]
    at_unmount: (
        bool  # met while the mount ended, so that nobody tries again: bytes are lost, or may be
    )
    count: int  # how often the same happened
    given_up: bool = False  # bytes that the last close could not write: they are lost, or may be


@dataclass(frozen=True, slots=True)
class FileErrors:
    """What :meth:`Mount.file_errors` returns."""

    errors: list[FileError]  # in the order in which they happened first
    dropped: int  # failures that the list had no room for


class DeviceRef:
    """The handle by which kernels use a mount, in memory of the mount's device; :meth:`Mount.device_ref` makes it.

    Kernels take it as ``const gpufs::mount_ref*``. How it is passed:

    * where integers are 64-bit arguments (CuPy, ``cuda.core``, Numba): ``ref.address``;
    * where only arrays are pointers (PyTorch): ``torch.as_tensor(ref, device="cuda")``, which
      copies nothing. It is an array of bytes to all that know ``__cuda_array_interface__``.

    Holds on to the mount, but a mount that is closed leaves nothing at the address.
    """

    # A pointer is what all four routes can pass: cuda.core and PyTorch know no structs as
    # arguments, and Numba no types of C++.

    __slots__ = ("_address", "_mount")

    def __init__(self, mount: Mount, address: int) -> None:
        self._mount = mount
        self._address = address

    def __repr__(self) -> str:
        """Says where it is."""
        return f"<gpufs.DeviceRef at {self._address:#x} of {self._mount!r}>"

    def __reduce__(self) -> NoReturn:
        """Refused: it is an address."""
        raise TypeError(
            "a handle for kernels is one only in its process: pickle the mount, and ask it there"
        )

    @property
    def address(self) -> int:
        """Where it lies: in GPU memory, or in the process's memory where the mount is on the CPU device."""
        return self._address

    @property
    def mount(self) -> Mount:
        """Whose handle it is."""
        return self._mount

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The handle's bytes as an array in GPU memory, for libraries; not to be written to.

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
            # It says that it may be written to, because PyTorch takes no arrays that may not.
            "data": (self._address, False),
            "strides": None,
            "version": 3,
        }


class Mount:
    """One GPU file system instance of this process: a page cache on one device, and the service that fills it.

    A context manager; it is unmounted at the end of the ``with`` block, by :meth:`unmount`, when it
    is garbage, and when the interpreter ends. All methods may be called from several threads. In a
    process that was forked off they raise ``RuntimeError`` (and :meth:`unmount` does nothing):
    neither GPU nor service threads survive a fork. After :meth:`unmount` they raise ``ValueError``,
    as those of a closed file do; but :meth:`file_errors` goes on.

    Args:
        device: ``"cuda"`` for a GPU, ``"cpu"`` for the CPU device, ``"auto"`` for a GPU if there is
        one, else the CPU device. ordinal: which GPU, counted from 0 as CUDA does. cache: bytes of the
        page cache, rounded down to whole pages. ``None``: a quarter of the GPU's free memory; 256
            MiB on the CPU device.
        page: bytes of a page, a power of two from 512 to 2 MiB. workers: service threads. ``None``:
        half the cores, at least 1, at most 8. pinned: bytes of host memory that may be mapped and
        registered for direct loads. 0: none, so that all loads are
            staged. ``None``: half of the host's memory.
        extent: bytes of one registered range, a power of two, at least a page and 64 KiB. staging:
        bytes of pinned host memory of each request, a power of two from 8 KiB to 1 MiB; files up to
        this size
            come whole with their open.
        slots: requests under way at once, at most 4096. ``None``: 512 on a GPU, 64 on the CPU device.
        bulk: the most bytes that the copy engine loads at once, at most 16 MiB: for ``gfadvise``
        and large reads; a
            quarter of it where a file is merely read from front to back. 0: pages are loaded one by
            one.
        rings: groups of frames that are allocated and evicted together. ``None``: one per
        multiprocessor, fewer for
            small caches.
        open_files: open files at once, at most 131,072. cpu_threads: threads of a launch on the
        CPU device. ``None``: one per core. reclaim_timeout_s: seconds after which a call that finds every
        frame pinned gives up (``ENOBUFS``). request_timeout_s: seconds that one request may take in
        all (``EIO``). Of each time in which the process is
            stopped a tenth of a second counts.
        unmount_timeout_s: seconds that unmounting waits for kernels and threads that do not end.
        read_only: kernels cannot change anything (``EROFS``), and the memory that tells which bytes
        of a page are
            dirty, an eighth of the cache's size beside the cache, is not allocated.
        maps_files: the service copies to and from mappings of files, for which it puts a handler of
        SIGBUS in place.
            ``False``: no handler, and half the rate of staged loads.
        root: a folder; nothing outside of it is served (``EXDEV``), and paths are relative to it.
        ``None``: all that
            the process may open. An empty path is refused.

    Sizes are numbers, or text such as ``"8GiB"``.

    Raises:
        ValueError: an option that cannot be; the text says which. TypeError: an option of the wrong
        type. OSError: ``ENODEV`` without such a GPU, ``ENOTSUP`` when gpufs was built without CUDA,
        ``ENOMEM`` when the
            memory of the device or of the host does not suffice, ``EIO`` when the driver fails; why
            ``root`` cannot be opened, ``ENOSYS`` where the system cannot keep to it (before Linux
            5.6).

    Waits for the GPU to wake up and for the memory, which may take seconds.
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
        # Out of which nothing is served, wherever the program goes.
        # noqa: PTH100 - bytes
        self.root = os.path.abspath(given_root) if given_root else given_root
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
            text = "on the CPU device, because this gpufs was built without CUDA: install it again with GPUFS_CUDA=ON"
            warnings.warn(f"{text}, or ask for device='cpu'", RuntimeWarning, stacklevel=2)
        self._memory: _core.DeviceMemory | None = None
        self._headers = TensorHeaders()
        self._files: weakref.WeakSet[File] = weakref.WeakSet()
        self._latch = (
            threading.Lock()
        )  # guards _files against changes while it is read, and _written
        self._written: weakref.WeakValueDictionary[bytes, File] = weakref.WeakValueDictionary()
        self._servers: list[MetricsServer] = []
        self.submitter = Submitter()  # for calls of files that give futures
        self.told: set[str] = set()  # paths of files of whose lost bytes an exception has told
        # Also runs when the interpreter ends: the service's threads must not outlive the CUDA
        # runtime.
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
        """Unmounts. What :meth:`unmount` raises becomes a note of an exception that is under way already."""
        if error is None:
            self.unmount()
            return
        try:
            self.unmount()
        except Exception as lost:  # the first one says more
            error.add_note(f"gpufs: unmounting failed, too: {lost}")

    def __repr__(self) -> str:
        """Says where it runs and how large its cache is."""
        if self.closed:
            return "<gpufs.Mount closed>"
        options = self.options
        return (
            f"<gpufs.Mount on {self.device_name!r}, cache {options['cache_bytes']} bytes "
            f"in pages of {options['page_bytes']}>"
        )

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Mount], tuple[dict[str, Any]]]:
        """Pickled, it is its options: who unpickles it mounts anew, with a cache of its own."""
        self._core.stats()  # raises what a closed mount raises
        return _mounted_again, (self._asked,)

    def device_memory(self) -> _core.DeviceMemory:
        """What arrays of the mount are allocated from."""
        if self._memory is None:
            self._memory = _core.DeviceMemory(self._core)
        return self._memory

    @property
    def core(self) -> _core.Mount:
        """The extension module's mount."""
        return self._core

    def name_to_write(self, file: File, path: bytes) -> bytes:
        """Returns a name of the path that no other open file has which may write; ``file`` has it from now on."""
        if (
            self.closed
        ):  # also in a forked process, where nobody may be left who would release the latch
            return path
        with self._latch:
            while (other := self._written.get(path)) is not None and other.may_have_its_name():
                path = another_name(path)
            self._written[path] = file
        return path

    def unmount(self) -> None:
        """Closes the files that are open, ends the service and frees the cache. The second time it does nothing.

        What kernels wrote and did not close is written to its files, and these are synced. Waits
        for calls of other threads on this mount, and a bounded time for kernels that use it; of a
        kernel that never ends nothing is written, and the memory that it may still use stays
        allocated. Does not wait for calls that Ctrl-C has ended: the mount is closed when their
        work is done, or ends with the process.

        Raises:
            OSError: the first error of a file, when all is done: bytes are lost, or may be; also of
            a file that was
                garbage before anybody closed it. ``filename`` says of which file;
                :meth:`file_errors` has all. ``ETIMEDOUT``: a kernel, or a call of the host, does
                not end.
        """
        self._finalizer()

    def close(self) -> None:
        """As :meth:`unmount`."""
        self.unmount()

    @property
    def closed(self) -> bool:
        """Whether it was closed, here or in the process that this one was forked from."""
        return self._core.closed

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where it runs."""
        return cast(Literal["cpu", "cuda"], self._core.device)

    @property
    def device_name(self) -> str:
        """The GPU's name, or that of the CPU device with its number of threads."""
        return self._core.device_name

    @property
    def ordinal(self) -> int:
        """Which GPU."""
        return self._core.ordinal

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors of the GPU; threads of the CPU device."""
        return self._core.multiprocessors

    @property
    def direct_path(self) -> str:
        """``"on"``, or why every load is staged."""
        return self._core.direct_path

    @property
    def bulk_path(self) -> str:
        """``"on"``, or why runs of pages are loaded page by page."""
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
        """Opens a file of the host, by a kernel, for reads and writes between it and memory of the device.

        ``mode`` is that of Python's ``open`` for binary files (the ``b`` may be left out):
        ``"rb"``, ``"r+b"``, ``"wb"``, ``"w+b"``, ``"ab"``, ``"a+b"``, ``"xb"``, ``"x+b"``. What
        other programs wrote before is seen; what they write as long as the file is open may not be
        (close-to-open consistency). A relative path is one of the current directory, or of the
        mount's root.

        Raises:
            OSError: as ``open``: ``FileNotFoundError`` and so on, with ``errno`` and ``filename``.
            ValueError: an impossible mode.
        """
        file = File(self, path, mode)
        with self._latch:
            self._files.add(file)
        if self.closed:  # meanwhile, by another thread
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
        """Opens an array in a file; nothing of it is read but where it says its shape.

        Args:
            path: a ``.npy`` file; a ``.safetensors`` file, with ``name``; with ``dtype`` any file.
            dtype: of a raw file: a NumPy type or its name (also ``"bfloat16"``,
            ``"float8_e4m3fn"``,
                ``"float8_e5m2"``), or one of PyTorch.
            shape: of a raw file, in C order. One entry may be -1; ``None``: one dimension, as many
            items as there are. offset: of a raw file: bytes in front of the first item. name: of
            the tensor in a safetensors file.

        Raises:
            OSError: the file cannot be opened or read.
            ValueError: it is not what it should be, or shorter than it says.
            KeyError: no tensor of that name.
            TypeError: a type that arrays here do not have, or arguments that do not go together.
        """
        file = self.open(path)
        try:
            return FileArray(file, layout_of(file, self._headers, dtype, shape, offset, name))
        except BaseException:
            file.close()
            raise

    def tensors(self, path: AnyPath) -> dict[str, ArrayEntry]:
        """Returns the names of the tensors in a safetensors file, in the file's order, each with its type and place.

        Those of a type that arrays here do not have are there too, with nothing but the type's
        name. The header is parsed once, also for all tensors that are opened by :meth:`array`, as
        long as the file does not change.

        Raises:
            OSError: the file cannot be opened or read.
            ValueError: it is no safetensors file, or a damaged one.
        """
        with self.open(path) as file:
            return {name: entry_of(name, layout) for name, layout in self._headers.of(file).items()}

    def device_ref(self) -> DeviceRef:
        """Returns the handle for kernels of your own (``const gpufs::mount_ref*``), and wakes the service.

        Call it at each launch: the handle is always the same, but a service that has had nothing to
        do for a while and is not woken takes some milliseconds to see a kernel's first request.
        Kernels must have ended when the mount is closed; it waits for them.
        """
        return DeviceRef(self, self._core.device_ref())

    def stats(self) -> Statistics:
        """Returns the counters of the mount and of its service. Does not wait for kernels."""
        return cast(Statistics, self._core.stats())

    def file_stats(self) -> list[FileStatistics]:
        """Returns what was counted for each file that kernels have open now. Does not wait for kernels."""
        return [
            FileStatistics(os.fsdecode(path), *numbers)
            for path, *numbers in self._core.file_stats()
        ]

    def file_errors(self) -> FileErrors:
        """Returns what went wrong with files so far, also what a kernel was told of. Also after :meth:`unmount`."""
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
        """Makes what was created, renamed and removed in a folder durable, as ``os.fsync`` of it. Waits for the disk.

        Raises:
            OSError: it cannot be opened as a folder, or what its sync gave; ``filename`` is the
            path.
        """
        self._core.sync_folder(os.fsencode(path))

    @contextlib.contextmanager
    def timeline(self, path: AnyPath, *, events_max: SupportsIndex = 1_000_000) -> Iterator[None]:
        """Records what the service does in the ``with`` block, and writes it to a file at the block's end.

        The file is JSON in the Trace Event Format, for Perfetto or ``chrome://tracing``: one bar
        for each open, staged read, close and send on the worker that served it, and for each
        registration. Direct loads and hits never come to the host; :meth:`stats` counts them. After
        ``events_max`` events the rest is counted, not kept.

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
        """Serves :meth:`stats` to Prometheus and ``gpufs top``, until the mount or what is returned is closed.

        See :func:`gpufs.metrics.serve`, also for several mounts at one address. ``port``: 0 for any
        that is free.

        Raises:
            OSError: it cannot listen there; ``filename`` is the address with the port.
            ValueError: a port that cannot be.
        """
        from gpufs import metrics

        self._core.stats()  # raises what a closed mount raises
        server = metrics.serve(self, address=address, port=port, files=files)
        self._servers.append(server)
        if self.closed:  # meanwhile, by another thread
            server.close()
        return server

    def register_file(self, path: AnyPath) -> int:
        """Maps and registers a file for direct loads now, as far as the budget (``pinned``) goes.

        Returns the bytes registered: 0 where there is no direct path. Reads the file into the
        host's page cache first, and waits for that. Other files are registered in the background,
        when they are in the host's page cache.

        Raises:
            OSError: the file cannot be opened; ``errno`` and ``filename`` say why and which.
        """
        return self._core.register_file(os.fsencode(path))

    def drop_extents(self) -> None:
        """Ends the direct path for all that is registered, and frees it.

        Waits until no other thread uses the mount. No kernel of the mount may run.
        """
        self._core.drop_extents()

    def synchronize(self) -> None:
        """Waits until the device has ended all work.

        Raises:
            OSError: ``EIO`` when a kernel failed.
        """
        self._core.synchronize()


def _mounted_again(options: dict[str, Any]) -> Mount:
    return Mount(**options)


mount = Mount
"""Mounts: ``gpufs.mount(cache="8GiB")`` is :class:`gpufs.Mount` called."""


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
        if (
            not core.closed
        ):  # in a forked process it is, where nobody may be left who would release the latch
            with latch:
                left = list(files)
        for file in left:
            try:
                file.close()
            except Exception as error:  # whatever it is, the others are to be closed too
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
    """Whether all that unmounting says is lost was raised already, by the files' close."""
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
