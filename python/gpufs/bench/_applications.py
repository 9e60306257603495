"""Benchmarks of the applications, against programs without gpufs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpufs.bench import _collage, _grep, _linear, _matmul, _search
from gpufs.bench._measure import Case, Task
from gpufs.bench._registry import (
    FRAMES_OF_SMALL_CACHE,
    KIB,
    PAGE,
    benchmark,
    copy_engine_task,
    counts,
)
from gpufs.bench._sources import Shared
from gpufs.bench._world import World


@benchmark(
    "grep",
    "gpufs grep: whole words of a dictionary in source text",
    "words",
)
def _grep_tree(world: World, shared: Shared) -> Iterator[Case]:
    # The dictionary of the GPUfs papers has 58,000 words.
    for wanted in counts(world, (5_000, 58_000), (500,)):
        text = _grep.Text(world, wanted)
        on_cpu = [
            Task(
                f"CPU device, {cores} cores", "GB/s", _grep.search(text, device="cpu", cores=cores)
            )
            for cores in sorted({min(8, world.threads), min(16, world.threads)})
        ]
        yield Case(
            {"where": world.device, "words": len(text.words)},
            Task("gpufs", "GB/s", _grep.search(text, device=world.device)),
            on_cpu[-1],
            None,
            (
                Task(
                    f"CPU, {world.threads} threads",
                    "GB/s",
                    _grep.rival(world, text, "cpu", world.threads),
                ),
                Task(
                    "CUDA, pinned buffers",
                    "GB/s",
                    _grep.rival(world, text, "cuda", min(world.threads, 16)),
                ),
                *on_cpu[:-1],
                Task("rg -w", "GB/s", _grep.ripgrep(world, text, "-w")),
                Task("rg without -w", "GB/s", _grep.ripgrep(world, text)),
            ),
        )


@benchmark("matvec", "A matrix file times a vector file", "columns")
def _matvec(world: World, shared: Shared) -> Iterator[Case]:
    problems = (("float32", 4096), ("bfloat16", 8192), ("float32", 1 << 20), ("float32", 32))
    for dtype, columns in problems[:1] if world.quick else problems:
        problem = _linear.Problem(world, columns, dtype)
        yield Case(
            {"type": dtype, "columns": columns, "run": "first"},
            Task("gpufs", "GB/s", _linear.ours(problem)),
            copy_engine_task(world, shared),
            0.95,
            (
                Task(
                    f"CPU, {world.threads} threads",
                    "GB/s",
                    _linear.rival(problem, world.threads, 0),
                ),
                Task(
                    "CUDA, pinned buffers",
                    "GB/s",
                    _linear.rival(problem, min(world.threads, 16), _linear.PIECE),
                ),
            ),
        )
        yield Case(
            {"type": dtype, "columns": columns, "run": "again"},
            Task("gpufs", "GB/s", _linear.ours(problem, again=True)),
        )


@benchmark("matmul", "Matrix files multiplied into a file (TOCS 2014, section 6.1.5)", "rows")
def _matmul_files(world: World, shared: Shared) -> Iterator[Case]:
    for dtype, problem in _matmul.problems(world):
        yield from _matmul.cases(dtype, problem)


@benchmark(
    "search",
    "Image search: database vectors near queries (TOCS 2014, section 6.2.1)",
    "queries",
)
def _image_search(world: World, shared: Shared) -> Iterator[Case]:
    for problem in _search.problems(world):
        yield from _search.cases(problem, lambda: copy_engine_task(world, shared))


@benchmark(
    "collage",
    "A picture made of the most similar tiles (SYSTOR 2016, section 6.1)",
    "blocks",
)
def _collages(world: World, shared: Shared) -> Iterator[Case]:
    tiles = _collage.Tiles(world)
    sizes = ((512, 384), (1024, 768), (2048, 1536), (4096, 3072), (8192, 6144))
    for width, height in sizes[:2] if world.quick else sizes:
        problem = _collage.Problem(tiles, width // 32, height // 32)
        on_cpu = Task(f"CPU, {world.threads} threads", "k/s", _collage.rival(problem, "cpu"))
        by_cuda = Task("CUDA, the CPU reads", "k/s", _collage.rival(problem, "cuda"))
        resident = Task("CUDA, all in GPU memory", "k/s", _collage.rival(problem, "resident"))
        for page in (PAGE, KIB):  # the size of a record, and that of its histogram
            first = Task("gpufs", "k/s", _collage.ours(problem, page=page))
            yield Case(
                {"blocks": problem.blocks, "page": page, "run": "first"},
                first,
                on_cpu,
                None,
                (by_cuda,),
            )
        if (width, height) == sizes[-1]:
            # The cache is smaller than the data that the picture needs. Pages of a histogram's size
            # make better use of it.
            few = max(world.file_bytes // 16, FRAMES_OF_SMALL_CACHE[world.device] * PAGE)
            for page in (PAGE, KIB):
                small = Task("gpufs", "k/s", _collage.ours(problem, cache=few, page=page))
                yield Case({"blocks": problem.blocks, "page": page, "run": "small cache"}, small)
        again = Task("gpufs", "k/s", _collage.ours(problem, cache=None, again=True))
        yield Case({"blocks": problem.blocks, "page": PAGE, "run": "again"}, again, resident)


APPLICATIONS: Final = ("grep", "matvec", "matmul", "search", "collage")
"""Their benchmarks."""
