"""Submitted reads and writes with futures, for :meth:`gpufs.File.submit_read` and others."""

from __future__ import annotations

import concurrent.futures
import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from gpufs import _core
from gpufs._streams import ChosenStream

_Result = TypeVar("_Result")

AT_ONCE: Final = 4  # concurrent calls; the engine has as many streams for them

_worker: Final = threading.local()  # has `is_one` in the worker threads


class Work(NamedTuple):
    """How to execute a read or a write."""

    stream: ChosenStream  # orders the call
    home: ChosenStream  # orders the use and the free of an array that the call makes
    outcome: _core.Outcome | None  # receives the call's errors; None: the file receives them


class Submitter:
    """Runs submitted calls of one mount, a few at a time. Thread-safe.

    Keeps the first error of each file's writes, because the program may drop the file.
    """

    __slots__ = ("_latch", "_lost", "_pool")

    def __init__(self) -> None:
        self._latch = threading.Lock()  # guards the fields below
        self._pool: ThreadPoolExecutor | None = None
        self._lost: dict[object, Exception] = {}  # by a key that stands for the file

    def keep(self, key: object, error: Exception) -> None:
        """Keeps an error of a file's writes until :meth:`forget`."""
        # A copy has no traceback, which would keep the file and the array that was to be written.
        try:
            kept = copy.copy(error)
        except Exception:  # a class of the program, whose constructor takes other arguments
            kept = RuntimeError(f"{type(error).__name__}: {error}")
        with self._latch:
            self._lost[key] = kept

    def forget(self, key: object) -> None:
        """Drops the error of a file: the file has raised it."""
        with self._latch:
            self._lost.pop(key, None)

    def lost(self) -> list[Exception]:
        """Returns the errors that no file has raised."""
        with self._latch:
            return list(self._lost.values())

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Runs ``call`` in a worker thread as soon as one is free. Returns its future.

        Raises:
            RuntimeError: the interpreter exits, or the mount is closed.
        """
        with self._latch:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(AT_ONCE, "gpufs", _begin_worker)
            return self._pool.submit(call)

    def close(self) -> None:
        """Refuses further calls. Does not wait."""
        with self._latch:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1)  # a pool starts no thread before its first call
            self._pool.shutdown(wait=False)


class Submitted:
    """Submitted calls of one file that have not ended. Thread-safe.

    Keeps the error of a write, because the program may ignore its future.
    """

    __slots__ = ("_futures", "_key", "_latch", "_lost", "_submitter")

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter
        self._key = object()  # stands for the file
        self._latch = threading.Lock()  # guards the fields below
        self._futures: set[Future[object]] = set()
        self._lost: BaseException | None = None

    def add(self, future: Future[_Result], *, writes: bool) -> None:
        """Keeps a future until it has ended."""

        def end(ended: Future[_Result]) -> None:
            error = None if ended.cancelled() else ended.exception()
            with self._latch:
                if writes and self._lost is None and error is not None:
                    self._lost = error
                    if isinstance(error, Exception):
                        self._submitter.keep(self._key, error)
                self._futures.discard(ended)

        with self._latch:
            self._futures.add(future)  # type: ignore[arg-type]
        future.add_done_callback(end)

    def wait(self) -> None:
        """Waits for all calls. Returns at once in a worker thread, which these calls may need."""
        if getattr(_worker, "is_one", False):
            return
        while True:
            with self._latch:
                left = set(self._futures)
            if not left:
                return
            concurrent.futures.wait(left)

    def check(self) -> None:
        """Raises the first error of a write. Every later call raises it again."""
        with self._latch:
            lost = self._lost
        if lost is not None:
            self._submitter.forget(self._key)
            raise lost


def _begin_worker() -> None:
    _worker.is_one = True
