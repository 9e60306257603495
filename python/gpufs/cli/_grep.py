"""``gpufs grep``."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeAlias

import typer

from gpufs import _core, grep
from gpufs._mount import Mount
from gpufs._statistics import Statistics
from gpufs.cli._exit_status import FAILED, INTERRUPTED
from gpufs.cli._options import CacheOption, DeviceOption, PageOption, ProgressOption, mount_to_read
from gpufs.cli._output import cache_lines, complain, describe, is_terminal, note, write
from gpufs.cli._progress import grep_bar
from gpufs.cli._signals import EndedError, end_at_once
from gpufs.sizes import format_size

FOUND: Final = 0
NOTHING_FOUND: Final = 1

# With this staging size, the answer to an open contains most source files.
GREP_STAGING: Final = "128KiB"

_STANDARD_INPUT: Final = "/dev/stdin"

_Found: TypeAlias = grep.Result | grep.LineCounts


def grep_command(
    operands: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD] PATH...",
            help="The word, unless -e or -f names words; files, and folders with all below them.",
            show_default=False,
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Option(
            "-e", "--word", metavar="WORD", help="A word to look for; may be given several times."
        ),
    ] = None,
    lists: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--file",
            metavar="WORDS",
            help="File with one word a line; - is standard input. Several are one list.",
        ),
    ] = None,
    count: Annotated[
        bool,
        typer.Option(
            "-c", "--count", help="Print of each file how many lines have a match, as PATH:LINES."
        ),
    ] = False,
    ignore_case: Annotated[
        bool,
        typer.Option(
            "-i",
            "--ignore-case",
            help="Ignore the case of A to Z, in words and in text; of no other letter.",
        ),
    ] = False,
    recursive: Annotated[
        bool,
        typer.Option(
            "-r",
            "--recursive",
            help="Without a PATH, search the working folder. Folders always are.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    cache: CacheOption = None,
    page: PageOption = "4KiB",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of lines.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="At the end, say on standard error what was done.")
    ] = False,
    timeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write what the service did, request by request, for Perfetto to show.",
        ),
    ] = None,
    progress: ProgressOption = True,
) -> None:
    """Count whole words in files.

    Prints lines PATH, WORD and COUNT with tabs between them, ordered by path, then word. A word
    counts if no letter, digit or underscore is directly before or after it, as for grep -w -F. With
    -c, prints lines PATH:LINES for all files, as grep does, and only LINES for a single PATH that
    is no folder.

    \b
    gpufs grep TODO src                  a word in all files below a folder
    gpufs grep -e malloc -e free *.c     several words
    gpufs grep -i error /var/log         error, Error and ERROR; they count together
    gpufs grep -c TODO src               for each file, the number of lines with the word
    gpufs grep -f words.txt /usr/share   the words of a file, one a line
    gpufs grep -e -x -- notes.txt        a word that begins with a dash

    Exit status: 0 when a word was found, 1 when none was, 2 after an error, even if words were
    found. A list without words finds nothing, and nothing is read.
    """  # noqa: D301 - \b is the character, which keeps the lines of a paragraph
    lists = [_STANDARD_INPUT if name == "-" else name for name in lists or []]
    try:
        given, paths = _words_and_paths(operands or [], words or [], lists, recursive)
        dictionary = grep.Dictionary.read(*lists, more=given, ignore_case=ignore_case)
    except ValueError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from None
    except OSError as error:
        _complain(describe(error))
        raise typer.Exit(FAILED) from None
    try:
        if timeline is not None:
            _refuse_to_overwrite(timeline, lists, paths)
        if not len(dictionary):
            paths = []
        with mount_to_read(device, cache, page, staging=GREP_STAGING) as mount:
            search = grep.count_lines if count else grep.search
            result = _search(search, mount, dictionary, paths, timeline, progress)
            report = _Report(mount, result)
    except OSError as error:
        _complain(describe(error))
        raise typer.Exit(FAILED) from None
    for failure in result.failures:
        _complain(describe(failure))
    if as_json:
        write(report.json_pieces())
    elif isinstance(result, grep.LineCounts):
        write(
            _count_lines(
                result,
                with_path=len(paths) != 1 or os.path.isdir(paths[0]),  # noqa: PTH112
            )
        )
    else:
        write(result.lines())
    if summary:
        note("\n".join(report.summary()))
    if result.failures:
        raise typer.Exit(FAILED)
    found = result.lines if isinstance(result, grep.LineCounts) else len(result)
    raise typer.Exit(FOUND if found else NOTHING_FOUND)


def _count_lines(counts: grep.LineCounts, *, with_path: bool) -> Iterator[bytes]:
    """Yields lines as ``grep -c`` prints them, with or without the path."""
    for found in counts:
        yield os.fsencode(f"{found.path}:{found.lines}\n") if with_path else b"%d\n" % found.lines


def _search(
    search: Callable[..., _Found],
    mount: Mount,
    dictionary: grep.Dictionary,
    paths: list[str],
    timeline: str | None,
    progress: bool,
) -> _Found:
    recording = contextlib.nullcontext() if timeline is None else mount.timeline(timeline)
    with recording, grep_bar(progress and is_terminal(sys.stderr)) as show:
        try:
            return search(mount, dictionary, paths, on_progress=show)
        except (KeyboardInterrupt, EndedError) as why:
            if show is not None:
                show(None)
            # Not close(), which would wait for the kernels.
            end_at_once(why.status if isinstance(why, EndedError) else INTERRUPTED)


def _words_and_paths(
    operands: list[str], words: list[str], lists: list[str], recursive: bool
) -> tuple[list[str], list[str]]:
    """Returns the words and the paths of the command line, by the rules of grep.

    Raises:
        ValueError: words or paths are missing.
    """
    paths = operands
    if not words and not lists:
        words, paths = operands[:1], operands[1:]
    if not words and not lists:
        raise ValueError("WORD and PATH are missing; gpufs grep --help says more")
    if not all(words):
        raise ValueError("an empty word matches nothing")
    if not paths and not recursive:
        raise ValueError(
            "PATH is missing: the files or folders to search (with -r, the working folder)"
        )
    # A text with newlines means several words. As in a list, empty lines are ignored.
    return [word for text in words for word in text.split("\n")], paths or ["."]


def _refuse_to_overwrite(output: str, lists: list[str], paths: list[str]) -> None:
    """Raises ``OSError`` if the output is a file that the command reads, under any name."""
    try:
        status = os.stat(output)  # noqa: PTH116 - it may be bytes that are no text
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        return  # it has no content that could be lost
    if any(os.path.samestat(status, os.stat(name)) for name in lists):  # noqa: PTH116 - as above
        raise OSError(errno.EINVAL, "would be lost: it is a list of words", output)
    if _core.grep_searches([os.fsencode(path) for path in paths], os.fsencode(output)):
        raise OSError(
            errno.EINVAL, "would be lost: it is one of the files that are searched", output
        )


def _complain(text: str) -> None:
    """Prints an error. For a file, ``text`` is its path and the reason."""
    complain(text, "gpufs grep")


def _entry(found: grep.Match | grep.FileLines) -> dict[str, Any]:
    if isinstance(found, grep.FileLines):
        return {"path": found.path, "lines": found.lines}
    return {"path": found.path, "word": found.word, "count": found.count}


class _Report:
    """The result and the statistics of a search, kept after the mount is closed."""

    def __init__(self, mount: Mount, result: _Found) -> None:
        self.result = result
        self.device = mount.device
        self.device_name = mount.device_name
        self.direct_path = mount.direct_path
        self.statistics: Statistics = mount.stats()

    @property
    def gb_per_s(self) -> float:
        return self.result.bytes / self.result.seconds / 1e9 if self.result.seconds else 0.0

    def json_pieces(self) -> Iterator[bytes]:
        r"""Yields a JSON object in pieces. ``matches``, which may be long, comes last.

        * ``device``, ``device_name``, ``direct_path``: as of :class:`gpufs.Mount`.
        * ``files``, ``bytes``, ``seconds``, ``gb_per_s``: of the search.
        * ``words_found``: the number of different words; ``occurrences``.
        * ``binary``: paths of files with a NUL byte, which were searched at most up to it.
        * ``failures``: objects with ``path``, ``errno`` and ``error``.
        * ``statistics``: the result of :meth:`gpufs.Mount.stats`.
        * ``matches``: objects with ``path``, ``word`` and ``count``.

        If lines were counted, ``lines`` is their sum and replaces ``words_found``, ``occurrences``
        and ``binary``. ``matches`` then has objects with ``path`` and ``lines`` for all files.
        Bytes of paths and words that are not UTF-8 become lone surrogates (``"\udcff"``), as with
        os.fsdecode.
        """
        result = self.result
        head: dict[str, Any] = {
            "version": _core.__version__,
            "device": self.device,
            "device_name": self.device_name,
            "direct_path": self.direct_path,
            "files": result.files,
            "bytes": result.bytes,
            "seconds": result.seconds,
            "gb_per_s": self.gb_per_s,
            **self._totals(),
            "failures": [
                {"path": failure.filename, "errno": failure.errno, "error": failure.strerror}
                for failure in result.failures
            ],
            "statistics": self.statistics,
        }
        yield json.dumps(head)[:-1].encode() + b', "matches": ['
        matches: Iterator[grep.Match | grep.FileLines] = iter(result)
        separator = ""
        while piece := list(itertools.islice(matches, grep.MATCHES_AT_ONCE)):
            entries = list(map(_entry, piece))
            yield f"{separator}{json.dumps(entries)[1:-1]}".encode()
            separator = ", "
        yield b"]}\n"

    def _totals(self) -> dict[str, Any]:
        result = self.result
        if isinstance(result, grep.LineCounts):
            return {"lines": result.lines}
        return {
            "words_found": result.words_found,
            "occurrences": result.occurrences,
            "binary": result.binary,
        }

    def summary(self) -> Iterator[str]:
        """Yields lines of text for people."""
        result, counts = self.result, self.statistics
        yield f"ran on    {self.device_name}"
        yield f"searched  {result.files:,} files, {format_size(result.bytes)}"
        if isinstance(result, grep.LineCounts):
            yield f"found     {result.lines:,} lines with a match"
        else:
            yield (
                f"found     {result.words_found:,} words, {result.occurrences:,} times, "
                f"in {len(result):,} lines"
            )
        if result.failures:
            yield f"not read  {len(result.failures):,} files or folders"
        if isinstance(result, grep.Result) and result.binary:
            yield (
                f"binary    {len(result.binary):,} files, "
                f"searched up to their first NUL byte at most"
            )
        yield f"time      {result.seconds:.3f} s, {self.gb_per_s:.2f} GB/s"
        yield from cache_lines(counts, self.direct_path)
