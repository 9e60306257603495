"""Sources for the search benchmark: ``gpufs search`` and two programs without gpufs."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from gpufs import _core, search
from gpufs.bench._linear import PIECE
from gpufs.bench._measure import AbsentError, Case, Sample, Source, Task, Unit
from gpufs.bench._peers import Clock, import_peer
from gpufs.bench._sources import register
from gpufs.bench._world import World

BLOCK: Final = 1 << 24  # numbers that are generated at once
CACHE: Final = 2 << 30  # as in the paper
# Numbers by which a block is shifted against the previous one. Odd, so that vectors differ.
SHIFT: Final = 977
TOLERANCE: Final = 1e-12  # relative, of squared distances: float64 sums depend on the order

VectorsFile: TypeAlias = tuple[bytes, int, int, int]
Answers: TypeAlias = tuple[Any, Any]  # squared distances and indices


@dataclass(frozen=True)
class Wanted:
    """The parameters of a search."""

    name: str
    threshold: float
    top: int


# Vectors of a thousand random numbers are about 45 apart: none is within 1, and all are within
# 10**9.
NO_MATCH: Final = Wanted("no match", 1.0, 0)
FIRST: Final = Wanted("the first vector", 1e9, 0)
NEAREST: Final = Wanted("the nearest 10", math.inf, 10)


class Problem:
    """Queries and databases in files. Only one problem's files exist at a time."""

    def __init__(
        self, world: World, queries: int, dimensions: int, counts: tuple[int, ...], cache: int
    ) -> None:
        self.world, self.queries, self.dimensions, self.counts = world, queries, dimensions, counts
        self.cache = max(cache, 16 << 20)  # bytes
        self.bytes = sum(counts) * dimensions * 4

    @functools.cached_property
    def files(self) -> tuple[VectorsFile, list[VectorsFile]]:
        """The files of the queries and of the databases, for the extension module."""
        np: Any = import_peer("numpy")
        block = np.random.default_rng(1).standard_normal(BLOCK, np.float32)
        shift = 0

        def write(name: str, count: int) -> VectorsFile:
            nonlocal shift
            path = self.world.folder / name
            with path.open("wb") as file:
                left = count * self.dimensions
                while left > 0:
                    for part in (
                        block[shift : shift + left],
                        block[: min(shift, max(0, left - (BLOCK - shift)))],
                    ):
                        file.write(part.data)
                        left -= part.size
                    shift = (shift + SHIFT) % BLOCK
            return os.fsencode(path), 0, self.dimensions * 4, count

        queries = write("queries", self.queries)
        databases = [write(f"database{i}", count) for i, count in enumerate(self.counts)]
        self.world.settle(Path(os.fsdecode(databases[-1][0])))
        return queries, databases

    @functools.cache  # noqa: B019 - as many as there are questions
    def expected(self, wanted: Wanted) -> Answers:
        """Returns the result of the CPU program."""
        squared, indices, _ = self.by_rival(wanted, self.world.threads, 0)
        return self._arrays(squared, indices)

    def by_rival(
        self, wanted: Wanted, threads: int, piece_bytes: int
    ) -> tuple[bytes, bytes, float]:
        queries, databases = self.files
        return _core.bench_search_rival(
            queries, databases, self.dimensions, wanted.threshold, wanted.top, threads, piece_bytes
        )

    def wrong_bytes(self, wanted: Wanted, squared: bytes, indices: bytes) -> int:
        """Returns the bytes of indices whose vectors are not as near as the expected ones."""
        np: Any = import_peer("numpy")
        (found, at), (expected, expected_at) = self._arrays(squared, indices), self.expected(wanted)
        if at.size != expected_at.size:
            return int(expected_at.size) * 8
        is_near = np.isclose(found, expected, rtol=TOLERANCE, atol=0)
        return int(np.count_nonzero(~is_near | ((at != expected_at) & (wanted.top == 0)))) * 8

    @staticmethod
    def _arrays(squared: bytes, indices: bytes) -> Answers:
        np: Any = import_peer("numpy")
        return np.frombuffer(squared, np.float64), np.frombuffer(indices, np.uint64)


def ours(problem: Problem, wanted: Wanted, *, again: bool = False) -> Source:
    """The engine call of ``gpufs.search.find``; ``again``: with the files in the cache.

    The files are registered.
    """

    def source() -> Generator[Sample]:
        world = problem.world
        queries, databases = problem.files
        while True:
            with world.mount(cache=problem.cache, page=search.PAGE) as mount:
                for path, _, stride, count in (queries, *databases):
                    register(world, mount, Path(os.fsdecode(path)), stride * count)

                def look(mount: Any = mount) -> tuple[bytes, bytes]:  # noqa: ANN401
                    return _core.search(
                        mount.core,
                        queries,
                        databases,
                        problem.dimensions,
                        wanted.threshold,
                        wanted.top,
                        True,
                    )

                if again:
                    look()
                clock = Clock()
                found = look()
                # Counted as one operation: a search whose own time matters is shown in
                # microseconds.
                sample = clock.sample(1, problem.bytes)
            wrong = problem.wrong_bytes(wanted, *found)
            yield Sample(sample.seconds, sample.cpu_seconds, sample.operations, sample.bytes, wrong)

    return source


def rival(problem: Problem, wanted: Wanted, threads: int, piece_bytes: int) -> Source:
    """The CPU program (no pieces), or the CUDA program with pinned buffers."""

    def source() -> Generator[Sample]:
        if piece_bytes != 0 and problem.world.device != "cuda":
            raise AbsentError("needs a GPU")
        _ = problem.files
        while True:
            cpu = time.process_time()
            *found, seconds = problem.by_rival(wanted, threads, piece_bytes)
            cpu = time.process_time() - cpu
            yield Sample(seconds, cpu, 1, problem.bytes, problem.wrong_bytes(wanted, *found))

    return source


def problems(world: World) -> Iterator[Problem]:
    """Yields the papers' shapes, and one with databases far larger than the cache."""
    if world.quick or world.device == "cpu":
        yield Problem(world, 40, 256, (700, 700, 700), 0)
        return
    for queries, dimensions, count in ((2016, 4096, 25_000), (560, 1024, 10_000)):
        counts = (count,) * 3
        yield Problem(world, queries, dimensions, counts, CACHE)
    yield Problem(world, 64, 4096, (world.file_bytes // (4096 * 4),), world.file_bytes // 8)


def cases(problem: Problem, copy_engine: Callable[[], Task]) -> Iterator[Case]:
    """Yields the cases of a problem. Scans are compared with the copy engine."""
    world = problem.world
    shape = {
        "queries": problem.queries,
        "dimensions": problem.dimensions,
        "vectors": sum(problem.counts),
    }
    scan = ours(problem, NO_MATCH)
    cores = min(world.threads, 16)

    def peers(wanted: Wanted, unit: Unit) -> tuple[Task, ...]:
        return (
            Task(f"CPU, {world.threads} threads", unit, rival(problem, wanted, world.threads, 0)),
            Task("CUDA, pinned buffers", unit, rival(problem, wanted, cores, PIECE)),
        )

    yield Case(
        {**shape, "found": NO_MATCH.name},
        Task("gpufs", "GB/s", scan),
        copy_engine(),
        0.90,
        peers(NO_MATCH, "GB/s"),
    )
    yield Case(
        {**shape, "found": FIRST.name},
        Task("gpufs", "us", ours(problem, FIRST)),
        Task("gpufs, no match", "us", scan),
        None,
        peers(FIRST, "us"),
    )
    yield Case(
        {**shape, "found": NEAREST.name},
        Task("gpufs", "GB/s", ours(problem, NEAREST)),
        copy_engine(),
        None,
        peers(NEAREST, "GB/s"),
    )
    if problem.cache >= problem.bytes:
        yield Case(
            {**shape, "found": f"{NO_MATCH.name}, again"},
            Task("gpufs", "GB/s", ours(problem, NO_MATCH, again=True)),
        )
