"""Counts how often each word of a dictionary occurs in each of many files, in kernels.

    >>> import gpufs
    >>> from gpufs import grep
    >>> with gpufs.mount(device="cpu", cache="16MiB") as mount:
    ...     result = grep.search(mount, grep.Dictionary(["mount"]), [gpufs.__file__])
    >>> [match.word for match in result]
    ['mount']

The engine handles paths and words as bytes. :func:`os.fsencode` and :func:`os.fsdecode` convert
from and to ``str``, so bytes that are not UTF-8 survive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpufs import _core
from gpufs._mount import Mount
from gpufs._options import AnyPath

MATCHES_AT_ONCE: Final = 1 << 14  # matches that become Python objects at once
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Match:
    """A word that occurs in a file."""

    path: str
    word: str
    count: int  # at least 1


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a search. The totals are 0 while folders are still being listed."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int  # the files' sizes at the listing


class Dictionary:
    """The words to look for.

    Args:
        words: in any order; repeated and empty words are ignored.
        ignore_case: whether to ignore the case of A to Z; other letters stay different. Words that
            differ only in this case are one word, in the spelling that comes first.

    Raises:
        ValueError: a word contains a NUL or a newline, or has more than 255 bytes.
    """

    __slots__ = ("_core",)

    def __init__(self, words: Iterable[str | bytes], *, ignore_case: bool = False) -> None:
        self._core = _core.Dictionary([os.fsencode(word) for word in words], ignore_case)

    @classmethod
    def read(
        cls, *paths: AnyPath, more: Iterable[str | bytes] = (), ignore_case: bool = False
    ) -> Dictionary:
        r"""Reads files with one word a line. Lines end with ``\n`` or ``\r\n``.

        Empty lines are ignored. Waits for the files.

        Args:
            paths: the files, which may be pipes.
            more: additional words, which come first.
            ignore_case: as for the constructor.

        Raises:
            OSError: a file cannot be read. ``EINVAL``: a word contains a NUL or has more than 255
                bytes.
            ValueError: as for the constructor, for a word of ``more``.
        """
        made = cls.__new__(cls)
        made._core = _core.Dictionary.read(
            list(map(os.fsencode, paths)), list(map(os.fsencode, more)), ignore_case
        )
        return made

    def __len__(self) -> int:
        """Returns the number of different words."""
        return len(self._core)


class Result:
    """The result of a search: iterates over :class:`Match`, sorted by path and word, bytewise.

    Attributes:
        files: the number of completely searched files.
        bytes: the bytes of these files.
        words_found: the number of different words with a match.
        occurrences: the sum of all counts.
        seconds: the time for listing and searching.
        binary: the paths of files with a NUL byte, which were searched at most up to it.
        failures: an ``OSError`` with ``errno`` and ``filename`` for each file or folder that could
            not be read.
    """

    __slots__ = (
        "_core",
        "binary",
        "bytes",
        "failures",
        "files",
        "occurrences",
        "seconds",
        "words_found",
    )

    def __init__(self, result: _core.SearchResult, seconds: float) -> None:
        self._core = result
        self.files = result.file_count
        self.bytes = result.byte_count
        self.words_found = result.words_found
        self.occurrences = result.occurrences
        self.seconds = seconds
        self.binary = [os.fsdecode(path) for path in result.binary()]
        self.failures = _failures(result)

    def __len__(self) -> int:
        """Returns the number of matches."""
        return len(self._core)

    def __iter__(self) -> Iterator[Match]:
        """Yields the matches."""
        for start in range(0, len(self._core), MATCHES_AT_ONCE):
            for path, word, count in self._core.matches(start, start + MATCHES_AT_ONCE):
                yield Match(os.fsdecode(path), os.fsdecode(word), count)

    def lines(self) -> Iterator[bytes]:
        """Yields the matches as text ``PATH<TAB>WORD<TAB>COUNT<NEWLINE>``, in pieces of many lines.

        This is some hundred times faster than formatting each :class:`Match`. Special characters of
        a path (a tab, a newline) are not escaped.
        """
        for start in range(0, len(self._core), MATCHES_AT_ONCE):
            yield self._core.lines(start, start + MATCHES_AT_ONCE)


@dataclass(frozen=True, slots=True)
class FileLines:
    """The number of lines of a file with a match."""

    path: str
    lines: int


class LineCounts:
    """The result of :func:`count_lines`: iterates over :class:`FileLines`, sorted by path.

    Attributes:
        files: the number of searched files.
        bytes: the bytes of these files.
        lines: the sum over all files.
        seconds: the time for listing and searching.
        failures: an ``OSError`` with ``errno`` and ``filename`` for each file or folder that could
            not be read.
    """

    __slots__ = ("_counts", "bytes", "failures", "files", "lines", "seconds")

    def __init__(self, result: _core.SearchResult, seconds: float) -> None:
        self._counts = result.line_counts()
        self.files = result.file_count
        self.bytes = result.byte_count
        self.lines = sum(lines for _, lines in self._counts)
        self.seconds = seconds
        self.failures = _failures(result)

    def __len__(self) -> int:
        """Returns the number of files searched."""
        return len(self._counts)

    def __iter__(self) -> Iterator[FileLines]:
        """Yields the line count of each file."""
        for path, lines in self._counts:
            yield FileLines(os.fsdecode(path), lines)


def _failures(result: _core.SearchResult) -> list[OSError]:
    return [
        OSError(number, reason or os.strerror(number), os.fsdecode(path))
        for path, number, reason in result.failures()
    ]


def search(
    mount: Mount,
    dictionary: Dictionary,
    paths: Iterable[AnyPath],
    *,
    on_progress: Callable[[Progress], object] | None = None,
) -> Result:
    """Searches files, and folders with everything below them.

    Waits for the end, without holding the GIL. ``on_progress`` is called about twenty times a
    second, and at the end. If it raises an exception, or on Ctrl-C, the exception propagates at
    once. The kernels then run to their end, and closing the mount does not wait for them.

    The count of a word in a file is the number of lines that ``LC_ALL=C grep -o -w -F -e WORD
    FILE`` prints (with ``-i`` if the dictionary ignores case): whole words (of ``A-Za-z0-9_``) that
    do not overlap. As with grep, a file with a NUL byte counts at most up to it; see
    :attr:`Result.binary`. Symbolic links are followed in ``paths``, but not below folders.

    A file or folder that cannot be read does not end the search; :attr:`Result.failures` lists it.

    Raises:
        OSError: the device failed, or there is not enough memory.
        ValueError: the mount is closed.
        RuntimeError: the mount belongs to the parent process.
    """
    return Result(*_run(mount, dictionary, paths, on_progress, lines=False))


def count_lines(
    mount: Mount,
    dictionary: Dictionary,
    paths: Iterable[AnyPath],
    *,
    on_progress: Callable[[Progress], object] | None = None,
) -> LineCounts:
    """Counts the lines of each file that contain any of the words; else as :func:`search`.

    The count of a file is what ``LC_ALL=C grep -c -w -F`` prints with an ``-e WORD`` for each word.
    As in grep, a NUL byte ends a line, so all of a binary file is searched.
    """
    return LineCounts(*_run(mount, dictionary, paths, on_progress, lines=True))


def _run(
    mount: Mount,
    dictionary: Dictionary,
    paths: Iterable[AnyPath],
    on_progress: Callable[[Progress], object] | None,
    *,
    lines: bool,
) -> tuple[_core.SearchResult, float]:
    """Runs a search. Returns its result and its seconds."""
    start = time.perf_counter()
    running = _core.Search(mount._core, dictionary._core, list(map(os.fsencode, paths)), lines)
    done = False
    try:
        while not done:
            done = running.wait(POLL_S)
            if on_progress is not None:
                on_progress(Progress(*running.progress()))
        return running.result(), time.perf_counter() - start
    except BaseException:
        running.leave()
        raise
