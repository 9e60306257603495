"""``gpufs cat``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gpufs._mount import Mount
from gpufs.cli._exit_status import NOT_ALL_READ
from gpufs.cli._options import (
    CacheOption,
    DeviceOption,
    FilesArgument,
    PageOption,
    RootOption,
    StatsOption,
    given_size,
    mount_to_read,
)
from gpufs.cli._output import cache_lines, complain, describe, note, write

if TYPE_CHECKING:
    from gpufs import cat


def cat_command(
    files: FilesArgument,
    offset: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            callback=given_size,
            help="Of each file, leave out so many bytes at its start.",
        ),
    ] = "0",
    count: Annotated[
        str | None,
        typer.Option(
            "--bytes", metavar="SIZE", callback=given_size, help="Of each file, no more than these."
        ),
    ] = None,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "4KiB",
    root: RootOption = None,
    stats: StatsOption = False,
) -> None:
    """Write files to standard output, as GPU code reads them.

    Shows what kernels see of a file, and with --stats how fast and by which path they get it. For
    anything else, cat is simpler.

    \b
    gpufs cat notes.txt
    gpufs cat --stats table.npy > /dev/null           how fast kernels get it
    gpufs cat --offset 1MiB --bytes 4KiB table.npy    a part of it

    Exit status: 0, 1 when a file could not be read, 2 after another error.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import cat

    first, wanted = cast(int, offset), cast("int | None", count)
    tally = cat.Tally()
    start = time.perf_counter()
    failed = False
    with mount_to_read(device, cache, page, root) as mount:
        for path in files:
            try:
                with mount.open(path) as file:
                    for piece in cat.pieces(file, first, wanted, tally=tally):
                        write([piece])
            except OSError as error:
                complain(describe(error))
                failed = True
        if stats:
            note("\n".join(_cat_lines(mount, tally, time.perf_counter() - start)))
    raise typer.Exit(NOT_ALL_READ if failed else 0)


def _cat_lines(mount: Mount, tally: cat.Tally, seconds: float) -> Iterator[str]:
    counts = mount.stats()
    speed = tally.bytes / tally.seconds / 1e9 if tally.seconds else 0.0
    yield f"ran on    {mount.device_name}"
    yield f"read      {tally.files:,} files, {tally.bytes:,} bytes"
    yield (
        f"time      {tally.seconds:.3f} s to read, {speed:.2f} GB/s; "
        f"{seconds:.3f} s with mounting and writing"
    )
    yield from cache_lines(counts, mount.direct_path)
    for name, value in counts.items():
        if value and isinstance(value, int):
            yield f"{name} {value}"
