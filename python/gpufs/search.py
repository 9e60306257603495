"""Vectors of files that are near those of another file (image search, TOCS 6.2.1), by kernels that read the files.

>>> import gpufs, numpy as np, tempfile, os
>>> from gpufs import search
>>> folder = tempfile.mkdtemp()
>>> images, queries = os.path.join(folder, "images.npy"), os.path.join(folder, "queries.npy")
>>> np.save(images, np.eye(4, dtype="f4"))
>>> np.save(queries, np.array([[0, 0, 1, 0.1], [5, 5, 5, 5]], "f4"))
>>> with gpufs.mount(device="cpu", cache="16MiB") as mount:
...     first = search.find(mount, queries, [images], threshold=0.5)
...     nearest = search.find(mount, queries, [images], top=2)
>>> first.indices.tolist(), first.distances.round(2).tolist()
([[2], [-1]], [[0.1], [inf]])
>>> nearest.indices.tolist()
[[2, 3], [0, 1]]
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpufs import _core
from gpufs._formats import ARRAY_BYTES_LIMIT
from gpufs._given_names import told_as_given
from gpufs._mount import AnyPath, Mount
from gpufs._vectors import NUMBER_BYTES, open_vectors

if TYPE_CHECKING:
    import numpy as np

PAGE: Final = "64KiB"
"""A good page of a mount that databases are read through: whole runs of them are brought by the copy engine."""

TOP_MAX: Final = 1024
"""The most vectors that can be asked for of each query."""

NOTHING: Final = 2**64 - 1  # the extension module's index where there is no vector


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What was found: of each query a row, with as many columns as vectors were wanted, the nearest first."""

    databases: np.ndarray[
        Any, np.dtype[np.int64]
    ]  # which, by its place among those given; -1 where there is none
    indices: np.ndarray[
        Any, np.dtype[np.int64]
    ]  # of the vector in its database, from 0 on; -1 where there is none
    distances: np.ndarray[
        Any, np.dtype[np.float64]
    ]  # Euclidean, computed in float64; infinite where there is none
    queries: int
    vectors: int  # in all databases
    dimensions: int  # numbers of a vector
    bytes: int  # of all databases' numbers
    seconds: float  # from the files' opening to the last answer

    @property
    def found(self) -> int:
        """Queries for which there is something."""
        return int((self.databases[:, 0] >= 0).sum())


def find(
    mount: Mount,
    queries: AnyPath,
    databases: Sequence[AnyPath],
    *,
    threshold: float | None = None,
    top: int | None = None,
    dimensions: int | None = None,
    alone: bool = False,
) -> Result:
    """Looks for vectors that are near those of a file of queries. Waits for the end.

    What is found is exact: distances are computed in float64. A vector with a NaN is near to
    nothing.

    Args:
        mount: where. queries: float32 vectors: a ``.npy`` file of two dimensions; ``.fvecs``; any
        other file is raw numbers. They
            have to fit into the GPU's memory, beside the cache.
        databases: such files, in the order in which they are looked through. They may be larger
        than the GPU's memory.
            All are opened; nothing is read of those that lie behind all first matches but where
            they say their shape.
        threshold: the largest distance that counts. Alone, it asks for the first match of each
        query, in the order of
            the databases and of their vectors.
        top: asks for so many of the nearest of each query, from all databases, within the threshold
        if there is one.
            Of two that are equally far the first counts as nearer. At most 1,024.
        dimensions: numbers of a vector. Raw files need it, but for databases, if the queries' file
        says it. alone: nothing else in this process uses the GPU meanwhile. Then the copy engine
        brings what is read, which is
            the fastest way; a call of the CUDA driver by another thread could keep it waiting.

    Raises:
        OSError: a file cannot be opened or read, or has become shorter. ValueError: it is not what
        it should be; vectors of several lengths; neither a threshold nor ``top``, or one
            that cannot be.
    """
    import numpy as np

    start = time.perf_counter()
    if threshold is None and top is None:
        raise ValueError("neither a threshold nor how many of the nearest are wanted (top)")
    if top is not None and not 1 <= operator.index(top) <= TOP_MAX:
        raise ValueError(f"top must be from 1 to {TOP_MAX:,}: {top}")
    if (
        dimensions is not None
        and not 1 <= operator.index(dimensions) < ARRAY_BYTES_LIMIT // NUMBER_BYTES
    ):
        raise ValueError(f"no vector has so many dimensions: {dimensions}")
    if isinstance(databases, str | bytes):
        raise TypeError("databases must be a sequence of paths, not one path")
    with ExitStack() as files:
        asked = open_vectors(mount, queries, dimensions, files)
        searched = [open_vectors(mount, path, asked.dimensions, files) for path in databases]
        with told_as_given(asked.file, *(database.file for database in searched)):
            squared, places = _core.search(
                mount.core,
                asked.place(),
                [database.place() for database in searched],
                asked.dimensions,
                math.inf if threshold is None else threshold,
                top or 0,
                alone,
            )
    columns = top or 1
    counts = np.array([database.count for database in searched], np.int64)
    place = np.frombuffer(places, np.uint64).reshape(asked.count, columns)
    is_there = place != NOTHING
    index = np.where(is_there, place, 0).astype(np.int64)
    # Of several databases that begin at the same place all but the last are empty.
    begins = np.cumsum(counts) - counts
    which = np.where(is_there, np.searchsorted(begins, index, side="right") - 1, -1)
    return Result(
        which,
        np.where(is_there, index - np.append(begins, 0)[which], -1),
        np.sqrt(np.frombuffer(squared, np.float64).reshape(asked.count, columns)),
        asked.count,
        int(counts.sum()),
        asked.dimensions,
        sum(database.nbytes for database in searched),
        time.perf_counter() - start,
    )
