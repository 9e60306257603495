"""Which losses of bytes calls have raised, so that unmounting does not raise them again."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gpufs import _core


class Loss(NamedTuple):
    """A kind of loss; see :class:`gpufs.FileError`."""

    path: bytes
    errno: int
    operation: str
    at_unmount: bool
    discarded: bool


class Losses:
    """The losses of a mount's files, and how many of each kind calls have raised. Thread-safe."""

    __slots__ = ("_core", "_latch", "_raised")

    def __init__(self, core: _core.Mount) -> None:
        self._core = core
        self._latch = threading.Lock()  # guards _raised
        self._raised: Counter[Loss] = Counter()

    @contextlib.contextmanager
    def raised_of(self, path: bytes) -> Iterator[None]:
        """Notes that an ``OSError`` of the block reports a loss of bytes of ``path``.

        Only if there is one: other files may still write the bytes, and lose them later.
        """
        before = self._counts()
        try:
            yield
        except OSError as error:
            for loss, count in self._counts().items():
                if (loss.path, loss.errno) == (path, error.errno) and count > before[loss]:
                    with self._latch:
                        self._raised[loss] += 1
            raise

    def left_of(self, error: Exception) -> list[Exception]:
        """Returns what is left to raise of ``error``, which the core's unmounting has raised.

        The error is about the first loss, if there is one.
        """
        counts = self._counts()
        with self._latch:
            left = [loss for loss, count in counts.items() if count > self._raised[loss]]
        if left and left[0] != next(iter(counts)):
            return [OSError(left[0].errno, os.strerror(left[0].errno), os.fsdecode(left[0].path))]
        _, dropped = self._core.file_errors()
        return [error] if left or not counts or dropped != 0 else []

    def _counts(self) -> Counter[Loss]:
        """Returns how often each loss has occurred, in the order of their first occurrence."""
        errors, _ = self._core.file_errors()
        counts: Counter[Loss] = Counter()
        for path, number, operation, at_unmount, count, discarded in errors:
            if at_unmount or discarded or operation == "close":
                counts[Loss(path, number, operation, at_unmount, discarded)] += count
        return counts
