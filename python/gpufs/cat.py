"""The bytes of files as kernels see them, in pieces: the output of ``gpufs cat``.

>>> import gpufs
>>> from gpufs import cat
>>> with gpufs.mount(device="cpu", cache="16MiB") as mount, mount.open(gpufs.__file__) as file:
...     [bytes(piece) for piece in cat.pieces(file, offset=3, count=10, piece_bytes=6)]
[b'gpufs:', b' fil']
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpufs._file import File

PIECE_BYTES: Final = 16 << 20  # large enough for a part for every multiprocessor of a GPU


@dataclass(slots=True)
class Tally:
    """Counters of what was read, of one file or several."""

    files: int = 0  # files read completely, or as far as requested
    bytes: int = 0
    seconds: float = 0.0  # time of the kernels' reads and the copies to the host


def pieces(
    file: File,
    offset: int = 0,
    count: int | None = None,
    *,
    tally: Tally | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[memoryview]:
    """Yields ``count`` bytes of a file from ``offset`` on, in pieces. Waits for each piece.

    ``count`` None means all bytes; the file's end may come earlier. The memory does not depend on
    the file's size: one piece on the device and two on the host.

    Raises:
        OSError: the file cannot be read.
    """
    import numpy as np

    tally = Tally() if tally is None else tally
    end = file.size() if count is None else min(offset + count, file.size())
    for at in range(offset, end, piece_bytes):
        start = time.perf_counter()
        host = np.asarray(file.read(min(piece_bytes, end - at), at))
        tally.seconds += time.perf_counter() - start
        tally.bytes += host.nbytes
        yield host.data
    tally.files += 1
