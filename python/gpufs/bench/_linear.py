"""Sources for the matvec benchmark: ``gpufs matvec`` and two programs without gpufs."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from gpufs import _core, linear
from gpufs.bench._measure import AbsentError, Sample, Source
from gpufs.bench._peers import Clock, import_peer
from gpufs.bench._sources import register
from gpufs.bench._world import World

PIECE: Final = 8 << 20  # bytes of a piece of the pipeline
BLOCK: Final = 1 << 24  # numbers that are generated at once
# Relative to the sum of the products' absolute values: float32 sums depend on the order.
TOLERANCE: Final = 1e-4


class Problem:
    """A matrix and a vector in files, and their product by NumPy."""

    def __init__(self, world: World, columns: int, dtype: str) -> None:
        self.world, self.columns, self.is_bfloat16 = world, columns, dtype == "bfloat16"
        self.rows = world.file_bytes // (columns * (2 if self.is_bfloat16 else 4))
        self.bytes = world.file_bytes

    @functools.cached_property
    def paths(self) -> tuple[Path, Path]:
        """The files of the matrix and the vector. Only one problem's files exist at a time."""
        np: Any = import_peer("numpy")
        matrix, vector = (self.world.folder / name for name in ("matrix", "vector"))
        block = np.random.default_rng(1).standard_normal(BLOCK, np.float32)
        if self.is_bfloat16:
            block = (block.view(np.uint32) >> 16).astype(np.uint16)
        with matrix.open("wb") as file:
            left = self.bytes // block.itemsize
            while left > 0:
                file.write(block[: min(left, BLOCK)].data)
                left -= BLOCK
        block[: self.columns].tofile(vector)
        self.world.settle(matrix)
        return matrix, vector

    @functools.cached_property
    def expected(self) -> tuple[Any, Any]:
        """The product of the first block's rows, and the allowed error of each number."""
        np: Any = import_peer("numpy")
        kind = np.uint16 if self.is_bfloat16 else np.float32
        a, x = (
            np.fromfile(path, kind, count)
            for path, count in zip(self.paths, (BLOCK, self.columns), strict=True)
        )
        if self.is_bfloat16:
            a, x = ((part.astype(np.uint32) << 16).view(np.float32) for part in (a, x))
        a = a[: a.size // self.columns * self.columns].reshape(-1, self.columns)
        return a @ x, np.abs(a) @ np.abs(x) * TOLERANCE

    def wrong_bytes(self, product: bytes | Path) -> int:
        """Returns the bytes of known numbers whose error is too large."""
        np: Any = import_peer("numpy")
        found = (
            np.fromfile(product, np.float32)
            if isinstance(product, Path)
            else np.frombuffer(product, np.float32)
        )
        if found.size != self.rows:
            return self.rows * 4
        expected, bound = self.expected
        return int(np.count_nonzero(~(np.abs(found[: expected.size] - expected) <= bound))) * 4


def ours(problem: Problem, *, again: bool = False) -> Source:
    """``gpufs.linear.matvec`` with a registered matrix, not in the cache; ``again``: cached."""

    def source() -> Generator[Sample]:
        world = problem.world
        matrix, vector = map(os.fsencode, problem.paths)
        out = world.folder / "product"
        out.write_bytes(b"")
        while True:
            cache = problem.bytes * 9 // 8 if again else min(problem.bytes, 4 << 30)
            with world.mount(
                cache=max(cache, 16 << 20), page=linear.PAGE, read_only=False
            ) as mount:
                register(world, mount, problem.paths[0], problem.bytes)

                def multiply(mount: Any = mount) -> Sample:  # noqa: ANN401
                    clock = Clock()
                    _core.matvec(
                        mount.core,
                        *(matrix, 0, problem.rows, problem.columns, vector, 0, problem.is_bfloat16),
                        *(os.fsencode(out), 0, True),
                    )
                    return clock.sample(problem.rows, problem.bytes)

                if again:
                    multiply()
                sample = multiply()
            wrong = problem.wrong_bytes(out)
            yield Sample(sample.seconds, sample.cpu_seconds, sample.operations, sample.bytes, wrong)

    return source


def rival(problem: Problem, threads: int, piece_bytes: int) -> Source:
    """The CPU program (no pieces), or the CUDA program with pinned buffers."""

    def source() -> Generator[Sample]:
        if piece_bytes != 0 and problem.world.device != "cuda":
            raise AbsentError("needs a GPU")
        matrix, vector = map(os.fsencode, problem.paths)
        while True:
            clock = time.process_time()
            product, seconds = _core.bench_matvec_rival(
                matrix,
                problem.rows,
                problem.columns,
                vector,
                problem.is_bfloat16,
                threads,
                piece_bytes,
            )
            cpu = time.process_time() - clock
            yield Sample(seconds, cpu, problem.rows, problem.bytes, problem.wrong_bytes(product))

    return source
