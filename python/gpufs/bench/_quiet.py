"""What the host side of a mount costs while it should cost nothing: unused, and under kernels that need no host."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from gpufs import _core
from gpufs._mount import Mount
from gpufs.bench._measure import AbsentError, Counters, Sample
from gpufs.bench._sources import cache_for, register, taken, walk
from gpufs.bench._world import World

Load: TypeAlias = Literal["idle", "hits", "direct"]

PAGE: Final = 4096
MEASURED_S: Final = 2.5  # of a kernel or of idling, about; at least 2 s are wanted
QUICK_MEASURED_S: Final = 0.5
CALM_S: Final = 2.0  # a mount is idle a second after its last request
EVICTING_TIMES: Final = 4  # as large as the cache is the file where every page should be a miss


def samples(world: World, load: Load) -> Generator[Sample]:
    """Yields the CPU time of the service: of all threads but this one, which waits, and the CPU device's kernels.

    ``hits``: one long kernel that reads at random what is in the cache. ``direct``: one that loads
    at random and directly, from a file larger than the cache. To be run in a process of its own.
    """
    seconds = QUICK_MEASURED_S if world.quick else MEASURED_S
    world.bring_into("hot")
    cache = world.file_bytes // EVICTING_TIMES if load == "direct" else cache_for(world)
    with world.mount(cache="16MiB" if load == "idle" else cache) as mount:
        if load == "direct":
            register(world, mount)
        elif load == "hits":
            mount.register_file(world.path)  # as far as it goes: only makes the first pass fast
        fd = _core.bench_open(mount._core, world.name)
        yield from _idling(seconds) if load == "idle" else _walking(world, mount, fd, seconds)


def _idling(seconds: float) -> Generator[Sample]:
    time.sleep(CALM_S)
    while True:
        wall, before = time.perf_counter(), _cpu_of_others()
        time.sleep(seconds)
        yield Sample(time.perf_counter() - wall, _used_since(before), 0, 0, 0)


def _walking(world: World, mount: Mount, fd: int, seconds: float) -> Generator[Sample]:
    once = walk(world, "map", PAGE)
    _core.bench_touch_extents(mount._core, fd, world.file_bytes)
    _core.bench_read(mount._core, fd, walk(world, "map", PAGE, random=False))
    wrong = _core.bench_check(mount._core, fd, once)
    long = _walk_that_takes(world, mount, fd, seconds)
    time.sleep(CALM_S)
    while True:
        earlier, before = _counters(mount), _cpu_of_others()
        made = taken(_core.bench_read(mount._core, fd, long), wrong)
        used = _used_since(before)
        counters = {
            name: count - earlier[name]
            for name, count in _counters(mount).items()
            if count != earlier[name]
        }
        if counters.get("staged_loads", 0) > made.operations / 1000:
            raise AbsentError("pages came through the host, so this is no kernel that needs none")
        yield Sample(made.seconds, used, made.operations, made.bytes, made.wrong_bytes, counters)


def _walk_that_takes(world: World, mount: Mount, fd: int, seconds: float) -> _core.BenchWalk:
    """Returns a walk over the whole file, again and again."""

    def passes(count: int) -> _core.BenchWalk:
        # Blocks that all run at once, and an odd number of them: so each comes to every eighth page
        # at least before it comes to one again, and what was read in one pass is gone in the next
        # where the cache is small.
        blocks = 4 * world.multiprocessors - 1
        return walk(
            world, "map", PAGE, operations=count * (world.file_bytes // PAGE), blocks=blocks
        )

    count, took = 1, _core.bench_read(mount._core, fd, passes(1)).seconds
    while took < seconds / 4:
        count *= 2
        took = _core.bench_read(mount._core, fd, passes(count)).seconds
    return passes(math.ceil(count * seconds / took))


def _counters(mount: Mount) -> Counters:
    return {name: count for name, count in mount.stats().items() if isinstance(count, int)}


def _cpu_of_others() -> dict[int, float]:
    """Returns the CPU seconds of each thread of this process but the caller."""
    seconds = {}
    for thread in map(int, os.listdir("/proc/self/task")):  # noqa: PTH208 - names, not paths
        if thread != threading.get_native_id():
            with suppress(OSError):  # it ended meanwhile
                # How Linux numbers the CPU clock of a thread; schedstat is not there everywhere,
                # stat too coarse.
                seconds[thread] = time.clock_gettime((~thread << 3) | 6)
    return seconds


def _used_since(before: dict[int, float]) -> float:
    """Returns what the threads that are still there used: the CPU device's kernels ran in threads that are not."""
    return sum(now - before.get(thread, 0.0) for thread, now in _cpu_of_others().items())
