"""The class :class:`gpufs.Mount`, which is also :func:`gpufs.mount`."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from gpufs import _core
from gpufs._array import ArrayEntry, FileArray, entry_of
from gpufs._array_headers import TensorHeaders, layout_of
from gpufs._device_ref import DeviceRef
from gpufs._file import File
from gpufs._losses import Losses
from gpufs._mount_status import MountStatus
from gpufs._options import (
    DEFAULT_METRICS_PORT,
    UNLIMITED,
    AnyPath,
    Device,
    checked_count,
    nanoseconds,
    nonzero_size,
    staging_size,
)
from gpufs._submit import Submitter
from gpufs._unmounting import unmount
from gpufs.sizes import Size, parse_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpufs._metrics_server import MetricsServer


class Mount(MountStatus):
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
        raises_descriptor_limit: the process's soft limit of descriptors is raised to its hard
            limit, for good. The mount keeps a descriptor for each file that it caches; with fewer,
            files are opened again more often.
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
        "_files",
        "_finalizer",
        "_headers",
        "_latch",
        "_memory",
        "_servers",
        "losses",
        "new_names",
        "root",
        "submitter",
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
        raises_descriptor_limit: bool = True,
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
            cache_bytes=0 if cache is None else nonzero_size("cache", parse_size(cache)),
            page_bytes=nonzero_size("page", parse_size(page)),
            workers=checked_count("workers", workers),
            extent_budget_bytes=UNLIMITED if pinned is None else parse_size(pinned),
            extent_bytes=nonzero_size("extent", parse_size(extent)),
            channel_slots=checked_count("slots", slots),
            staging_bytes=staging_size("staging", parse_size(staging)),
            bulk_bytes=parse_size(bulk),
            rings=checked_count("rings", rings),
            open_files=checked_count("open_files", open_files),
            cpu_threads=checked_count("cpu_threads", cpu_threads),
            reclaim_timeout_ns=nanoseconds("reclaim_timeout_s", reclaim_timeout_s),
            request_timeout_ns=nanoseconds("request_timeout_s", request_timeout_s),
            unmount_timeout_ns=nanoseconds("unmount_timeout_s", unmount_timeout_s),
            read_only=read_only,
            maps_files=maps_files,
            raises_descriptor_limit=raises_descriptor_limit,
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
        self.new_names = itertools.count()  # numbers for other names of paths
        self._latch = threading.Lock()  # guards _files against changes during an iteration
        self._servers: list[MetricsServer] = []
        self.submitter = Submitter()  # for the submit_... calls of files
        self.losses = Losses(self._core)
        # The finalizer also runs at interpreter exit: the service's threads must not outlive the
        # CUDA runtime.
        self._finalizer = weakref.finalize(
            self,
            unmount,
            self._core,
            self._files,
            self._latch,
            self._servers,
            self.submitter,
            self.losses,
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
        # The server's libraries are imported only when they are needed.
        from gpufs._metrics_server import MetricsServer

        self._core.stats()  # raises if the mount is closed
        server = MetricsServer([self], address=address, port=port, files=files)
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


def _misses_gpu() -> bool:
    if _core.examine_cuda()["built_version"] != 0:
        return False
    from gpufs._machine import gpu_devices

    return bool(gpu_devices())
