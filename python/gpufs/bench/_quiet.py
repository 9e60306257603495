"""Host CPU time of a mount when it should be zero: idle, and under kernels without requests."""

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
MEASURED_S: Final = 2.5  # approximate time of a kernel or of idling; at least 2 s are required
QUICK_MEASURED_S: Final = 0.5
CALM_S: Final = 2.0  # a mount is idle one second after its last request
EVICTING_TIMES: Final = 4  # The file is this much larger than the cache if every page must miss.


def samples(world: World, load: Load) -> Generator[Sample]:
    """Yields the CPU time of the service: of all threads but this one and the kernels' threads.

    ``hits``: a long kernel reads cached pages at random. ``direct``: a long kernel loads pages at
    random by the direct path, from a file larger than the cache. Runs in its own process.
    """
    seconds = QUICK_MEASURED_S if world.quick else MEASURED_S
    world.bring_into("hot")
    cache = world.file_bytes // EVICTING_TIMES if load == "direct" else cache_for(world)
    with world.mount(cache="16MiB" if load == "idle" else cache) as mount:
        if load == "direct":
            register(world, mount)
        elif load == "hits":
            mount.register_file(world.path)  # within the budget; only speeds up the first pass
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
    """Returns a walk over the whole file, repeated for ``seconds``."""

    def passes(count: int) -> _core.BenchWalk:
        # All blocks are resident at once, and their number is odd. So each block visits at least
        # every eighth page before it revisits one. If the cache is small, pages of one pass are
        # evicted before the next pass.
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
    """Returns the CPU seconds of each thread of this process except the caller."""
    seconds = {}
    for thread in map(int, os.listdir("/proc/self/task")):  # noqa: PTH208 - names, not paths
        if thread != threading.get_native_id():
            with suppress(OSError):  # the thread has ended in the meantime
                # Linux's number of a thread's CPU clock. schedstat is not always available, and
                # stat is too coarse.
                seconds[thread] = time.clock_gettime((~thread << 3) | 6)
    return seconds


def _used_since(before: dict[int, float]) -> float:
    """Returns the CPU seconds of the threads that still exist.

    The CPU device's kernels ran in threads that have ended.
    """
    return sum(now - before.get(thread, 0.0) for thread, now in _cpu_of_others().items())
