"""Sources for the grep benchmark: ``gpufs grep``, two programs without gpufs, and ripgrep."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

from gpufs import _core, grep
from gpufs._mount import Mount
from gpufs._options import Device
from gpufs.bench._measure import AbsentError, Sample, Source
from gpufs.bench._world import World

DICTIONARIES: Final = ("/usr/share/dict/words", "/usr/share/dict/american-english")
# A dictionary's words have at most 255 bytes. Encoded data in sources looks like longer ones.
WORD: Final = r"(?<![A-Za-z])[A-Za-z]{4,255}(?![A-Za-z])"
# ripgrep may take many minutes for the whole words of a large dictionary
RIPGREP_TIMEOUT_S: Final = 30
QUICK_RIPGREP_TIMEOUT_S: Final = 5
STAGING: Final = "128KiB"  # as in the command
MATCH_BYTES: Final = 16  # bytes of a match in a result

Way: TypeAlias = Literal["cpu", "cuda"]
# Bytes of a read.
CHUNKS: Final[dict[Way, int]] = {"cpu": 256 << 10, "cuda": 4 << 20}


def default_tree() -> list[str]:
    """Returns folders of source text that most machines have."""
    return [
        folder for folder in ("/usr/include", sysconfig.get_path("stdlib")) if Path(folder).is_dir()
    ]


class Text:
    """The files and the words of a search: ``wanted`` words, or all that there are."""

    def __init__(self, world: World, wanted: int) -> None:
        # A quick run searches only the headers.
        self.roots = world.tree[:1] if world.quick else world.tree
        self._wanted = wanted
        self._folder = world.folder

    @functools.cached_property
    def words(self) -> list[str]:
        """Words of the machine's dictionary, or of the text itself if there is none."""
        found: dict[str, None] = {}
        dictionary = next((Path(path) for path in DICTIONARIES if Path(path).exists()), None)
        if dictionary is not None:
            found = dict.fromkeys(
                re.findall(rf"^{WORD}$", dictionary.read_text(errors="replace"), re.MULTILINE)
            )
        else:
            for path in self._files():
                with contextlib.suppress(OSError):
                    found |= dict.fromkeys(re.findall(WORD, path.read_text(errors="replace")))
                if len(found) >= self._wanted:
                    break
        # Too many words are thinned out evenly.
        return sorted(found)[:: max(1, len(found) // self._wanted)][: self._wanted]

    @functools.cached_property
    def dictionary(self) -> Path:
        """A file with the words."""
        if not self.words:
            raise AbsentError("no words: neither a dictionary nor text")
        file = self._folder / f"words-{self._wanted}"
        file.write_text("".join(f"{word}\n" for word in self.words))
        return file

    @functools.cached_property
    def size(self) -> tuple[int, int]:
        """The numbers of files and bytes, as a search counts them."""
        with Mount(device="cpu", staging=STAGING, read_only=True) as mount:
            result = grep.search(mount, grep.Dictionary.read(self.dictionary), self.roots)
        return result.files, result.bytes

    @functools.cached_property
    def expected(self) -> _core.SearchResult:
        """The result of the CPU program."""
        return self.by_rival("cpu", len(os.sched_getaffinity(0)))[0]

    def by_rival(self, way: Way, threads: int) -> tuple[_core.SearchResult, float]:
        """Runs a program without gpufs. Returns its result and its seconds."""
        words = _core.Dictionary.read([os.fsencode(self.dictionary)], [], False)
        return _core.bench_grep_rival(
            way, words, list(map(os.fsencode, self.roots)), threads, CHUNKS[way]
        )

    def wrong_bytes(self, found: _core.SearchResult) -> int:
        """Returns the bytes of matches that are missing, superfluous or counted wrongly."""
        return found.differing(self.expected) * MATCH_BYTES

    def _files(self) -> list[Path]:
        return sorted(
            path for root in self.roots for path in Path(root).rglob("*") if path.is_file()
        )


def search(text: Text, *, device: Device, cores: int | None = None) -> Source:
    """``gpufs grep`` with a new mount for each run; the host's page cache is warm.

    ``cores``: the number of cores for the CPU device's kernels and the service.
    """

    def source() -> Generator[Sample]:
        dictionary = grep.Dictionary.read(text.dictionary)
        while True:
            with (
                _on_cores(cores),
                Mount(device=device, staging=STAGING, cpu_threads=cores, read_only=True) as mount,
            ):
                cpu = time.process_time()
                result = grep.search(mount, dictionary, text.roots)
                cpu = time.process_time() - cpu
            yield Sample(
                result.seconds, cpu, result.files, result.bytes, text.wrong_bytes(result._core)
            )

    return source


def rival(world: World, text: Text, way: Way, threads: int) -> Source:
    """The CPU program, or the CUDA program with pinned buffers; counts the bytes of gpufs."""

    def source() -> Generator[Sample]:
        if way == "cuda" and world.device != "cuda":
            raise AbsentError("needs a GPU")
        files, bytes_ = text.size
        while True:
            cpu = time.process_time()
            found, seconds = text.by_rival(way, threads)
            yield Sample(seconds, time.process_time() - cpu, files, bytes_, text.wrong_bytes(found))

    return source


@contextlib.contextmanager
def _on_cores(count: int | None) -> Iterator[None]:
    """Limits this thread, and the threads that it starts, to some of its cores."""
    before = os.sched_getaffinity(0)
    if count is not None:
        os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ripgrep(world: World, text: Text, *options: str) -> Source:
    """Runs ripgrep on all cores, with the same words and files.

    It prints each match, while gpufs counts matches: only the times are comparable.
    """

    def source() -> Generator[Sample]:
        program = shutil.which("rg")
        if program is None:
            raise AbsentError("no rg here")
        timeout_s = QUICK_RIPGREP_TIMEOUT_S if world.quick else RIPGREP_TIMEOUT_S
        command = [
            program,
            "--no-config",
            "-j",
            str(world.threads),
            "-uuu",
            "--no-messages",
            "-o",
            "-F",
            *options,
        ]
        command += [
            "--no-filename",
            "--no-line-number",
            "--color=never",
            "-f",
            os.fspath(text.dictionary),
        ]
        while True:
            wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            try:
                done = subprocess.run(
                    [*command, "--", *text.roots],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    check=False,
                    timeout=timeout_s,
                )
            except subprocess.TimeoutExpired:
                raise AbsentError(f"over {timeout_s} s") from None
            seconds, after = (
                time.perf_counter() - wall,
                resource.getrusage(resource.RUSAGE_CHILDREN),
            )
            # Status 2 without a message: a file could not be read. With a message, ripgrep has not
            # searched.
            if done.returncode not in (0, 1, 2) or done.stderr:
                first_line = done.stderr.decode(errors="replace").partition("\n")[0]
                raise AbsentError(f"rg: {first_line or done.returncode}")
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            files, bytes_ = text.size
            yield Sample(seconds, cpu, files, bytes_, 0)

    return source
