"""``gdev apply``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdev import _config, _daemon


def apply_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="What there is to be.")],
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove virtual GPUs that it does not name, if unused."),
    ] = False,
    no_start: Annotated[
        bool,
        typer.Option(
            "--no-start", help="Start no daemon, but wait up to 5 s for one that is starting."
        ),
    ] = False,
) -> None:
    """Make virtual GPUs and settings as a file says, and print what changes.

    \b
    [gpu]                   # what is not named stays as it is
    memory = "70GiB"        # most of each GPU for all programs together
    spare = "2GiB"          # of that: for programs whose turn begins
    host_memory = "128GiB"  # most of the host's memory for what is swapped out
    swap_files = "500GiB"   # most in files, beside that
    [vgpu.a]                # what is not named has its default
    memory = "60GiB"        # the limit; must be named; "none"
    reserve = "20GiB"
    priority = 10
    when_full = "swap"      # wait, fail
    end_after = 60          # seconds, as of gdev vgpu set --end-after; 0: never
    users = "everybody"     # who may use it: a user, or all; else who adds it

    Nothing is changed if the file is wrong by itself. The daemon may still refuse a change, as
    reserves that are together above the GPU: the lines printed before it are done. With
    GDEV_CONFIG=FILE.toml in the environment, the commands that start the daemon apply the file to
    it then.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    config = _config.load(file)
    with _daemon.connect(start=not no_start, wait=no_start) as daemon:
        for line in _config.apply(daemon, config, prune=prune):
            print(line)
