"""Output of commands: results to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import IO

import typer

from gpufs._statistics import Statistics
from gpufs._visible import visible
from gpufs.cli._exit_status import FAILED


def write(pieces: Iterable[bytes | memoryview]) -> None:
    """Writes to standard output, or prints an error and exits with status 2."""
    if sys.stdout is None:
        complain("standard output is closed")
        raise typer.Exit(FAILED)
    output: IO[bytes] = sys.stdout.buffer
    try:
        output.writelines(pieces)
    except OSError as error:
        _give_up_output(error)
        raise typer.Exit(FAILED) from None
    if not flush_output():
        raise typer.Exit(FAILED)


def flush_output() -> bool:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _give_up_output(error)
        return False
    return True


def _give_up_output(error: OSError) -> None:
    complain(f"standard output: {error.strerror}")
    # The interpreter must not write, and report, the rest of the buffer again at exit.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def complain(text: str, command: str = "gpufs") -> None:
    """Writes one line to standard error."""
    if is_terminal(sys.stderr):
        text = text.replace("\n", "\\n")
    note(f"{command}: {text}")


def note(text: str) -> None:
    """Writes lines to standard error.

    Bytes of paths are written unchanged, but escaped on a terminal: see ``gpufs._visible``.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
        if is_terminal(sys.stderr):
            text = visible(text)
        sys.stderr.buffer.write(os.fsencode(f"{text}\n"))
        sys.stderr.buffer.flush()


def describe(error: OSError) -> str:
    text = error.strerror or str(error)
    return text if error.filename is None else f"{os.fsdecode(error.filename)}: {text}"


def is_terminal(stream: IO[str] | None) -> bool:
    """Returns whether the stream is a terminal. None means that it is closed from the start."""
    return stream is not None and stream.isatty()


def cache_lines(counts: Statistics, direct_path: str) -> Iterator[str]:
    hits = counts["hits"] + counts["minor_faults"]
    yield (
        f"cache     {hits:,} hits; misses: {counts['direct_loads']:,} loaded directly, "
        f"{counts['bulk_loads']:,} in runs, {counts['staged_loads']:,} staged, "
        f"{counts['open_loads']:,} with the open"
    )
    if direct_path != "on":
        yield f"staged    all loads: {direct_path}"
