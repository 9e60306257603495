"""Pictures made of pictures: each block of 32x32 pixels is replaced by the most similar tile of a dataset.

Kernels find the tiles, and read the dataset by themselves (SYSTOR 2016, section 2.4).

>>> import gpufs, os, tempfile >>> from PIL import Image >>> from gpufs import collage >>> folder =
tempfile.mkdtemp() >>> dataset, picture, out = (os.path.join(folder, name) for name in ("tiles",
"picture.png", "out.png")) >>> collage.build(dataset, synthetic=1000).tiles 1000 >>>
Image.linear_gradient("L").save(picture) >>> with gpufs.mount(device="cpu", cache="16MiB") as mount:
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
from gpufs._mount import AnyPath, Mount
from gpufs._output import replacing, replacing_folder

if TYPE_CHECKING:
    from PIL import Image

SIDE: Final = 32
"""Pixels of a tile, and of a block of a picture, in each direction."""

FINEST: Final = 512
"""Pixels of the shorter side of a picture that is cut into tiles, at most, unless told otherwise."""

FORMATS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}

TABLES: Final = 32
"""Hash tables of a dataset."""

TILES_END: Final = 1 << 32
"""So many tiles are too many for a dataset."""


_TILES_AT_ONCE: Final = 1 << 16
_FILES_AT_ONCE: Final = 64

Tell = Callable[[str, int, int | None], object]
"""Is told what is being done, how much of it is done, and how much there is, if that is known."""


@dataclass(slots=True)
class Built:
    """What a dataset was made of."""

    tiles: int = 0
    pictures: int = 0
    skipped: list[str] = field(default_factory=list)  # files that are no pictures, or too small
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What was done."""

    columns: int  # of blocks
    rows: int
    candidates: int  # tiles that were compared, summed over the blocks
    tiles: int  # different ones in the collage
    # by how many of its 128 steps a pixel's colour is off, added over the channels; the mean
    distance: float
    seconds: float  # from the picture's way to the GPU until the tile of each block is known

    @property
    def blocks(self) -> int:
        return self.columns * self.rows


def files_of(dataset: AnyPath) -> list[str]:
    """Returns the names of a dataset's files."""
    # noqa: PTH118 - maybe no text
    return [os.path.join(os.fsdecode(dataset), name) for name in ("records", "tables")]


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
    """Makes a dataset: a new folder, which is there when it is whole. Waits for the end.

    Args:
        dataset: the folder's name; one that is there must be empty. sources: pictures, and folders
        with pictures, also in folders below: PNG and JPEG files. Each is shrunk so that
            its shorter side has 32, 64, 128, ... pixels, and cut into tiles each time; what is left
            over on the right and at the bottom is in none.
        synthetic: so many tiles besides, drawn by a program.
        seed: of those; others are drawn with another one.
        finest: the most that the shorter side is shrunk to.
        threads: how many work; None: as many as there are cores.
        tell: is called from time to time.

    Raises:
        OSError: a folder cannot be read, the dataset not be written; the disk is full; something is
        there already. ValueError: there is no picture in a folder, or no tile at all. ImportError:
        Pillow is not installed.
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
        mount: one with pages of 1 KiB, which hold what most tiles are asked for, or more. image: a
        picture. What is left over of whole blocks, on the right and at the bottom, is cut off.
        dataset: a folder that ``build`` made. out: where the collage goes, a PNG or JPEG file by
        its name. It is there when it is whole; until then what was
            there before.

    Raises:
        OSError: a file cannot be opened, read or written, or is shorter than it should be; ``out``
        is one of those that
            are read; the disk is full.
        ValueError: the image is none, or has no whole block; the name of ``out`` says no format;
        pages are too small. ImportError: Pillow is not installed.
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
            f"{os.fsdecode(image)}: {picture.width}x{picture.height} pixels, but a block has {SIDE}x{SIDE}"
        )
    with _large_pictures_welcome():
        pixels = picture.crop((0, 0, columns * SIDE, rows * SIDE)).tobytes()
    with replacing(target, [image, *files_of(dataset)]) as part:
        tiles, distances, collage, candidates, seconds = _core.collage(
            mount.core, os.fsencode(dataset), pixels, columns, rows
        )
        # Not written by Pillow, whose errors do not all say which file, and what is wrong with it.
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
    """Pillow warns of them; here they are welcome, as long as it takes them. Not by several threads at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _open_picture(path: str) -> Image.Image:
    """Decodes a picture.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no picture, or no regular file.
    """
    from PIL import Image, ImageOps

    # With O_NONBLOCK, so that a FIFO without a writer is not waited for.
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path}: not a regular file")
        try:
            with Image.open(file, formats=("PNG", "JPEG")) as picture:
                upright = ImageOps.exif_transpose(picture)
                if upright.mode.startswith(
                    "I"
                ):  # 16 bits of grey, of which Pillow would take all above 255 for white
                    upright = upright.convert("I").point(lambda grey: grey * (1 / 256)).convert("L")
                return upright.convert("RGB")
        except Image.DecompressionBombError:
            raise ValueError(f"{path}: more pixels than Pillow decodes") from None
        # What Pillow raises for files that are broken in one way or another.
        except (OSError, SyntaxError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{path}: no picture, or a broken one") from error


def _tiles_of(picture: Image.Image, finest: int) -> Iterator[Image.Image]:
    """Cuts a picture into tiles, coarse ones first."""
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
        """Tiles; none of what is no picture, and why."""
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
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C waits for no picture
    if not found:
        such_as = f"; {reasons[0]}" if reasons else ""
        raise ValueError(f"{source}: no picture of {SIDE}x{SIDE} pixels or more{such_as}")


def _finish(builder: _core.CollageBuilder, tell: Tell) -> None:
    """Makes the tables; tells meanwhile how many there are."""
    tell("tables", 0, TABLES)
    builder.finish(lambda written: tell("tables", written, TABLES))


def _files_in(source: str) -> list[str]:
    """The files in a folder and in those below, in the order of their names; of a file itself."""
    if not stat.S_ISDIR(os.stat(source).st_mode):  # noqa: PTH116 - it may be bytes that are no text
        return [source]

    def fail(error: OSError) -> None:
        raise error

    found: list[str] = []
    for place, folders, names in os.walk(source, onerror=fail):
        folders.sort()
        found += [os.path.join(place, name) for name in sorted(names)]  # noqa: PTH118
    return found
