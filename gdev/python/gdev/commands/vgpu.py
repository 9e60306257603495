"""``gdev vgpu``."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer
from gpufs.sizes import format_size

from gdev import _daemon
from gdev._records import Vgpu
from gdev._users import owner_of, users_of
from gdev._values import format_limit, json_limit, limit_of, must_change, policy_of
from gdev.commands.table import AsJson, print_table

app = typer.Typer(no_args_is_help=True, help="Add, change and remove virtual GPUs.")

Name = Annotated[str, typer.Argument(help="Name of the virtual GPU.")]
EndAfter = Annotated[
    int | None,
    typer.Option(
        "--end-after",
        help="Kill a program that keeps others waiting for so many seconds after its turn is over;"
        " 0: never.",
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", help="The limit for all its programs together: 60GiB, none.")
]
Reserve = Annotated[
    str | None,
    typer.Option("--reserve", help="So much of a GPU is never taken away from its programs."),
]
Priority = Annotated[
    int | None, typer.Option("--priority", help="The higher one is served first: -1000 to 1000.")
]
WhenFull = Annotated[
    str | None,
    typer.Option(
        "--when-full",
        help="When the GPU is full: 'swap' (others leave when their turn is over), 'wait' (until"
        " others free memory), 'fail' (out of memory).",
    ),
]
Users = Annotated[
    str | None,
    typer.Option("--users", help="Who may use it: a user, or 'everybody'; else who adds it."),
]


@app.command("add")
def add_command(
    name: Name,
    memory: Memory,
    reserve: Reserve = None,
    priority: Priority = None,
    when_full: WhenFull = None,
    end_after: EndAfter = None,
    users: Users = None,
) -> None:
    """Add a virtual GPU: gdev vgpu add a --memory 60GiB."""
    owner = os.getuid() if users is None else owner_of(users)
    policy = policy_of(reserve, priority, when_full, end_after)
    with _daemon.connect(start=True) as daemon:
        daemon.ask(_daemon.ADD, name, limit_of(memory), owner, *policy)


@app.command("set")
def set_command(
    name: Name,
    memory: Annotated[
        str | None, typer.Option("--memory", help="The limit for all its programs together.")
    ] = None,
    reserve: Reserve = None,
    priority: Priority = None,
    when_full: WhenFull = None,
    end_after: EndAfter = None,
    users: Users = None,
) -> None:
    """Change a virtual GPU while programs use it: gdev vgpu set a --memory 80GiB."""
    limit = _daemon.UNCHANGED if memory is None else limit_of(memory)
    policy = policy_of(reserve, priority, when_full, end_after)
    owner = _daemon.UNCHANGED if users is None else owner_of(users)
    must_change(memory, reserve, priority, when_full, end_after, users)
    with _daemon.connect(start=True) as daemon:
        daemon.ask(_daemon.SET, name, limit, owner, *policy)


@app.command("rm")
def remove_command(name: Name) -> None:
    """Remove a virtual GPU that no program uses."""
    with _daemon.connect(start=True) as daemon:
        daemon.ask(_daemon.REMOVE, name)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the virtual GPUs: their settings, and what their programs use.

    With --json: an array of objects with vgpu, memory (null: no limit), reserve, priority,
    when_full, end_after (seconds; 0: never), users ("everybody", or a user), used, shared (of that:
    by keys), overhead (of that: no allocations), programs, refused. Sizes are bytes.
    """
    with _daemon.connect(start=True) as daemon:
        found = daemon.vgpus()
    if as_json:
        print(json.dumps([_vgpu_json(one) for one in found]))
        return
    rows = [
        (
            one.name,
            format_limit(one.limit),
            format_size(one.reserve),
            str(one.priority),
            one.when_full,
            f"{one.end_after_s} s" if one.end_after_s else "never",
            users_of(one.owner),
            format_size(one.used),
            str(one.clients),
            str(one.refusals),
        )
        for one in found
    ]
    head = ("NAME", "MEMORY", "RESERVE", "PRIORITY", "WHEN FULL", "END AFTER", "USERS")
    print_table((*head, "USED", "PROGRAMS", "REFUSED"), rows)


def _vgpu_json(one: Vgpu) -> dict[str, Any]:
    return {
        "vgpu": one.name,
        "memory": json_limit(one.limit),
        "reserve": one.reserve,
        "priority": one.priority,
        "when_full": one.when_full,
        "end_after": one.end_after_s,
        "users": users_of(one.owner),
        "used": one.used,
        "shared": one.shared,
        "overhead": one.overhead,
        "programs": one.clients,
        "refused": one.refusals,
    }
