"""What the benchmark of writing measures: gpufs, host threads that write the same, and stores without a file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from gpufs import _core
from gpufs.bench._measure import Sample, Source
from gpufs.bench._sources import taken
from gpufs.bench._world import World

How: TypeAlias = Literal["new", "overwritten"]
Way: TypeAlias = Literal["pwrite", "pwrite from memory", "mapping"]

HOST_CHUNK: Final = 1 << 20
CACHE_PART: Final = 4  # of a file that is written: the cache is so much smaller
# that they are written: some milliseconds on a GPU, besides the first use of all that is needed
CACHED_TIMES: Final = 16
# of a cache whose dirty pages are written again: below the share at which they are written back
DIRTY_PART: Final = 8


@contextlib.contextmanager
def _output(world: World) -> Iterator[Path]:
    """A path beside the other files of the benchmarks, of a file that is gone afterwards."""
    path = world.folder / "written"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _checked(sample: Sample, path: Path) -> Sample:
    return (
        sample
        if _core.bench_holds_content(os.fsencode(path))
        else replace(sample, wrong_bytes=sample.bytes)
    )


def file_by_gpufs(world: World, how: How, workers: int, chunk: int) -> Source:
    """A file from front to back by calls of so many bytes, and its close; in a cache of a quarter of it."""

    def source() -> Generator[Sample]:
        cache = max(world.file_bytes // CACHE_PART, 1 << 22)
        with (
            _output(world) as path,
            world.mount(read_only=False, cache=cache, workers=workers) as mount,
        ):
            content = _core.bench_copy_on_device(mount._core, world.file_bytes)
            try:
                while True:
                    if how == "new":
                        path.unlink(missing_ok=True)
                    sample = _core.bench_write_file(
                        mount._core,
                        os.fsencode(path),
                        content,
                        world.file_bytes,
                        min(chunk, world.file_bytes),
                        0,
                    )
                    yield _checked(taken(sample), path)
            finally:
                content.give_back()

    return source


def file_by_host(world: World, how: How, threads: int, way: Way) -> Source:
    """The same by host threads, a MiB at a time: with ``pwrite``, or by stores into a mapping.

    The MiB stays in the processor's caches; "from memory" writes as many bytes as the file has,
    which do not. Nor do those that come from a GPU.
    """

    def source() -> Generator[Sample]:
        with _output(world) as path:
            while True:
                if how == "new":
                    path.unlink(missing_ok=True)
                chunk = min(HOST_CHUNK, world.file_bytes // threads)
                call = "mapping" if way == "mapping" else "pwrite"
                in_memory = way == "pwrite from memory"
                written = os.fsencode(path), call, world.file_bytes, chunk, threads, in_memory
                yield taken(_core.bench_host_write(*written))

    return source


def _dirty_bytes(world: World) -> int:
    return world.file_bytes // DIRTY_PART


def cached(world: World, chunk: int) -> Source:
    """Chunks at random into pages that are dirty in the cache."""

    def source() -> Generator[Sample]:
        size = _dirty_bytes(world)
        with _output(world) as path, world.mount(read_only=False, cache=world.file_bytes) as mount:
            while True:
                yield taken(
                    _core.bench_write_cached(
                        mount._core, os.fsencode(path), size, chunk, 0, size // chunk * CACHED_TIMES
                    )
                )

    return source


def raw(world: World, chunk: int) -> Source:
    """The same stores without a file system."""

    def source() -> Generator[Sample]:
        size = _dirty_bytes(world)
        with world.mount(cache="16MiB") as mount:
            while True:
                yield taken(
                    _core.bench_raw_write(mount._core, size, chunk, 0, size // chunk * CACHED_TIMES)
                )

    return source


def appends(world: World, record: int) -> Source:
    """Records of all warps to one new file, without its close."""

    def source() -> Generator[Sample]:
        size = _dirty_bytes(world) // record * record
        with _output(world) as path, world.mount(read_only=False, cache=world.file_bytes) as mount:
            while True:
                sample = taken(_core.bench_append(mount._core, os.fsencode(path), size, record, 0))
                yield sample if path.stat().st_size == size else replace(sample, wrong_bytes=size)

    return source
