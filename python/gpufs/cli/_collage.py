"""``gpufs collage``: makes collages (the default command), and datasets for them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gpufs.cli._exit_status import FAILED
from gpufs.cli._help import Command, unwrapped
from gpufs.cli._options import (
    CacheOption,
    DeviceOption,
    PageOption,
    ProgressOption,
    StatsOption,
    mount_to_read,
)
from gpufs.cli._output import cache_lines, complain, is_terminal, note
from gpufs.cli._progress import Steps, loading_bar

if TYPE_CHECKING:
    from gpufs import collage
    from gpufs._mount import Mount

DEFAULT_COMMAND: Final = "make"


class _WithDefault(TyperGroup):
    """A group of commands with a default command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


collage_commands = typer.Typer(
    cls=_WithDefault,
    no_args_is_help=True,
    help=unwrapped("""Make a picture out of many small pictures.

    `gpufs collage IMAGE ...` is short for `gpufs collage make IMAGE ...`, whose --help has all
    options. `gpufs collage build` makes the dataset of small pictures.

    \b
    gpufs collage build tiles Pictures
    gpufs collage photo.jpg -d tiles -o collage.jpg
    """),
)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Prints errors of the block as one line, and exits with status 2."""
    try:
        yield
    except (ImportError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None


@collage_commands.command(DEFAULT_COMMAND, cls=Command)
def make_command(
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE", help="A PNG or JPEG file; one called build is written ./build."
        ),
    ],
    dataset: Annotated[
        str,
        typer.Option("-d", "--dataset", metavar="DATASET", help="What `gpufs collage build` made."),
    ],
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="OUT", help="The collage, .png or .jpg.")
    ],
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "1KiB",
    stats: StatsOption = False,
    progress: ProgressOption = True,
) -> None:
    """Replace each block of 32x32 pixels by the most similar tile of a dataset.

    A rest of less than a block, on the right and at the bottom, is cut off. An existing OUT is
    replaced when the new one is complete. The word `make` may be left out.

    \b
    gpufs collage photo.jpg -d tiles -o collage.jpg

    Exit status: 0, 2 after an error.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import collage

    with _told(), mount_to_read(device, cache, page) as mount:
        with loading_bar(mount, progress and is_terminal(sys.stderr)):
            result = collage.make(mount, image, dataset, out)
        if stats:
            note("\n".join(_collage_lines(mount, result)))


def _collage_lines(mount: Mount, result: collage.Result) -> Iterator[str]:
    speed = result.blocks / result.seconds if result.seconds else 0.0
    yield f"ran on    {mount.device_name}"
    yield (
        f"blocks    {result.columns:,} x {result.rows:,}, "
        f"{result.candidates / result.blocks:.0f} candidates each"
    )
    yield f"tiles     {result.tiles:,} different ones; distance {result.distance:.2f}"
    yield f"time      {result.seconds:.3f} s, {speed:,.0f} blocks/s"
    yield from cache_lines(mount.stats(), mount.direct_path)


@collage_commands.command("build", cls=Command)
def build_command(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A new folder, or an empty one.")
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIR", help="Folders with PNG and JPEG files, or such files."),
    ] = None,
    synthetic: Annotated[
        int, typer.Option(metavar="N", min=0, help="So many tiles that a program draws.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Of what the program draws.")] = 0,
    finest: Annotated[
        int,
        typer.Option(
            metavar="PIXELS",
            min=32,
            help="The most that the shorter side of a picture is shrunk to.",
        ),
    ] = 512,
    stats: StatsOption = False,
    progress: ProgressOption = True,
) -> None:
    """Make a dataset of the tiles of pictures, or of synthetic ones.

    Each picture is scaled down to a shorter side of 32, 64, 128, ... pixels, up to PIXELS, and each
    scaled picture is cut into tiles of 32x32. DATASET appears when it is complete.

    \b
    gpufs collage build tiles Pictures
    gpufs collage build tiles --synthetic 100000

    Exit status: 0, 2 after an error.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import collage

    with _told(), Steps(progress and is_terminal(sys.stderr)) as steps:
        built = collage.build(
            dataset, sources or (), synthetic=synthetic, seed=seed, finest=finest, tell=steps.tell
        )
    if built.skipped:
        complain(
            f"{len(built.skipped):,} files are no pictures, or too small, such as "
            f"{built.skipped[0]}"
        )
    if stats:
        note(
            f"tiles     {built.tiles:,}, of {built.pictures:,} pictures\ntime      "
            f"{built.seconds:.3f} s"
        )
