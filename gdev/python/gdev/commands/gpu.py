"""``gdev gpu``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from gpufs.sizes import format_size, parse_size

from gdev import _daemon, _gpus
from gdev._values import format_limit, json_limit, limit_of, must_change
from gdev.commands.table import AsJson, print_table

app = typer.Typer(no_args_is_help=True, help="What programs may have of the GPUs.")


@app.command("set")
def gpu_set_command(
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="Most of each GPU for all programs together: 60GiB, none."),
    ] = None,
    spare: Annotated[
        str | None,
        typer.Option(
            "--spare", help="Of that: kept free for programs whose turn begins, to begin sooner."
        ),
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option("--host-memory", help="Most of the host's memory for what is swapped out."),
    ] = None,
    swap_files: Annotated[
        str | None,
        typer.Option(
            "--swap-files",
            help="Most in files, beside that; programs make them in the folder GDEV_SWAP_FOLDER.",
        ),
    ] = None,
) -> None:
    """Change what programs may have of the GPUs and of the host."""
    chosen = (
        None if memory is None else limit_of(memory),
        None if spare is None else parse_size(spare),
        None if host_memory is None else parse_size(host_memory),
        None if swap_files is None else parse_size(swap_files),
    )
    must_change(*chosen)
    with _daemon.connect(start=True) as daemon:
        daemon.settings(*chosen)


@app.command("list")
def gpu_list_command(as_json: AsJson = False) -> None:
    """List what programs may have, and the GPUs on which they take turns.

    With --json: an object with settings (memory, spare, host_memory, swap_files; null: no limit)
    and gpus, an array of objects with gpu, index and uuid (of nvidia-smi; null without it), memory,
    for_programs, given (what programs may have on it just now), overhead (what they have beside
    their allocations), unaccounted (in use, and no program's). Sizes are bytes.
    """
    with _daemon.connect(start=True) as daemon:
        settings = daemon.settings()
        found = daemon.gpus()
    known = _gpus.listed() if found else {}
    names_of_gpus = [known.get(one.number, _gpus.ListedGpu()) for one in found]
    if as_json:
        names = ("memory", "spare", "host_memory", "swap_files")
        shown = dict(zip(names, map(json_limit, settings), strict=True))
        rows = [
            one.to_json() | asdict(name) for one, name in zip(found, names_of_gpus, strict=True)
        ]
        print(json.dumps({"settings": shown, "gpus": rows}))
        return
    print_table(
        ("MEMORY", "SPARE", "HOST MEMORY", "SWAP FILES"), [tuple(map(format_limit, settings))]
    )
    print()
    sizes = [(one.total, one.capacity, one.rooms, one.overhead, one.unaccounted) for one in found]
    table = [
        (one.label, "-" if name.index is None else str(name.index), *map(format_size, of))
        for one, name, of in zip(found, names_of_gpus, sizes, strict=True)
    ]
    print_table(
        ("GPU", "INDEX", "MEMORY", "FOR PROGRAMS", "GIVEN", "OVERHEAD", "UNACCOUNTED"), table
    )
