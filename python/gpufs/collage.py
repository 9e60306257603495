"""Collages: each block of 32x32 pixels becomes the most similar tile of a dataset.

Kernels find the tiles, and read the dataset themselves (SYSTOR 2016, section 2.4).

>>> import gpufs, os, tempfile
>>> from PIL import Image
>>> from gpufs import collage
>>> folder = tempfile.mkdtemp()
>>> names = ("tiles", "picture.png", "out.png")
>>> dataset, picture, out = (os.path.join(folder, name) for name in names)
>>> collage.build(dataset, synthetic=1000).tiles
1000
>>> Image.linear_gradient("L").save(picture)
>>> with gpufs.mount(device="cpu", cache="16MiB") as mount:
...     collage.make(mount, picture, dataset, out).blocks
64
>>> Image.open(out).size
(256, 256)
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from gpufs import _core
from gpufs._mount import Mount
from gpufs._options import AnyPath
from gpufs._output import replacing, replacing_folder

if TYPE_CHECKING:
    from PIL import Image

SIDE: Final = 32
"""Pixels of a tile, and of a block of a picture, in each direction."""

FINEST: Final = 512
"""The default limit of the shorter side, in pixels, of pictures that are cut into tiles."""

FORMATS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}

TABLES: Final = 32
"""The number of a dataset's hash tables."""

TILES_END: Final = 1 << 32
"""A dataset has fewer tiles than this."""


_TILES_AT_ONCE: Final = 1 << 16
_FILES_AT_ONCE: Final = 64

Tell = Callable[[str, int, int | None], object]
"""A progress callback: what is being done, how much is done, and the total if it is known."""


@dataclass(slots=True)
class Built:
    """The result of :func:`build`."""

    tiles: int = 0
    pictures: int = 0
    skipped: list[str] = field(default_factory=list)  # files that are no pictures, or too small
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of :func:`make`."""

    columns: int  # blocks in a row
    rows: int
    candidates: int  # compared tiles, summed over the blocks
    tiles: int  # different tiles in the collage
    # The mean colour error of a pixel, in steps of 128 per channel, added over the channels.
    distance: float
    seconds: float  # from the copy of the picture to the GPU to the last block's tile

    @property
    def blocks(self) -> int:
        return self.columns * self.rows


def files_of(dataset: AnyPath) -> list[str]:
    """Returns the paths of a dataset's files."""
    return [
        os.path.join(os.fsdecode(dataset), name)  # noqa: PTH118 - it may be bytes that are no text
        for name in ("records", "tables")
    ]


def build(
    dataset: AnyPath,
    sources: Iterable[AnyPath] = (),
    *,
    synthetic: int = 0,
    seed: int = 0,
    finest: int = FINEST,
    threads: int | None = None,
    tell: Tell | None = None,
) -> Built:
    """Makes a dataset: a new folder, which appears when it is complete. Waits for the end.

    Args:
        dataset: the folder's path; an existing folder must be empty.
        sources: PNG and JPEG files, and folders with such files at any depth. Each picture is
            scaled down to a shorter side of 32, 64, 128, ... pixels, and each scaled picture is cut
            into tiles. A rest at the right or at the bottom is left out.
        synthetic: the number of additional tiles that a program draws.
        seed: the seed of the drawn tiles.
        finest: the largest shorter side of a scaled picture, in pixels.
        threads: worker threads. None: one per core.
        tell: a callback for the progress.

    Raises:
        OSError: a folder cannot be read, the dataset cannot be written, the disk is full, or the
            path exists already.
        ValueError: a folder contains no picture, or there is no tile at all.
        ImportError: Pillow is not installed.
    """
    start = time.perf_counter()
    paths = [os.fsdecode(path) for path in sources]
    if synthetic < 0:
        raise ValueError(f"{synthetic} synthetic tiles")
    if synthetic >= TILES_END:
        raise ValueError(f"{synthetic:,} synthetic tiles: a dataset has less than 2^32")
    if finest < SIDE:
        raise ValueError(
            f"pictures cannot be cut finer than their tiles: {finest} is less than {SIDE} pixels"
        )
    if synthetic == 0 and not paths:
        raise ValueError("a dataset without tiles")
    if paths:
        _import_pillow()
    workers = threads or len(os.sched_getaffinity(0))
    built = Built()
    told: Tell = tell or (lambda _what, _done, _total: None)
    with replacing_folder(os.fsdecode(dataset)) as folder:
        builder = _core.CollageBuilder(os.fsencode(folder), workers)
        for path in paths:
            _add_pictures(builder, path, finest, workers, built, told)
        for done in range(0, synthetic, _TILES_AT_ONCE):
            told("synthetic tiles", done, synthetic)
            builder.add_synthetic(seed, done, min(_TILES_AT_ONCE, synthetic - done))
        if builder.tiles == 0:
            raise ValueError("a dataset without tiles")
        _finish(builder, told)
        built.tiles = builder.tiles
    built.seconds = time.perf_counter() - start
    return built


def make(mount: Mount, image: AnyPath, dataset: AnyPath, out: AnyPath) -> Result:
    """Makes a collage. Waits for the end.

    Args:
        mount: a mount with pages of at least 1 KiB, which hold the part that is read of most tiles.
        image: a picture. A rest of less than a block at the right or at the bottom is cut off.
        dataset: a folder that :func:`build` made.
        out: the path of the collage, a PNG or JPEG file by its suffix. An existing file is replaced
            when the new one is complete.

    Raises:
        OSError: a file cannot be opened, read or written, or is too short; ``out`` is one of the
            files that are read; the disk is full.
        ValueError: the image is not a picture, or smaller than a block; the suffix of ``out`` names
            no format; the pages are too small.
        ImportError: Pillow is not installed.
    """
    pillow = _import_pillow()
    target = os.fsdecode(out)
    kind = FORMATS.get(Path(target).suffix.lower())
    if kind is None:
        raise ValueError(f"{target}: a collage is written to a .png or .jpg file")
    with _large_pictures_welcome():
        picture = _open_picture(os.fsdecode(image))
    columns, rows = picture.width // SIDE, picture.height // SIDE
    if columns == 0 or rows == 0:
        raise ValueError(
            f"{os.fsdecode(image)}: {picture.width}x{picture.height} pixels, but a block has "
            f"{SIDE}x{SIDE}"
        )
    with _large_pictures_welcome():
        pixels = picture.crop((0, 0, columns * SIDE, rows * SIDE)).tobytes()
    with replacing(target, [image, *files_of(dataset)]) as part:
        tiles, distances, collage, candidates, seconds = _core.collage(
            mount.core, os.fsencode(dataset), pixels, columns, rows
        )
        # Pillow does not write the file: not all of its errors name the file and the cause.
        encoded = io.BytesIO()
        size = (columns * SIDE, rows * SIDE)
        pillow.frombytes("RGB", size, collage).save(
            encoded, kind, **({"compress_level": 1} if kind == "PNG" else {})
        )
        Path(part).write_bytes(encoded.getbuffer())
    used, mean = (
        len(set(memoryview(tiles).cast("I"))),
        sum(memoryview(distances).cast("I")) / (columns * rows),
    )
    return Result(columns, rows, candidates, used, mean / SIDE**2, seconds)


def _import_pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("pictures need Pillow: pip install 'gpufs[collage]'") from None
    return Image


@contextlib.contextmanager
def _large_pictures_welcome() -> Iterator[None]:
    """Silences Pillow's warnings of large pictures. Not thread-safe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _open_picture(path: str) -> Image.Image:
    """Decodes a picture.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a picture, or not a regular file.
    """
    from PIL import Image, ImageOps

    # O_NONBLOCK: the open of a FIFO without a writer must not wait.
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path}: not a regular file")
        try:
            with Image.open(file, formats=("PNG", "JPEG")) as picture:
                upright = ImageOps.exif_transpose(picture)
                # 16-bit grey, of which Pillow would clip all values above 255 to white.
                if upright.mode.startswith("I"):
                    upright = upright.convert("I").point(lambda grey: grey * (1 / 256)).convert("L")
                return upright.convert("RGB")
        except Image.DecompressionBombError:
            raise ValueError(f"{path}: more pixels than Pillow decodes") from None
        # Pillow raises these errors for damaged files.
        except (OSError, SyntaxError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{path}: no picture, or a broken one") from error


def _tiles_of(picture: Image.Image, finest: int) -> Iterator[Image.Image]:
    """Yields the tiles of a picture, from the coarsest scale to the finest."""
    from PIL import Image

    shorter = min(picture.size)
    side = SIDE
    while side <= min(shorter, finest):
        size = (picture.width * side // shorter, picture.height * side // shorter)
        shrunk = picture.resize(size, Image.Resampling.BOX, reducing_gap=2.0)
        for top in range(0, size[1] - SIDE + 1, SIDE):
            for left in range(0, size[0] - SIDE + 1, SIDE):
                yield shrunk.crop((left, top, left + SIDE, top + SIDE))
        side *= 2


def _add_pictures(
    builder: _core.CollageBuilder, source: str, finest: int, threads: int, built: Built, tell: Tell
) -> None:
    def cut(path: str) -> tuple[bytes, str]:
        """Returns the tiles of a picture and an empty text, or no tiles and the reason."""
        try:
            tiles = b"".join(tile.tobytes() for tile in _tiles_of(_open_picture(path), finest))
        except OSError as error:
            return b"", f"{path}: {error.strerror or error}"
        except ValueError as error:
            return b"", str(error)
        return tiles, f"{path}: too small"

    paths = _files_in(source)
    found, reasons = False, []
    pool = ThreadPoolExecutor(threads)
    try:
        with _large_pictures_welcome():
            for first in range(0, len(paths), _FILES_AT_ONCE):
                tell(f"pictures of {source}", first, len(paths))
                some = paths[first : first + _FILES_AT_ONCE]
                for path, (tiles, reason) in zip(some, pool.map(cut, some), strict=True):
                    if tiles:
                        found = True
                        built.pictures += 1
                        builder.add(tiles)
                    else:
                        built.skipped.append(path)
                        reasons.append(reason)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for pictures
    if not found:
        such_as = f"; {reasons[0]}" if reasons else ""
        raise ValueError(f"{source}: no picture of {SIDE}x{SIDE} pixels or more{such_as}")


def _finish(builder: _core.CollageBuilder, tell: Tell) -> None:
    """Makes the hash tables, and reports how many are done."""
    tell("tables", 0, TABLES)
    builder.finish(lambda written: tell("tables", written, TABLES))


def _files_in(source: str) -> list[str]:
    """Returns the files in a folder, at any depth, sorted by name; or the file itself."""
    if not stat.S_ISDIR(os.stat(source).st_mode):  # noqa: PTH116 - it may be bytes that are no text
        return [source]

    def fail(error: OSError) -> None:
        raise error

    found: list[str] = []
    for place, folders, names in os.walk(source, onerror=fail):
        folders.sort()
        found += [os.path.join(place, name) for name in sorted(names)]  # noqa: PTH118
    return found
