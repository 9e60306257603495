"""``gdev shm``."""

from __future__ import annotations

import errno
import json
import os
from typing import Annotated, Any

import typer
from gpufs.sizes import format_size

from gdev import _daemon
from gdev._records import Segment
from gdev._shm import key_of
from gdev._users import user_name
from gdev.commands.table import AsJson, print_table

app = typer.Typer(help="List device memory that is shared by keys, and remove it.")


@app.callback(invoke_without_command=True)
def segments_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List device memory that is shared by keys, as far as you may read it.

    With --json: an array of objects with id, key (a number; null: it has none, or is removed),
    size, owner, mode (a number), attached, vgpu, removed. Sizes are bytes.
    """
    if context.invoked_subcommand is not None:
        return
    with _daemon.connect(start=False) as daemon:
        found = daemon.segments()
    if as_json:
        print(json.dumps([_json_of(one) for one in found]))
        return
    rows = [
        (
            str(one.id),
            "removed" if one.is_removed else f"{one.key:#x}" if one.key else "private",
            format_size(one.bytes),
            user_name(one.owner),
            f"{one.mode:03o}",
            str(one.attachments),
            one.vgpu,
        )
        for one in found
    ]
    print_table(("ID", "KEY", "SIZE", "OWNER", "MODE", "ATTACHED", "VGPU"), rows)


@app.command("rm")
def remove_command(
    number: Annotated[int | None, typer.Argument(min=0, help="Its id.", metavar="[ID]")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Instead: its key, a text as of gdev.shm().")
    ] = None,
) -> None:
    """Remove a segment: its memory is free when no program has it attached any more."""
    if (number is None) == (key is None):
        raise ValueError("name the segment by its id (gdev shm) or its --key")
    about = str(number) if key is None else key
    with _daemon.connect(start=False) as daemon:
        try:
            daemon.ask(_daemon.KEY_REMOVE, "", _id_of(daemon, key) if number is None else number)
        except OSError as error:
            texts = {
                errno.EINVAL: "there is no such segment (gdev shm)",
                errno.EPERM: "it is another user's",
            }
            text = texts.get(error.errno or 0, error.strerror)
            raise OSError(error.errno, text, about) from None


def _id_of(daemon: _daemon.Daemon, key: str | None) -> int:
    """Returns the number of a text's segment. Raises OSError."""
    for one in daemon.segments():
        if key is not None and not one.is_removed and one.key == key_of(key):
            return one.id
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _json_of(one: Segment) -> dict[str, Any]:
    return {
        "id": one.id,
        "key": None if one.is_removed or one.key == 0 else one.key,
        "size": one.bytes,
        "owner": user_name(one.owner),
        "mode": one.mode,
        "attached": one.attachments,
        "vgpu": one.vgpu,
        "removed": one.is_removed,
    }
