"""``gdev ps``, ``gdev pause`` and ``gdev resume``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from gpufs.sizes import format_size

from gdev import _daemon
from gdev._records import Client
from gdev._users import user_name
from gdev.commands.table import AsJson, print_table

Process = Annotated[
    int,
    typer.Argument(min=1, max=2**31 - 1, help="The program's process, as gdev ps shows it."),
]


def ps_command(as_json: AsJson = False) -> None:
    """List the programs that run under gdev. Without a daemon, say that there is none.

    With --json: an array of objects with process, user, vgpu, gpu (as of gdev gpu list; null: none
    yet), state, used, refused, overhead (of what is used: no allocations), swapped (on the host),
    wired (does not leave the GPU). Sizes are bytes.

    \b
    STATE says where a program's memory is; several may hold at once:
      on, off            its work may run; it waits, and what others need is on the host (SWAPPED)
      moving out, in     between the two
      waits for memory   others have it: for an allocation, or to come back
      does not fit       it is off, and needs more than there is for it now
      held for its job   on its GPU, until the rest of its job is, or has finished
      paused             by gdev pause
      no host memory     what should leave cannot: see gdev gpu set --host-memory
      file error         it cannot leave: its swap file cannot be written
      busy               it cannot leave: its work does not end
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    found = _daemon.connect_if_running()
    if found is None:
        print("[]" if as_json else _daemon.NOTHING_RUNS)
        return
    with found as daemon:
        programs = daemon.clients()
    if as_json:
        print(json.dumps([_json_of(one) for one in programs]))
        return
    rows = [
        (
            str(one.process),
            one.vgpu,
            format_size(one.used),
            str(one.counts["refusals"]),
            one.state,
            format_size(one.swapped),
        )
        for one in programs
    ]
    print_table(("PROCESS", "VGPU", "USED", "REFUSED", "STATE", "SWAPPED"), rows)


def pause_command(process: Process) -> None:
    """Take a program off its GPU until it is resumed. Say how much stays there."""
    with _daemon.connect(start=False) as daemon:
        daemon.pause(process, is_paused=True)
        for one in daemon.clients():
            if one.process == process:
                leaves, stays = format_size(one.swappable), format_size(one.wired)
                print(f"{process}: {leaves} leave the GPU, {stays} stay (gdev ps: how far it is)")


def resume_command(process: Process) -> None:
    """Let a paused program go on."""
    with _daemon.connect(start=False) as daemon:
        daemon.pause(process, is_paused=False)


def _json_of(one: Client) -> dict[str, Any]:
    return one.to_json() | {"user": user_name(one.user), "refused": one.counts["refusals"]}
