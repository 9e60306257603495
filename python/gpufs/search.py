"""Search for the vectors nearest to those of a file, by kernels (image search, TOCS 6.2.1).

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
from gpufs._given_names import told_as_given
from gpufs._layouts import ARRAY_BYTES_LIMIT
from gpufs._mount import Mount
from gpufs._options import AnyPath
from gpufs._vectors import NUMBER_BYTES, open_vectors

if TYPE_CHECKING:
    import numpy as np

PAGE: Final = "64KiB"
"""A good page size for a mount that reads databases: the copy engine loads whole runs of pages."""

TOP_MAX: Final = 1024
"""The largest number of vectors that a search returns for a query."""

NOTHING: Final = 2**64 - 1  # the extension module's index for "no vector"


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The matches: a row for each query, a column for each requested vector, nearest first."""

    # Number of the database in the argument's order, from 0 on; -1: no match.
    databases: np.ndarray[Any, np.dtype[np.int64]]
    # Number of the vector in its database, from 0 on; -1: no match.
    indices: np.ndarray[Any, np.dtype[np.int64]]
    # Euclidean distance, computed in float64; infinite: no match.
    distances: np.ndarray[Any, np.dtype[np.float64]]
    queries: int
    vectors: int  # in all databases
    dimensions: int  # components of a vector
    bytes: int  # of the vectors' components in all databases
    seconds: float  # from the open of the files to the last match

    @property
    def found(self) -> int:
        """The number of queries with a match."""
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
    """Searches for the vectors nearest to those of a file of queries. Waits for the end.

    The result is exact: distances are computed in float64. A vector with a NaN never matches.

    Args:
        mount: the mount whose kernels read the files.
        queries: a file of float32 vectors: ``.npy`` with two dimensions; ``.fvecs``; any other file
            has raw numbers. The queries must fit into the GPU's memory beside the cache.
        databases: files of the same kinds, in the order of the search. They may be larger than the
            GPU's memory. All are opened. Of databases after the last first match, only the header
            is read.
        threshold: the largest distance of a match. Without ``top``, the search returns the first
            match of each query, in the order of the databases and of their vectors.
        top: the number of nearest vectors to return for each query, from all databases, within the
            threshold if there is one. If two distances are equal, the first vector counts as
            nearer. At most 1,024.
        dimensions: components of a vector. Raw queries need it; raw databases take it from the
            queries' file if that has it.
        alone: whether nothing else in this process uses the GPU during the call. Then the copy
            engine loads the files, which is the fastest way. A call of the CUDA driver by another
            thread could make it wait.

    Raises:
        OSError: a file cannot be opened or read, or has become shorter.
        ValueError: a file is not of its format; vectors differ in length; ``threshold`` and ``top``
            are both missing, or one is invalid.
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
    # If several databases begin at the same index, all but the last are empty.
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
