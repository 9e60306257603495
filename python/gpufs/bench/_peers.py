"""Peers from other libraries. A peer is absent if its library is missing or fails."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import struct
import time
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any, Final

from gpufs import _core
from gpufs.bench._measure import AbsentError, Sample, Source
from gpufs.bench._sources import walk
from gpufs.bench._world import World

CUFILE_READ_AT_ONCE: Final = 16 << 20
CUFILE_DESCRIPTOR: Final = 1  # CU_FILE_HANDLE_TYPE_OPAQUE_FD


def import_peer(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken library may raise any exception
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise AbsentError(f"no {name} here") from error
        raise AbsentError(f"{name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _needs_gpu(world: World) -> None:
    if world.device != "cuda":
        raise AbsentError("needs a GPU")


class Clock:
    """Measures wall and CPU time between two calls."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def sample(self, operations: int, bytes_: int) -> Sample:
        return Sample(
            time.perf_counter() - self._wall, time.process_time() - self._cpu, operations, bytes_, 0
        )


def checked(sample: Sample, memory: _core.BenchDeviceMemory, the_walk: _core.BenchWalk) -> Sample:
    wrong = memory.wrong_bytes(the_walk)
    return Sample(sample.seconds, sample.cpu_seconds, sample.operations, sample.bytes, wrong)


class CudaArray:
    """Memory as an array for other libraries (version 3 of the CUDA array interface)."""

    def __init__(self, address: int, shape: tuple[int, ...], kind: str = "|u1") -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": kind,
            "data": (address, False),
            "version": 3,
        }


def memmap_gather(world: World, chunk: int, operations: int) -> Source:
    """``numpy.memmap[rows]``, then one copy to the device."""

    def source() -> Generator[Sample]:
        numpy: Any = import_peer("numpy")
        the_walk = walk(world, "map", chunk, operations=operations)
        rows = numpy.frombuffer(the_walk.positions(), dtype=numpy.uint64).astype(numpy.int64)
        mapped = numpy.memmap(
            world.path, dtype=numpy.uint8, mode="r", shape=(world.file_bytes // chunk, chunk)
        )
        world.bring_into("hot")
        with world.mount(cache="16MiB") as mount:
            memory = _core.BenchDeviceMemory(mount._core, operations * chunk)
            try:
                while True:
                    clock = Clock()
                    picked = mapped[rows]
                    memory.copy_from_host(picked.ctypes.data, picked.nbytes)
                    yield checked(clock.sample(operations, operations * chunk), memory, the_walk)
            finally:
                memory.give_back()

    return source


def torch_uva_gather(world: World, chunk: int, operations: int) -> Source:
    """``torch.index_select`` by the GPU from a pinned copy of the file in host memory."""

    def source() -> Generator[Sample]:
        torch: Any = import_peer("torch")
        if world.device != "cuda" or not torch.cuda.is_available():
            raise AbsentError("torch sees no GPU" if world.device == "cuda" else "needs a GPU")
        the_walk = walk(world, "gather", chunk, operations=operations)
        words = chunk // 8
        try:
            pinned = torch.empty(world.file_bytes, dtype=torch.uint8, pin_memory=True)
            with world.path.open("rb", buffering=0) as file:
                view = memoryview(pinned.numpy())
                at = 0
                while at < world.file_bytes:
                    at += file.readinto(view[at : at + (64 << 20)])
            rows = torch.frombuffer(bytearray(the_walk.positions()), dtype=torch.int64).cuda()
            seen = torch.as_tensor(
                CudaArray(pinned.data_ptr(), (world.file_bytes // chunk, words), "<i8"),
                device="cuda",
            )
            with world.mount(cache="16MiB") as mount:
                memory = _core.BenchDeviceMemory(mount._core, operations * chunk)
                try:
                    out = torch.as_tensor(
                        CudaArray(memory.address, (operations, words), "<i8"), device="cuda"
                    )
                    while True:
                        clock = Clock()
                        torch.index_select(seen, 0, rows, out=out)
                        torch.cuda.synchronize()
                        yield checked(
                            clock.sample(operations, operations * chunk), memory, the_walk
                        )
                finally:
                    memory.give_back()
        except (RuntimeError, TypeError, ValueError) as error:
            raise AbsentError(f"torch: {_first_line(error)}") from error

    return source


@contextlib.contextmanager
def _peer(name: str) -> Iterator[None]:
    """Converts any exception of a library into ``AbsentError`` with one line."""
    try:
        yield
    except AbsentError:
        raise
    except Exception as error:
        raise AbsentError(f"{name}: {_first_line(error)}") from error


def _kvikio(threads: int) -> Any:  # noqa: ANN401 - a module
    """Returns kvikio, set up to read through the page cache with ``threads`` threads.

    The file is in the page cache here. Reads past it (GPUDirect Storage, O_DIRECT) would measure
    the disk.
    """
    kvikio, defaults = import_peer("kvikio"), import_peer("kvikio.defaults")
    with _peer("kvikio"):
        defaults.set("compat_mode", kvikio.CompatMode.ON)
        defaults.set("num_threads", threads)
        defaults.set("gds_threshold", 0)  # the caller alone would make smaller reads
        # older versions do not have this option and never read directly
        with contextlib.suppress(KeyError):
            defaults.set("auto_direct_io_read", False)
    return kvikio


def kvikio_read(world: World, threads: int) -> Source:
    """``kvikio.CuFile.read`` of the whole file, with its thread pool."""

    def source() -> Generator[Sample]:
        kvikio = _kvikio(threads)
        _needs_gpu(world)
        whole = walk(world, "map", 4096, random=False)
        world.bring_into("hot")
        with world.mount(cache="16MiB") as mount:
            memory = _core.BenchDeviceMemory(mount._core, world.file_bytes)
            buffer = CudaArray(memory.address, (world.file_bytes,))
            try:
                with _peer("kvikio"), kvikio.CuFile(os.fspath(world.path), "r") as file:
                    while True:
                        clock = Clock()
                        if file.read(buffer) != world.file_bytes:
                            raise AbsentError("kvikio read less than the file")
                        yield checked(clock.sample(1, world.file_bytes), memory, whole)
            finally:
                memory.give_back()

    return source


def kvikio_gather(world: World, chunk: int, operations: int, threads: int) -> Source:
    """``kvikio.CuFile.pread`` of random chunks, all submitted before the first wait."""

    def source() -> Generator[Sample]:
        kvikio = _kvikio(threads)
        _needs_gpu(world)
        the_walk = walk(world, "map", chunk, operations=operations)
        offsets = [row * chunk for (row,) in struct.iter_unpack("=Q", the_walk.positions())]
        world.bring_into("hot")
        with world.mount(cache="16MiB") as mount:
            memory = _core.BenchDeviceMemory(mount._core, operations * chunk)
            places = [CudaArray(memory.address + i * chunk, (chunk,)) for i in range(operations)]
            try:
                with _peer("kvikio"), kvikio.CuFile(os.fspath(world.path), "r") as file:
                    while True:
                        clock = Clock()
                        reads = [
                            file.pread(place, chunk, offset)
                            for place, offset in zip(places, offsets, strict=True)
                        ]
                        if sum(read.get() for read in reads) != operations * chunk:
                            raise AbsentError("kvikio read less than was asked for")
                        yield checked(
                            clock.sample(operations, operations * chunk), memory, the_walk
                        )
            finally:
                memory.give_back()

    return source


class _CuFileError(ctypes.Structure):
    _fields_ = (("error", ctypes.c_int), ("driver_error", ctypes.c_int))


class _CuFileHandle(ctypes.Union):
    _fields_ = (("fd", ctypes.c_int), ("handle", ctypes.c_void_p))


class _CuFileDescription(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("handle", _CuFileHandle), ("operations", ctypes.c_void_p))


def _load_cufile() -> ctypes.CDLL:
    for name in ("libcufile.so.0", "libcufile.so"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for function in ("cuFileDriverOpen", "cuFileHandleRegister"):
            getattr(library, function).restype = _CuFileError
        library.cuFileRead.restype = ctypes.c_ssize_t
        library.cuFileRead.argtypes = (
            *(
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_longlong,
                ctypes.c_longlong,
            ),
        )
        library.cuFileHandleDeregister.argtypes = (ctypes.c_void_p,)
        library.cuFileHandleDeregister.restype = None
        return library
    raise AbsentError("no libcufile here")


def cufile_read(world: World) -> Source:
    """``cuFileRead`` of the whole file by one thread, in large pieces."""

    def source() -> Generator[Sample]:
        with _peer("libcufile"):
            library = _load_cufile()
        _needs_gpu(world)
        whole = walk(world, "map", 4096, random=False)
        with world.mount(cache="16MiB") as mount:
            memory = _core.BenchDeviceMemory(mount._core, world.file_bytes)
            fd = os.open(world.path, os.O_RDONLY | os.O_DIRECT)
            handle = ctypes.c_void_p()
            try:
                opened = library.cuFileDriverOpen()
                if opened.error != 0:
                    raise AbsentError(f"cuFileDriverOpen gave {opened.error}")
                description = _CuFileDescription(CUFILE_DESCRIPTOR, _CuFileHandle(fd=fd), None)
                registered = library.cuFileHandleRegister(
                    ctypes.byref(handle), ctypes.byref(description)
                )
                if registered.error != 0:
                    raise AbsentError(
                        f"libcufile does not accept the file: error {registered.error}"
                    )
                while True:
                    clock = Clock()
                    for at in range(0, world.file_bytes, CUFILE_READ_AT_ONCE):
                        piece = min(CUFILE_READ_AT_ONCE, world.file_bytes - at)
                        got = library.cuFileRead(handle, memory.address, piece, at, at)
                        if got != piece:
                            raise AbsentError(f"cuFileRead gave {got}")
                    yield checked(clock.sample(1, world.file_bytes), memory, whole)
            finally:
                if handle:
                    library.cuFileHandleDeregister(handle)
                os.close(fd)
                memory.give_back()

    return source
