"""The entry point of the command line: ``python -m gpufs`` and the program ``gpufs``."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in the package's __init__.py
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def main() -> int:
    """Runs the command line with the process's arguments; returns its exit status.

    Before and after the command, and while its modules are imported, Ctrl-C ends the process at
    once and without a traceback: nothing has to be removed then.
    """
    # SIGINT is ignored, as in the background of a shell.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _run()
    signal.signal(signal.SIGINT, _end)
    try:
        return _run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, _end)


def _run() -> int:
    from gpufs import cli

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
