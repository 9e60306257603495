"""Submitted reads and writes with futures, for :meth:`gpufs.File.submit_read` and others."""

from __future__ import annotations

import concurrent.futures
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
    """Runs submitted calls of one mount, a few at a time. Thread-safe."""

    __slots__ = ("_latch", "_pool")

    def __init__(self) -> None:
        self._latch = threading.Lock()  # guards _pool
        self._pool: ThreadPoolExecutor | None = None

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

    __slots__ = ("_futures", "_latch", "_lost")

    def __init__(self) -> None:
        self._latch = threading.Lock()  # guards the fields below
        self._futures: set[Future[object]] = set()
        self._lost: BaseException | None = None

    def add(self, future: Future[_Result], *, writes: bool) -> None:
        """Keeps a future until it has ended."""

        def end(ended: Future[_Result]) -> None:
            error = None if ended.cancelled() else ended.exception()
            with self._latch:
                self._futures.discard(ended)
                if writes and self._lost is None:
                    self._lost = error

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
            raise lost


def _begin_worker() -> None:
    _worker.is_one = True
