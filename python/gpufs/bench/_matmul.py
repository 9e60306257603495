"""Sources for the matmul benchmark: gpufs, two programs without it, and PyTorch in memory."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from gpufs import _core, linear
from gpufs.bench._measure import AbsentError, Case, Sample, Source, Task
from gpufs.bench._peers import Clock, import_peer
from gpufs.bench._sources import register
from gpufs.bench._world import World

BLOCK: Final = 1 << 24  # numbers that are generated at once
SHIFT: Final = 977  # numbers by which a block is shifted against the previous one
CHECKED_ROWS: Final = 64
CHECKED_DEPTH: Final = 1024  # rows of the right matrix that are checked at once
# Relative to the sum of the products' absolute values: float32 sums depend on the order.
TOLERANCE: Final = 2e-6
CACHE_MAX: Final = 4 << 30
# Each run has pages of its own for the product: the file has a new version at each open.
RUNS_AGAIN: Final = 5

Sizes: TypeAlias = tuple[int, int, int]  # rows, depth, columns
# pairs of threads and rows of a band; empty: the CPU program
Shapes: TypeAlias = tuple[tuple[int, int], ...]

SIZES: Final[tuple[Sizes, ...]] = (
    (8192, 8192, 8192),
    (16384, 16384, 16384),
    (106_496, 4096, 2048),  # the largest of the paper
    (8192, 65_536, 1024),  # like the paper's reused inputs: the product is small in comparison
)
TWIN_SIZES: Final[Sizes] = (512, 512, 512)
QUICK_SIZES: Final[Sizes] = (300, 1100, 100)


class Problem:
    """Two matrices in files, and some rows of their product by NumPy in float64."""

    def __init__(self, world: World, sizes: Sizes, dtype: str) -> None:
        self.world, self.sizes, self.is_bfloat16 = world, sizes, dtype == "bfloat16"
        self.rows, self.depth, self.columns = sizes
        itemsize = 2 if self.is_bfloat16 else 4
        self.left_bytes, self.right_bytes = (
            self.rows * self.depth * itemsize,
            self.depth * self.columns * itemsize,
        )
        self.out_bytes = self.rows * self.columns * 4
        self.bytes = self.left_bytes + self.right_bytes + self.out_bytes
        self.operations = 2 * self.rows * self.depth * self.columns
        self.out = world.folder / "product"

    @functools.cached_property
    def paths(self) -> tuple[Path, Path]:
        """The files of the matrices. Only one problem's files exist at a time."""
        np: Any = import_peer("numpy")
        left, right = (self.world.folder / name for name in ("left", "right"))
        block = np.random.default_rng(1).standard_normal(BLOCK, np.float32)
        if self.is_bfloat16:
            block = (block.view(np.uint32) >> 16).astype(np.uint16)
        shifts = itertools.count(0, SHIFT)
        for path, bytes_ in ((left, self.left_bytes), (right, self.right_bytes)):
            count = bytes_ // block.itemsize
            with path.open("wb") as file:
                for at in range(0, count, BLOCK):
                    np.roll(block, next(shifts))[: count - at].tofile(file)
            self.world.settle(path)
        return left, right

    def factors(self) -> tuple[Any, Any]:
        """Returns the matrices as mappings."""
        np: Any = import_peer("numpy")
        kind = np.uint16 if self.is_bfloat16 else np.float32
        shapes = ((self.rows, self.depth), (self.depth, self.columns))
        left, right = (
            np.memmap(path, kind, "r", 0, shape)
            for path, shape in zip(self.paths, shapes, strict=True)
        )
        return left, right

    @functools.cached_property
    def expected(self) -> tuple[Any, Any, Any]:
        """The checked row numbers, these rows of the product, and the allowed errors."""
        np: Any = import_peer("numpy")

        def exact(part: Any) -> Any:  # noqa: ANN401
            return (
                (part.astype(np.uint32) << 16).view(np.float32) if self.is_bfloat16 else part
            ).astype(np.float64)

        left, right = self.factors()
        chosen = np.unique(np.linspace(0, self.rows - 1, CHECKED_ROWS).astype(np.int64))
        rows = exact(np.asarray(left[chosen]))
        product, sizes = np.zeros((2, chosen.size, self.columns))
        for k in range(0, self.depth, CHECKED_DEPTH):
            part, others = (
                rows[:, k : k + CHECKED_DEPTH],
                exact(np.asarray(right[k : k + CHECKED_DEPTH])),
            )
            product += part @ others
            sizes += np.abs(part) @ np.abs(others)
        return chosen, product, sizes * TOLERANCE

    def wrong_bytes(self) -> int:
        """Returns the bytes of numbers in checked rows whose error is too large."""
        np: Any = import_peer("numpy")
        if self.out.stat().st_size != self.out_bytes:
            return self.out_bytes
        chosen, expected, bound = self.expected
        found = np.memmap(self.out, np.float32, "r", 0, (self.rows, self.columns))[chosen]
        return int(np.count_nonzero(~(np.abs(found - expected) <= bound))) * 4

    def sample(self, seconds: float, cpu_seconds: float) -> Sample:
        """Returns the sample of a run, after a check of the written product."""
        return Sample(seconds, cpu_seconds, self.operations, self.bytes, self.wrong_bytes())


def ours(problem: Problem, *, again: bool = False) -> Source:
    """``gpufs.linear.matmul`` with matrices registered but not cached, and an empty product file.

    ``again``: the matrices are in the cache, and the product file has the previous run's content.
    """

    def loads(mount: Any) -> int:  # noqa: ANN401
        stats = mount.stats()
        return sum(stats[kind] for kind in ("direct_loads", "staged_loads", "bulk_loads"))

    def multiply(mount: Any) -> Sample:  # noqa: ANN401
        left, right = map(os.fsencode, problem.paths)
        clock = Clock()
        _core.matmul(
            mount.core,
            *(left, 0, problem.rows, problem.depth, right, 0, problem.columns, problem.is_bfloat16),
            *(os.fsencode(problem.out), 0, True),
        )
        done = clock.sample(problem.operations, problem.bytes)
        return problem.sample(done.seconds, done.cpu_seconds)

    def source() -> Generator[Sample]:
        left, right = problem.paths
        # Some pages are kept free, and the rings are not equally full.
        wanted = problem.bytes + ((RUNS_AGAIN - 1) * problem.out_bytes if again else 0)
        cache = max(wanted * 5 // 4 if again else min(wanted * 5 // 4, CACHE_MAX), 16 << 20)
        while True:
            problem.out.write_bytes(b"")
            with problem.world.mount(cache=cache, page=linear.PAGE, read_only=False) as mount:
                register(problem.world, mount, left, problem.left_bytes)
                register(problem.world, mount, right, problem.right_bytes)
                sample = multiply(mount)
                before = loads(mount)
                while again:
                    sample = multiply(mount)
                    if loads(mount) != before:
                        raise AbsentError("the matrices did not stay in the cache")
                    yield sample
            yield sample

    return source


def rival(problem: Problem, shapes: Shapes, *, again: bool = False) -> Source:
    """The CPU program, or the CUDA program with pinned buffers, in the fastest of some shapes.

    Choosing the shape is not timed. ``again``: the product file has the previous run's content.
    """

    def run(shape: tuple[int, int]) -> Sample:
        left, right = map(os.fsencode, problem.paths)
        if not again:
            problem.out.write_bytes(b"")
        cpu = time.process_time()
        seconds = _core.bench_matmul_rival(
            *(left, problem.rows, problem.depth, right, problem.columns, problem.is_bfloat16),
            *(os.fsencode(problem.out), *shape),
        )
        return problem.sample(seconds, time.process_time() - cpu)

    def source() -> Generator[Sample]:
        if shapes[0][1] and problem.world.device != "cuda":
            raise AbsentError("needs a GPU")
        problem.out.touch()
        shape = min(shapes, key=lambda one: run(one).seconds) if len(shapes) > 1 else shapes[0]
        while True:
            yield run(shape)

    return source


def torch_in_memory(problem: Problem) -> Source:
    """``torch.matmul`` of matrices in GPU memory, without files and without rounding to TF32."""

    def source() -> Generator[Sample]:
        torch: Any = import_peer("torch")
        if problem.world.device != "cuda" or not torch.cuda.is_available():
            raise AbsentError(
                "torch sees no GPU" if problem.world.device == "cuda" else "needs a GPU"
            )
        torch.backends.cuda.matmul.allow_tf32 = False
        kind = torch.bfloat16 if problem.is_bfloat16 else torch.float32
        left = torch.randn(problem.rows, problem.depth, device="cuda", dtype=kind)
        right = torch.randn(problem.depth, problem.columns, device="cuda", dtype=kind)
        while True:
            torch.cuda.synchronize()
            clock = Clock()
            torch.matmul(left, right)
            torch.cuda.synchronize()
            yield clock.sample(problem.operations, problem.bytes)

    return source


def problems(world: World) -> Iterator[tuple[str, Problem]]:
    """Yields types and problems: squares, and the largest of the papers' shapes."""
    if world.quick:
        yield "float32", Problem(world, QUICK_SIZES, "float32")
        return
    for sizes in SIZES if world.device == "cuda" else (TWIN_SIZES,):
        for dtype in ("float32", "bfloat16"):
            yield dtype, Problem(world, sizes, dtype)


def cases(dtype: str, problem: Problem) -> Iterator[Case]:
    """Yields the first product of two matrices, and the repeated one."""
    threads = problem.world.threads
    cores, half = min(threads, 16), max(min(threads, 16) // 2, 1)
    shapes = ((cores, 256), (cores, 512), (half, 512), (half, 1024))
    sizes = dict(zip(("rows", "depth", "columns"), problem.sizes, strict=True))

    def pipeline(*, again: bool) -> Task:
        return Task("CUDA, pinned buffers", "TFLOP/s", rival(problem, shapes, again=again))

    yield Case(
        {"type": dtype, **sizes, "run": "first"},
        Task("gpufs", "TFLOP/s", ours(problem)),
        pipeline(again=False),
        0.95,
        (
            Task(f"CPU, {threads} threads", "TFLOP/s", rival(problem, ((threads, 0),))),
            Task("torch, in memory", "TFLOP/s", torch_in_memory(problem)),
        ),
    )
    yield Case(
        {"type": dtype, **sizes, "run": "again"},
        Task("gpufs", "TFLOP/s", ours(problem, again=True)),
        pipeline(again=True),
        2.0,
    )
