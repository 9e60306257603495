"""Sources for the writing benchmark: gpufs, host threads, and stores without a file system."""

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
CACHE_PART: Final = 4  # The cache is this much smaller than the written file.
# How often the pages are written: this takes some milliseconds on a GPU, in addition to first uses.
CACHED_TIMES: Final = 16
# The dirty pages are this part of the cache, below the share at which they are written back.
DIRTY_PART: Final = 8


@contextlib.contextmanager
def _output(world: World) -> Iterator[Path]:
    """Yields the path of a file, which is removed at the end."""
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
    """Writes a file from front to back in chunks, and closes it; the cache is a quarter of it."""

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
    """Host threads write the same file, 1 MiB at a time: with ``pwrite`` or through a mapping.

    The 1 MiB stays in the processor's caches. "from memory" writes from as many bytes as the file
    has, which do not; bytes from a GPU do not, either.
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
    """Writes random chunks into dirty pages of the cache."""

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
    """Does the same stores without a file system."""

    def source() -> Generator[Sample]:
        size = _dirty_bytes(world)
        with world.mount(cache="16MiB") as mount:
            while True:
                yield taken(
                    _core.bench_raw_write(mount._core, size, chunk, 0, size // chunk * CACHED_TIMES)
                )

    return source


def appends(world: World, record: int) -> Source:
    """Appends records of all warps to one new file, without its close."""

    def source() -> Generator[Sample]:
        size = _dirty_bytes(world) // record * record
        with _output(world) as path, world.mount(read_only=False, cache=world.file_bytes) as mount:
            while True:
                sample = taken(_core.bench_append(mount._core, os.fsencode(path), size, record, 0))
                yield sample if path.stat().st_size == size else replace(sample, wrong_bytes=size)

    return source
