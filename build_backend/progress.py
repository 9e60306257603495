"""Shows on the terminal what a build does, although pip keeps the output to itself."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

_STEP = re.compile(rb"\[(\d+)/(\d+)\]")  # as ninja prints it


def say(text: str) -> None:
    """Writes a line to the terminal if there is one, and to the standard output for ``pip -v``."""
    print(f"gpufs: {text}", flush=True)
    with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:  # noqa: PTH123
        terminal.write(f"\r\x1b[Kgpufs: {text}\n")


def _copy(source: int, output: int, terminal: BinaryIO) -> None:
    """Copies the output of the build, and shows its steps on the terminal."""
    while chunk := os.read(source, 65536):
        os.write(output, chunk)
        if steps := _STEP.findall(chunk):
            done, total = (int(number) for number in steps[-1])
            terminal.write(b"\r\x1b[Kgpufs: step %d of %d " % (done, total))
    terminal.write(b"\r\x1b[K")


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Shows the steps of a build on the terminal, if there is one."""
    try:
        terminal = open("/dev/tty", "wb", buffering=0)  # noqa: PTH123, SIM115
    except OSError:
        yield
        return
    sys.stdout.flush()
    own = os.dup(1)
    end, begin = os.pipe()
    os.dup2(begin, 1)
    os.close(begin)
    copier = threading.Thread(target=_copy, args=(end, own, terminal))
    copier.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)  # closes the last writer of the pipe, which ends the thread
        copier.join()
        for descriptor in (own, end):
            os.close(descriptor)
        terminal.close()
