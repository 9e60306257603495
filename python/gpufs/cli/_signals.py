"""Handling of signals: they end a command soon and leave nothing half written."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from gpufs._output import remove_unfinished

# Python handles signals between its own instructions, but a long kernel delays the next one.
PATIENCE_S: Final = 1.0

SHOW_CURSOR: Final = b"\x1b[?25h"


class EndedError(BaseException):
    """SIGTERM or SIGHUP.

    A BaseException like KeyboardInterrupt: error handlers must not catch it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class _Once:
    """A function that is called once, by the first of several threads; the others wait for it."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._called = False

    def __call__(self) -> None:
        with self._lock:
            if not self._called:
                self._called = True
                self._function()


_savers: list[_Once] = []


@contextlib.contextmanager
def saving(save: Callable[[], object]) -> Iterator[None]:
    """Calls ``save`` if the ``with`` block ends early, by an error or a signal.

    If a kernel delays the end, another thread calls it, before the process exits.
    """
    once = _Once(save)
    _savers.append(once)
    try:
        yield
    except BaseException:
        once()
        raise
    finally:
        _savers.remove(once)


@contextlib.contextmanager
def ending_soon() -> Iterator[None]:
    """In the ``with`` block, SIGTERM and SIGHUP raise EndedError if they are not ignored.

    If the block has not ended ``PATIENCE_S`` after one of them or Ctrl-C, the functions of
    ``saving`` are called, half-written files are removed, and the process exits with the status
    that it would have had. Called by the main thread.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handlers = {
        number: signal.signal(number, _raise)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL  # nohup ignores SIGHUP
    }
    over = threading.Event()
    threading.Thread(target=_watch, args=(reading, over), name="gpufs signals", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(writing)


def _raise(number: int, _frame: object) -> NoReturn:
    raise EndedError(number)


def _watch(reading: int, over: threading.Event) -> None:
    with open(reading, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                continue
            if over.wait(PATIENCE_S):
                return
            if _savers:
                for save in list(_savers):
                    save()
                if over.wait(PATIENCE_S):
                    return
            end_at_once(128 + number[0])


def end_at_once(status: int) -> NoReturn:
    """Ends the process without waiting for kernels, which the driver then ends."""
    remove_unfinished()
    if os.isatty(2):
        with contextlib.suppress(OSError):
            os.write(2, SHOW_CURSOR)
    os._exit(status)
