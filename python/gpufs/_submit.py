"""Reads and writes whose ends are futures: what is behind :meth:`gpufs.File.submit_read` and its like."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from gpufs import _core
from gpufs._device import ChosenStream

_Result = TypeVar("_Result")

AT_ONCE: Final = 4  # calls that run together; the engine has as many streams for them

_worker: Final = threading.local()  # has `is_one` in threads that run calls


class Work(NamedTuple):
    """How a read or a write is made."""

    stream: ChosenStream  # in whose order it is done
    home: ChosenStream  # in whose order an array that it makes is used and freed
    outcome: _core.Outcome | None  # tells what becomes of this call; without one, the file does


class Submitter:
    """Runs the calls of one mount that were submitted, a few at a time. Thread-safe."""

    __slots__ = ("_latch", "_pool")

    def __init__(self) -> None:
        self._latch = threading.Lock()  # guards _pool
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Runs ``call`` in another thread, when its turn comes.

        Raises:
            RuntimeError: the interpreter ends, or the mount has been closed.
        """
        with self._latch:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(AT_ONCE, "gpufs", _begin_worker)
            return self._pool.submit(call)

    def close(self) -> None:
        """Takes no more calls. Does not wait."""
        with self._latch:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1)  # starts no thread before its first call
            self._pool.shutdown(wait=False)


class Submitted:
    """The calls of one file that were submitted and have not ended. Thread-safe.

    The error of a write stays here too, because its future may be one that nobody asks.
    """

    __slots__ = ("_futures", "_latch", "_lost")

    def __init__(self) -> None:
        self._latch = threading.Lock()  # guards what follows
        self._futures: set[Future[object]] = set()
        self._lost: BaseException | None = None

    def add(self, future: Future[_Result], *, writes: bool) -> None:
        """Keeps it until it has ended."""

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
        """Waits for all of them; but not in a callback of a future, whose thread some of them may need."""
        if getattr(_worker, "is_one", False):
            return
        while True:
            with self._latch:
                left = set(self._futures)
            if not left:
                return
            concurrent.futures.wait(left)

    def check(self) -> None:
        """Raises the first error of a write, each time."""
        with self._latch:
            lost = self._lost
        if lost is not None:
            raise lost


def _begin_worker() -> None:
    _worker.is_one = True
