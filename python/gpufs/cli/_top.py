"""``gpufs top``."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from gpufs._options import DEFAULT_METRICS_PORT
from gpufs.cli._exit_status import FAILED
from gpufs.cli._output import complain, is_terminal, write

if TYPE_CHECKING:
    from gpufs import top


def top_command(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="Where mounts serve their metrics: a URL, or a port of this host; "
            f"{DEFAULT_METRICS_PORT} without it.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "-i", "--interval", metavar="SECONDS", min=0.05, max=86400, help="Time between updates."
        ),
    ] = 1.0,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", metavar="N", min=1, help="End after so many updates."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each update.")
    ] = False,
) -> None:
    """Watch what a running program does with files.

    Shows hits, faults, bytes, latency and errors of its mounts. The program serves them:
    mount.serve_metrics() in Python. Prints a table in a terminal, and otherwise a line for each
    update.

    \b
    gpufs top                     a program on this host
    gpufs top 9465 -i 0.2         at another port, five times a second
    gpufs top --json -n 1         one update, for programs

    Exit status: 0, also after Ctrl-C; 2 when nothing listens there, or the program ends.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import top

    try:
        url = top.locate(where)
        updates = itertools.islice(top.updates(url, interval), count)
        if as_json:
            for update in updates:
                write([json.dumps(update.to_json()).encode() + b"\n"])
        elif is_terminal(sys.stdout):
            _show_live(updates, url)
        else:
            for update in updates:
                write([top.line(update).encode() + b"\n"])
    except KeyboardInterrupt:
        return
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None


def _show_live(updates: Iterable[top.Update], url: str) -> None:
    """Shows each update in place of the previous one; the last one stays."""
    from rich.live import Live
    from rich.text import Text

    from gpufs import top

    with Live(Text(f"{url}  ..."), auto_refresh=False) as live:
        for update in updates:
            live.update(top.table(update, url), refresh=True)
