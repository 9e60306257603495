"""``gpufs search``."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpufs import _core
from gpufs._mount import Mount
from gpufs._output import replacing
from gpufs.cli._exit_status import FAILED
from gpufs.cli._options import (
    CacheOption,
    DeviceOption,
    JsonOption,
    PageOption,
    ProgressOption,
    StatsOption,
    mount_to_read,
)
from gpufs.cli._output import cache_lines, complain, is_terminal, note, write
from gpufs.cli._progress import loading_bar
from gpufs.sizes import format_size

if TYPE_CHECKING:
    from gpufs import search

FOUND: Final = 0
NOTHING_FOUND: Final = 1
ROWS_AT_ONCE: Final = 4096  # rows of the result that become text at once


def search_command(
    queries: Annotated[
        str,
        typer.Option(
            "-q",
            "--queries",
            metavar="QUERIES",
            help="Vectors: .npy, .fvecs, or raw float32 numbers.",
        ),
    ],
    databases: Annotated[
        list[str],
        typer.Option(
            "-d",
            "--database",
            metavar="DATABASE",
            help="Vectors to look for them in; several, in order.",
        ),
    ],
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="DISTANCE", help="The largest distance that counts; alone: the first match."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="So many of the nearest of each query, at most 1,024."),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Numbers of a vector, of raw files.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="OUT", help="A file for what is found.")
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "64KiB",
    stats: StatsOption = False,
    progress: ProgressOption = True,
) -> None:
    """Find the vectors in files that are nearest to given ones.

    Finds for each query the first vector within a threshold, or the nearest ones. Prints lines
    QUERY, DATABASE, INDEX and DISTANCE with tabs between them, ordered by query, the nearest first;
    QUERY and INDEX count from 0. An existing OUT is replaced when the new one is complete.

    \b
    gpufs search -q queries.npy -d photos.npy --top 10
    gpufs search -q queries.npy -d a.npy -d b.npy --threshold 0.5

    Exit status: 0 when a vector was found, 1 when none was, 2 after an error.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import search

    if threshold is None and top is None:
        raise typer.BadParameter("say --threshold, --top, or both")
    with mount_to_read(device, cache, page) as mount:
        with loading_bar(mount, progress and is_terminal(sys.stderr)):
            try:
                result = search.find(
                    mount,
                    queries,
                    databases,
                    threshold=threshold,
                    top=top,
                    dimensions=dimensions,
                    alone=True,
                )
            except ValueError as error:
                complain(str(error))
                raise typer.Exit(FAILED) from None
        pieces = _json(mount, databases, result) if as_json else _lines(databases, result)
        if out is None:
            write(pieces)
        else:
            with replacing(out, [queries, *databases]) as part, Path(part).open("wb") as file:
                file.writelines(pieces)
        if stats:
            note("\n".join(_stats_lines(mount, result)))
    raise typer.Exit(FOUND if result.found else NOTHING_FOUND)


def _rows(result: search.Result) -> Iterator[tuple[int, int, int, float]]:
    """Yields query, database, index and distance of each match."""
    for first in range(0, result.queries, ROWS_AT_ONCE):
        parts = (array[first : first + ROWS_AT_ONCE].tolist() for array in _columns(result))
        for query, row in enumerate(zip(*parts, strict=True), first):
            for database, index, distance in zip(*row, strict=True):
                if database >= 0:
                    yield query, database, index, distance


def _columns(result: search.Result) -> tuple[Any, Any, Any]:
    return result.databases, result.indices, result.distances


def _lines(databases: list[str], result: search.Result) -> Iterator[bytes]:
    names = [os.fsencode(name) for name in databases]
    for query, database, index, distance in _rows(result):
        yield b"%d\t%s\t%d\t%r\n" % (query, names[database], index, distance)


def _json(mount: Mount, databases: list[str], result: search.Result) -> Iterator[bytes]:
    """Yields a JSON object in pieces. ``matches``, which may be long, comes last.

    * ``device``, ``device_name``: as of :class:`gpufs.Mount`.
    * ``queries``, ``vectors``, ``dimensions``, ``bytes``, ``seconds``: as of
      :class:`gpufs.search.Result`.
    * ``databases``: their paths.
    * ``statistics``: the result of :meth:`gpufs.Mount.stats`.
    * ``matches``: objects with ``query``, ``database`` (the position in ``databases``), ``index``
      and ``distance`` (null if infinite).
    """
    head: dict[str, Any] = {
        "version": _core.__version__,
        "device": mount.device,
        "device_name": mount.device_name,
        "queries": result.queries,
        "vectors": result.vectors,
        "dimensions": result.dimensions,
        "bytes": result.bytes,
        "seconds": result.seconds,
        "databases": databases,
        "statistics": mount.stats(),
    }
    yield json.dumps(head)[:-1].encode() + b', "matches": ['
    separator = ""
    for query, database, index, distance in _rows(result):
        told = distance if math.isfinite(distance) else None
        entry = {"query": query, "database": database, "index": index, "distance": told}
        yield f"{separator}{json.dumps(entry)}".encode()
        separator = ", "
    yield b"]}\n"


def _stats_lines(mount: Mount, result: search.Result) -> Iterator[str]:
    yield f"ran on    {mount.device_name}"
    yield (
        f"compared  {result.queries:,} queries, "
        f"{result.vectors:,} vectors of {result.dimensions:,} numbers"
    )
    yield f"databases {format_size(result.bytes)}"
    yield f"found     something for {result.found:,} queries"
    yield f"time      {result.seconds:.3f} s"
    yield from cache_lines(mount.stats(), mount.direct_path)
