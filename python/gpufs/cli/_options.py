"""Options that several commands share, and the mount that they describe."""

from __future__ import annotations

from typing import Annotated, TypeAlias, cast, get_args

import typer

from gpufs._mount import Mount
from gpufs._options import Device
from gpufs.cli._exit_status import FAILED
from gpufs.cli._output import complain
from gpufs.sizes import parse_size


def _device(name: str) -> str:
    if name not in get_args(Device):
        raise typer.BadParameter(f"{name!r} is not one of auto, cpu and cuda")
    return name


def given_size(text: str | None) -> int | None:
    """Returns a size from the command line, in bytes."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


DeviceOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda",
        callback=_device,
        help="Where to run: a GPU, the CPU, or a GPU if there is one.",
    ),
]
CacheOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", callback=given_size, help="Page cache, such as 8GiB.")
]
PageOption: TypeAlias = Annotated[
    str, typer.Option(metavar="SIZE", callback=given_size, help="Page, from 512 to 2MiB.")
]
RootOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Read nothing outside of this folder; paths are relative to it."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
StatsOption: TypeAlias = Annotated[
    bool, typer.Option("--stats", help="At the end, print time and counters on standard error.")
]
ProgressOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--progress/--no-progress", help="Show progress when standard error is a terminal."
    ),
]
FilesArgument: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files, no folders.")
]


def mount_to_read(
    device: str, cache: str | None, page: str, root: str | None = None, *, staging: str = "32KiB"
) -> Mount:
    """Makes a mount from the options, or prints an error and exits with status 2."""
    try:
        return Mount(
            device=cast(Device, device),
            cache=cache,
            page=page,
            root=root,
            staging=staging,
            read_only=True,
        )
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None
