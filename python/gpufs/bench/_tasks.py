"""Tasks that several benchmarks of the library share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpufs.bench import _peers, _writing
from gpufs.bench._measure import Task
from gpufs.bench._registry import FRAMES_OF_SMALL_CACHE, PAGE, counts
from gpufs.bench._sources import (
    Shared,
    Variant,
    first_touch,
    host_read,
    pipeline,
    raw_pull,
    walk,
)
from gpufs.bench._world import State, World


def fitting(world: World, sizes: Iterable[int]) -> list[int]:
    """Returns the sizes that are small enough for many groups to work on the file at once."""
    return [size for size in sizes if size * 64 <= world.file_bytes]


def cache_has_enough_frames(world: World, times: int) -> bool:
    """Returns whether a cache that is ``times`` smaller than the file has enough frames."""
    return world.file_bytes // times // PAGE >= FRAMES_OF_SMALL_CACHE[world.device]


def worker_counts(world: World) -> tuple[int, ...]:
    """Returns worker and thread counts. The CPU device's kernels need cores, too."""
    if world.device == "cpu":
        return (1, 2)
    return counts(world, (1, 2, 4, 8, 16), (1, 8, 16))


def pull_task(
    world: World,
    shared: Shared,
    chunk: int,
    *,
    random: bool = True,
    blocks: int = 0,
    operations: int = 0,
) -> Task:
    def make() -> Task:
        the_walk = walk(
            world, "map", chunk, random=random, blocks=blocks, operations=operations or None
        )
        return Task("raw pulls", "GB/s", raw_pull(world, the_walk))

    return shared.task(("pull", chunk, random, blocks, operations), make)


def first_touch_task(world: World, shared: Shared, page: int, variant: Variant) -> Task:
    """Reads the whole file from front to back, with extents registered."""

    def make() -> Task:
        return Task(
            "gpufs",
            "GB/s",
            first_touch(world, variant.walk(world, page), page=page, variant=variant),
        )

    return shared.task(("first touch", page, variant.name), make)


def pipeline_task(world: World, shared: Shared, threads: int, state: State = "hot") -> Task:
    name = f"pipeline, {threads} threads"
    return shared.task(
        ("pipeline", threads, state), lambda: Task(name, "GB/s", pipeline(world, threads, state))
    )


def host_copy_task(
    world: World, shared: Shared, chunk: int, threads: int, way: str = "mapping"
) -> Task:
    def make() -> Task:
        operations = min(world.file_bytes // chunk, threads * (1 << 18) * PAGE // chunk)
        the_walk = walk(world, "map", chunk, operations=operations)
        call = "memcpy" if way == "mapping" else "pread"
        return Task(
            f"host {call}, {threads} threads", "GB/s", host_read(world, way, the_walk, threads)
        )

    return shared.task(("host", way, chunk, threads), make)


def host_writes_task(
    world: World, shared: Shared, how: _writing.How, threads: int, way: _writing.Way
) -> Task:
    name = f"{'stores into a mapping' if way == 'mapping' else way}, {threads} threads"
    source = _writing.file_by_host(world, how, threads, way)
    return shared.task(("written", how, threads, way), lambda: Task(name, "GB/s", source))


def disk_task(world: World, shared: Shared, chunk: int, threads: int, *, random: bool) -> Task:
    def make() -> Task:
        operations = min(world.file_bytes // chunk, (1 << 14) if random else (2 << 30) // chunk)
        the_walk = walk(world, "map", chunk, random=random, operations=operations)
        return Task(
            f"disk, {threads} threads", "GB/s", host_read(world, "direct_io", the_walk, threads)
        )

    return shared.task(("disk", chunk, threads, random), make)


def kvikio_tasks(world: World, shared: Shared) -> Iterator[Task]:
    for threads in (1, 8, 16):
        name = f"KvikIO ({threads} thread{'s' if threads > 1 else ''})"  # a series each in plots
        yield shared.task(
            ("kvikio", threads),
            lambda name=name, threads=threads: Task(
                name, "GB/s", _peers.kvikio_read(world, threads)
            ),  # type: ignore[misc]
        )
