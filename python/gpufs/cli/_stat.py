"""``gpufs stat``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer

from gpufs import _core
from gpufs._visible import visible
from gpufs.cli._exit_status import NOT_ALL_READ
from gpufs.cli._options import (
    CacheOption,
    DeviceOption,
    FilesArgument,
    JsonOption,
    PageOption,
    RootOption,
    mount_to_read,
)
from gpufs.cli._output import complain, describe, is_terminal, write


def stat_command(
    files: FilesArgument,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "4KiB",
    root: RootOption = None,
) -> None:
    """Show size, times and arrays of files, as GPU code sees them.

    Arrays are shown for .npy and .safetensors files.

    \b
    gpufs stat table.npy model.safetensors
    gpufs stat --json table.npy                       the same for programs

    Exit status: 0, 1 when a file could not be read or does not match its name's format, 2 after
    another error.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    from gpufs import stat

    found: list[stat.Description] = []
    failures: list[dict[str, Any]] = []

    def fail(text: str, path: str, number: int | None, error: str) -> None:
        complain(text)
        failures.append({"path": path, "errno": number, "error": error})

    with mount_to_read(device, cache, page, root) as mount:
        where = mount.device
        for path in files:
            try:
                made = stat.describe(mount, path)
            except OSError as error:
                fail(describe(error), path, error.errno, error.strerror or str(error))
                continue
            found.append(made)
            if not as_json:
                text = "".join(f"{line}\n" for line in stat.lines(made))
                write([os.fsencode(visible(text) if is_terminal(sys.stdout) else text)])
            if made.error is not None:
                fail(made.error, path, None, made.error.removeprefix(f"{path}: "))
    if as_json:
        head = {
            "version": _core.__version__,
            "device": where,
            "files": [made.to_json() for made in found],
        }
        write([json.dumps(head | {"failures": failures}, indent=2).encode() + b"\n"])
    raise typer.Exit(NOT_ALL_READ if failures else 0)
