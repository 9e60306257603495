"""Sources of samples: for gpufs, for limits, and for peers that the engine contains."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpufs import _core
from gpufs._mount import Mount
from gpufs._statistics import Statistics
from gpufs.bench._measure import AbsentError, Counters, Sample, Source, Task
from gpufs.bench._world import State, World

COPY_CHUNK: Final = 16 << 20  # large enough for the copy engine's full rate
DISK_CHUNK: Final = 1 << 20
PIPELINE_CHUNKS: Final = (1 << 20, 4 << 20, 16 << 20)  # the fastest one counts
GATHERED_BYTES_MAX: Final = 1 << 30
ADVISED_CHUNK: Final = 8 << 20  # the length of a bulk load
# Each has two runs in flight: this keeps the copy engine busy while other blocks compute.
ADVISED_BLOCKS: Final = 64


def walk(
    world: World,
    access: str,
    chunk: int,
    *,
    random: bool = True,
    span: int | None = None,
    operations: int | None = None,
    blocks: int = 0,
    threads: int = 256,
) -> _core.BenchWalk:
    """Returns a walk; by default over each chunk of the file once, in random order."""
    reach = world.file_bytes if span is None else span
    return _core.BenchWalk(
        access=access,
        random=random,
        span_bytes=reach,
        chunk_bytes=chunk,
        operations=reach // chunk if operations is None else operations,
        blocks=blocks,
        threads=threads,
    )


def taken(
    sample: _core.BenchSample, wrong_bytes: int = 0, statistics: Statistics | None = None
) -> Sample:
    """Returns the engine's sample as a Python sample, with the result of a check."""
    counters: Counters = {}
    if statistics is not None:
        counters = {
            name: count for name, count in statistics.items() if isinstance(count, int) and count
        }
    return Sample(
        sample.seconds,
        sample.cpu_seconds,
        sample.operations,
        sample.bytes,
        sample.wrong_bytes + wrong_bytes,
        counters,
    )


# --- gpufs ---


@dataclass(frozen=True)
class Variant:
    """A way to read a whole file from front to back: mount options, and the kernels' accesses."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    advised: bool = False  # blocks call gfadvise for a part, and then read it

    def walk(self, world: World, page: int) -> _core.BenchWalk:
        """Returns the kernels' walk."""
        if not self.advised:
            return walk(world, "map", page, random=False)
        chunk = max(page, min(ADVISED_CHUNK, world.file_bytes // 16))
        return walk(
            world,
            "advised_map",
            chunk,
            random=False,
            blocks=ADVISED_BLOCKS if world.device == "cuda" else 0,
        )


# Add new ways to read whole files (for example, mount options) here.
SEQUENTIAL_VARIANTS: Final = (Variant("gpufs"), Variant("gpufs, advised", advised=True))


def cache_for(world: World) -> int:
    """Returns the size of a cache that holds the whole file, with a reserve."""
    return max(world.file_bytes * 9 // 8, 16 << 20)


def register(
    world: World, mount: Mount, path: Path | None = None, bytes_: int | None = None
) -> None:
    """Registers the world's file, or another one, for direct loads."""
    if mount.register_file(path or world.path) < (bytes_ or world.file_bytes):
        raise AbsentError(
            mount.direct_path
            if mount.direct_path != "on"
            else "not all of the file could be registered"
        )


def first_touch(
    world: World,
    the_walk: _core.BenchWalk,
    *,
    registered: bool = True,
    state: State = "hot",
    variant: Variant = SEQUENTIAL_VARIANTS[0],
    **options: Any,  # noqa: ANN401 - Mount says what they are
) -> Source:
    """Reads through a new mount: every first touch misses. A second pass checks the data."""

    def source() -> Generator[Sample]:
        while True:
            obstacle = world.bring_into(state)
            if obstacle:
                raise AbsentError(obstacle)
            with world.mount(**({"cache": cache_for(world)} | options | variant.options)) as mount:
                if registered:
                    register(world, mount)
                fd = _core.bench_open(mount._core, world.name)
                if registered:
                    _core.bench_touch_extents(mount._core, fd, world.file_bytes)
                sample = _core.bench_read(mount._core, fd, the_walk)
                counted = mount.stats()
                made = taken(sample, _core.bench_check(mount._core, fd, the_walk), counted)
            yield made

    return source


def hits(world: World, the_walk: _core.BenchWalk, *, page: int) -> Source:
    """Reads cached data: the whole file was read before."""

    def source() -> Generator[Sample]:
        world.bring_into("hot")
        with world.mount(cache=cache_for(world), page=page) as mount:
            mount.register_file(world.path)  # within the budget; only speeds up the first pass
            fd = _core.bench_open(mount._core, world.name)
            _core.bench_touch_extents(mount._core, fd, world.file_bytes)
            _core.bench_read(mount._core, fd, walk(world, "map", page))
            wrong = _core.bench_check(mount._core, fd, the_walk)
            while True:
                yield taken(_core.bench_read(mount._core, fd, the_walk), wrong, mount.stats())

    return source


def small_files(world: World, workers: int) -> Source:
    def source() -> Generator[Sample]:
        folder = world.small_folder()
        while True:
            with world.mount(
                cache="1GiB" if world.device == "cuda" else "256MiB", workers=workers
            ) as mount:
                sample = _core.bench_open_small_files(mount._core, folder, 0, world.small_files)
                made = taken(sample, statistics=mount.stats())
            yield made

    return source


def reopens(world: World, operations: int) -> Source:
    def source() -> Generator[Sample]:
        with world.mount(cache="16MiB") as mount:
            while True:
                yield taken(
                    _core.bench_reopen(mount._core, world.name, operations),
                    statistics=mount.stats(),
                )

    return source


# --- Limits ---


def raw_pull(world: World, the_walk: _core.BenchWalk) -> Source:
    """Kernels load from the file's pages in the page cache, registered for the device."""

    def source() -> Generator[Sample]:
        world.bring_into("hot")
        with world.mount(cache="16MiB") as mount:
            pages = _core.bench_registered_file(mount._core, world.name, world.file_bytes)
            try:
                while True:
                    yield taken(_core.bench_raw_pull(mount._core, pages, the_walk))
            finally:
                pages.give_back()

    return source


def raw_read(world: World, the_walk: _core.BenchWalk) -> Source:
    """Kernels read a copy of the file in device memory."""

    def source() -> Generator[Sample]:
        with world.mount(cache="16MiB") as mount:
            memory = _core.bench_copy_on_device(mount._core, world.file_bytes)
            try:
                while True:
                    yield taken(_core.bench_raw_read(mount._core, memory, the_walk))
            finally:
                memory.give_back()

    return source


def copy_engine(world: World) -> Source:
    def source() -> Generator[Sample]:
        with world.mount(cache="16MiB") as mount:
            while True:
                yield taken(
                    _core.bench_copy_engine(
                        mount._core, world.file_bytes, min(COPY_CHUNK, world.file_bytes)
                    )
                )

    return source


def host_read(world: World, way: str, the_walk: _core.BenchWalk, threads: int) -> Source:
    """Host threads copy from the page cache, or (``direct_io``) read from the disk."""

    def source() -> Generator[Sample]:
        if way != "direct_io":
            world.bring_into("hot")
        while True:
            try:
                sample = _core.bench_host_read(world.name, way, the_walk, threads)
            except OSError as error:
                if way != "direct_io":
                    raise
                raise AbsentError(f"direct I/O: {error.strerror}") from error
            yield taken(sample)

    return source


# --- Programs without gpufs ---


def read_then_copy(world: World, state: State = "hot") -> Source:
    def source() -> Generator[Sample]:
        with world.mount(cache="16MiB") as mount:
            while True:
                obstacle = world.bring_into(state)
                if obstacle:
                    raise AbsentError(obstacle)
                yield taken(_core.bench_read_then_copy(mount._core, world.name, world.file_bytes))

    return source


def pipeline(world: World, threads: int, state: State = "hot") -> Source:
    """Threads with two pinned buffers each. Choosing the fastest chunk is not timed."""

    def source() -> Generator[Sample]:
        with world.mount(cache="16MiB") as mount:

            def run(chunk: int) -> _core.BenchSample:
                return _core.bench_pipeline(
                    mount._core, world.name, world.file_bytes, chunk, threads
                )

            world.bring_into("hot")
            chunks = [
                chunk for chunk in PIPELINE_CHUNKS if chunk * threads <= world.file_bytes
            ] or [world.file_bytes // threads]
            chunk = min(chunks, key=lambda size: run(size).seconds)
            while True:
                obstacle = world.bring_into(state)
                if obstacle:
                    raise AbsentError(obstacle)
                yield taken(run(chunk))

    return source


def host_small_files(world: World, threads: int) -> Source:
    def source() -> Generator[Sample]:
        folder = world.small_folder()
        while True:
            yield taken(_core.bench_host_open_small_files(folder, 0, world.small_files, threads))

    return source


def host_reopens(world: World, operations: int, threads: int) -> Source:
    def source() -> Generator[Sample]:
        while True:
            yield taken(_core.bench_host_reopen(os.fsencode(world.path), operations, threads))

    return source


# --- Shared tasks ---


class Shared:
    """Returns the same task for the same key, so that a run of the program measures it once."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[object, ...], Task] = {}

    def task(self, key: tuple[object, ...], make: Callable[[], Task]) -> Task:
        if key not in self._tasks:
            self._tasks[key] = make()
        return self._tasks[key]
