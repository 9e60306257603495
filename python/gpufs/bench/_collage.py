"""Sources for the collage benchmark: ``gpufs collage``, and programs without gpufs."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Literal

from gpufs import _core, collage
from gpufs.bench._measure import AbsentError, Sample, Source
from gpufs.bench._peers import import_peer
from gpufs.bench._sources import register
from gpufs.bench._world import World

RECORD: Final = 4096  # bytes of the dataset for each tile
CACHE: Final = 2 << 30
OF_TILES, OF_PICTURES = 1, 2  # seeds

Way = Literal["cpu", "cuda", "resident"]


class Tiles:
    """A synthetic dataset as large as the world's file."""

    def __init__(self, world: World) -> None:
        self.world, self.count = world, world.file_bytes // RECORD

    @functools.cached_property
    def folder(self) -> Path:
        made = self.world.folder / "collage"
        self.world.tell(f"making {self.count:,} tiles")
        collage.build(made, synthetic=self.count, seed=OF_TILES)
        self.world.settle(made / "tables")
        return made

    @property
    def files(self) -> list[Path]:
        return [Path(path) for path in collage.files_of(self.folder)]

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


class Problem:
    """A dataset, a picture, and the expected collage, which the CPU program makes."""

    def __init__(self, tiles: Tiles, columns: int, rows: int) -> None:
        self.world, self.tiles, self.columns, self.rows = tiles.world, tiles, columns, rows
        self.blocks = columns * rows

    @functools.cached_property
    def given(self) -> tuple[bytes, bytes, int, int]:
        """The dataset, the picture, and its columns and rows.

        The picture's blocks are tiles of the same kind but not of the dataset, with waves added.
        """
        np: Any = import_peer("numpy")
        drawn = np.frombuffer(_core.collage_tiles(OF_PICTURES, 0, self.blocks), np.uint8)
        shape = (self.rows, self.columns, collage.SIDE, collage.SIDE, 3)
        picture = (
            drawn.reshape(shape)
            .swapaxes(1, 2)
            .reshape(self.rows * collage.SIDE, self.columns * collage.SIDE, 3)
        )
        across, down = (
            np.sin(np.arange(size, dtype=np.float32) / 40) * 6
            for size in (picture.shape[1], len(picture))
        )
        waves = (across[None, :] + down[:, None]).astype(np.int16)
        picture = np.clip(picture + waves[:, :, None], 0, 255).astype(np.uint8)
        return os.fsencode(self.tiles.folder), picture.tobytes(), self.columns, self.rows

    @functools.cached_property
    def expected(self) -> bytes:
        return _core.bench_collage_rival("cpu", *self.given, self.world.threads)[0]

    def sample(self, seconds: float, cpu_seconds: float, tiles: bytes) -> Sample:
        """Returns a sample. Wrong bytes are those of differing tile numbers."""
        found, expected = memoryview(tiles).cast("I"), memoryview(self.expected).cast("I")
        wrong = sum(map(int.__ne__, found, expected)) * 4
        return Sample(seconds, cpu_seconds, self.blocks, self.blocks * collage.SIDE**2 * 3, wrong)


def ours(
    problem: Problem, *, cache: int | None = CACHE, page: int = RECORD, again: bool = False
) -> Source:
    """``gpufs.collage`` with the dataset registered and not in the cache; ``again``: in the cache.

    ``cache`` None: the whole dataset fits.
    """

    def source() -> Generator[Sample]:
        world, given = problem.world, problem.given
        while True:
            # Only pages of files are needed. The extra eighth is for an uneven distribution over
            # the rings.
            fitting = problem.tiles.bytes * 9 // 8
            size = fitting if cache is None else min(cache, fitting)
            with world.mount(cache=max(size, 16 << 20), page=page) as mount:
                for path in problem.tiles.files:
                    register(world, mount, path, path.stat().st_size)
                if again:
                    _core.collage(mount.core, *given)
                cpu = time.process_time()
                tiles, _, _, _, seconds = _core.collage(mount.core, *given)
                cpu = time.process_time() - cpu
            yield problem.sample(seconds, cpu, tiles)

    return source


def rival(problem: Problem, way: Way) -> Source:
    """The CPU program; the CUDA program that reads on the CPU; or that with a resident dataset."""

    def source() -> Generator[Sample]:
        if way != "cpu" and problem.world.device != "cuda":
            raise AbsentError("needs a GPU")
        while True:
            cpu = time.process_time()
            tiles, seconds = _core.bench_collage_rival(way, *problem.given, problem.world.threads)
            yield problem.sample(seconds, time.process_time() - cpu, tiles)

    return source
