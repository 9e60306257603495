"""``gdev top``."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from gdev import _daemon
from gdev._sight import Sight, look
from gdev._view import View


def top_command(
    once: Annotated[bool, typer.Option("--once", help="Print one view as plain text.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one view as JSON.")] = False,
    interval: Annotated[
        float,
        typer.Option("-i", "--interval", metavar="SECONDS", min=0.05, help="Time between views."),
    ] = 1.0,
) -> None:
    """Watch GPUs, virtual GPUs and programs: memory, turns, what is moved, waits, launches.

    Without a daemon it says that there is none.

    Rates are those of the last interval. Wired memory does not leave the GPU with a turn, or is on
    another GPU.
    """
    found = _daemon.connect_if_running()
    if found is None:
        nothing = Sight(time.time(), time.monotonic(), [], [])
        print(json.dumps(View(nothing, nothing).to_json()) if as_json else _daemon.NOTHING_RUNS)
        return
    with found as daemon, contextlib.suppress(KeyboardInterrupt):
        views = _views(daemon, interval)
        if as_json:
            print(json.dumps(next(views).to_json()))
        elif once:
            print(*next(views).lines(), sep="\n")
        elif sys.stdout.isatty():
            _show_live(views)
        else:
            for view in views:
                print(*view.lines(), "", sep="\n", flush=True)


def _views(daemon: _daemon.Daemon, interval_s: float) -> Iterator[View]:
    """Yields a view each interval, without end. Raises OSError: the daemon is gone."""
    before = look(daemon)
    due = before.clock_s
    while True:
        # After a pause of the machine or of this process, missed views are skipped.
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        now = look(daemon)
        yield View(before, now)
        before = now


def _show_live(views: Iterator[View]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(Text("gdev  ..."), auto_refresh=False) as live:
        for view in views:
            live.update(view.rich(), refresh=True)
