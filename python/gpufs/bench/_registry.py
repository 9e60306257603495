"""Benchmarks by name, and parts that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpufs.bench._measure import Case, Task
from gpufs.bench._sources import Shared, copy_engine
from gpufs.bench._world import World

KIB: Final = 1024
MIB: Final = 1024 * KIB
PAGE: Final = 4 * KIB

# With fewer frames per warp, a call may find all frames pinned.
FRAMES_OF_SMALL_CACHE: Final = {"cuda": 16384, "cpu": 64}

Make: TypeAlias = Callable[[World, Shared], Iterable[Case]]


@dataclass(frozen=True)
class Benchmark:
    """A named benchmark.

    Attributes:
        name: the name on the command line.
        title: one line for people.
        axis: the parameter on the x axis of a plot.
        make: returns the cases for a world; fewer of them if the world is quick.
    """

    name: str
    title: str
    axis: str
    make: Make


BENCHMARKS: Final[dict[str, Benchmark]] = {}


def benchmark(name: str, title: str, axis: str) -> Callable[[Make], Make]:
    """Returns a decorator that registers a function as a benchmark."""

    def register(make: Make) -> Make:
        BENCHMARKS[name] = Benchmark(name, title, axis, make)
        return make

    return register


def counts(world: World, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the values of an axis; a quick run has fewer."""
    return quick if world.quick else full


def copy_engine_task(world: World, shared: Shared) -> Task:
    """Returns the limit of large transfers over the bus."""
    name = "copy engine" if world.device == "cuda" else "memcpy (no copy engine)"
    return shared.task(("copy engine",), lambda: Task(name, "GB/s", copy_engine(world)))
