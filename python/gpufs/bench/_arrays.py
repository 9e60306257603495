"""Sources for the array benchmark: rows and whole files from Python, and small calls."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Generator, Iterator
from typing import Any, Final

from gpufs import _core
from gpufs._array import FileArray
from gpufs._mount import Mount
from gpufs.bench._measure import AbsentError, Sample, Source
from gpufs.bench._peers import Clock, CudaArray, checked, import_peer
from gpufs.bench._sources import register, walk
from gpufs.bench._world import World

CACHE_PART: Final = 4  # The cache is this much smaller than a file whose rows must be missing.
CALLS: Final = 1000
PAGE: Final = 1 << 12


def _seen_as_array(
    world: World, memory: _core.BenchDeviceMemory, shape: tuple[int, ...], kind: str
) -> Any:  # noqa: ANN401
    """Returns device memory as an array that gpufs accepts."""
    if world.device == "cuda":
        return CudaArray(memory.address, shape, kind)
    import numpy as np

    bytes_ = int(np.prod(shape)) * np.dtype(kind).itemsize
    return (
        np.ctypeslib.as_array((ctypes.c_uint8 * bytes_).from_address(memory.address))
        .view(kind)
        .reshape(shape)
    )


@contextlib.contextmanager
def _memory(mount: Mount, bytes_: int) -> Iterator[_core.BenchDeviceMemory]:
    memory = _core.BenchDeviceMemory(mount._core, bytes_)
    try:
        yield memory
    finally:
        memory.give_back()


@contextlib.contextmanager
def _table(world: World, record: int, cache: int) -> Iterator[FileArray]:
    world.bring_into("hot")
    with world.mount(cache=cache) as mount:
        register(world, mount)
        with mount.array(world.path, "uint8", (world.file_bytes // record, record)) as table:
            _core.bench_touch_extents(mount._core, table.file.descriptor, world.file_bytes)
            yield table


def rows(world: World, record: int, operations: int, *, again: bool = False) -> Source:
    """``table[index]`` with the index on the device: of missing rows, or of the same rows again."""
    the_walk = walk(world, "map", record, operations=operations)
    positions = the_walk.positions()
    # When the same rows are read again, each row's page must stay in the cache.
    cache = operations * max(record, PAGE) * 5 // 4 if again else world.file_bytes // CACHE_PART

    def source() -> Generator[Sample]:
        while True:
            with (
                _table(world, record, cache) as table,
                _memory(table.file.mount, len(positions)) as numbers,
                _memory(table.file.mount, operations * record) as memory,
            ):
                text = ctypes.create_string_buffer(positions, len(positions))
                numbers.copy_from_host(ctypes.addressof(text), len(positions))
                index = _seen_as_array(world, numbers, (operations,), "<i8")
                out = _seen_as_array(world, memory, (operations, record), "|u1")
                if again:
                    table.read(index, out=out, keep="always")
                    table.file.wait()
                for _ in range(world.runs + 1 if again else 1):
                    clock = Clock()
                    table.read(index, out=out, keep="always" if again else "auto")
                    table.file.wait()
                    yield checked(clock.sample(operations, operations * record), memory, the_walk)

    return source


def whole_file(world: World) -> Source:
    """``File.read()`` of the whole file into allocated memory."""
    the_walk = walk(world, "map", PAGE, random=False)

    def source() -> Generator[Sample]:
        while True:
            with (
                _table(world, PAGE, world.file_bytes // CACHE_PART) as table,
                _memory(table.file.mount, world.file_bytes) as memory,
            ):
                out = _seen_as_array(world, memory, (world.file_bytes,), "|u1")
                clock = Clock()
                table.file.read(world.file_bytes, out=out)
                table.file.wait()
                yield checked(clock.sample(1, world.file_bytes), memory, the_walk)

    return source


def small_calls(world: World) -> Source:
    """``File.read`` of a cached page: repeated calls, each into a new array."""

    def source() -> Generator[Sample]:
        with _table(world, PAGE, 16 << 20) as table:
            while True:
                table.file.read(PAGE)
                table.file.wait()
                clock = Clock()
                for _ in range(CALLS):
                    table.file.read(PAGE)
                table.file.wait()
                yield clock.sample(CALLS, CALLS * PAGE)

    return source


def torch_index_select(world: World, record: int, operations: int) -> Source:
    """``torch.index_select`` of random rows of a tensor in GPU memory."""

    def source() -> Generator[Sample]:
        torch: Any = import_peer("torch")
        if world.device != "cuda" or not torch.cuda.is_available():
            raise AbsentError("torch sees no GPU" if world.device == "cuda" else "needs a GPU")
        table = torch.zeros((operations, record), dtype=torch.uint8, device="cuda")
        out = torch.empty_like(table)
        index = torch.randperm(operations, device="cuda")
        torch.cuda.synchronize()
        while True:
            clock = Clock()
            torch.index_select(table, 0, index, out=out)
            torch.cuda.synchronize()
            yield clock.sample(operations, operations * record)

    return source
