"""``gpufs grep`` and ripgrep on a tree of source text."""

from __future__ import annotations

import functools
import os
import re
import resource
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from gpufs import grep
from gpufs._mount import Device, Mount
from gpufs.bench._measure import AbsentError, Sample, Source
from gpufs.bench._world import World

DICTIONARIES: Final = ("/usr/share/dict/words", "/usr/share/dict/american-english")
WORDS: Final = 5000
QUICK_WORDS: Final = 500
RIPGREP_TIMEOUT_S: Final = 30  # it can be a hundred times slower with many words
QUICK_RIPGREP_TIMEOUT_S: Final = 5
STAGING: Final = "128KiB"  # as the command has it


def default_tree() -> list[str]:
    """Returns folders of source text that most machines have."""
    return [folder for folder in ("/usr/include", sysconfig.get_path("stdlib")) if Path(folder).is_dir()]


class Text:
    """What is searched, and the words."""

    def __init__(self, world: World) -> None:
        # The headers alone make a short run.
        self.roots = world.tree[:1] if world.quick else world.tree
        self._words = QUICK_WORDS if world.quick else WORDS
        self._folder = world.folder

    @functools.cached_property
    def words(self) -> Path:
        """A file of words: from a dictionary of the machine, or else out of the text itself."""
        found: dict[str, None] = {}
        dictionary = next((Path(path) for path in DICTIONARIES if Path(path).exists()), None)
        if dictionary is not None:
            found = dict.fromkeys(re.findall(r"^[A-Za-z]{4,}$", dictionary.read_text(errors="replace"), re.MULTILINE))
        else:
            for path in self._files():
                found |= dict.fromkeys(re.findall(r"[A-Za-z]{4,}", path.read_text(errors="replace")))
                if len(found) >= self._words:
                    break
        if not found:
            raise AbsentError("no words: neither a dictionary nor text")
        file = self._folder / "words"
        # Evenly out of all of them, where there are too many.
        chosen = sorted(found)[:: max(1, len(found) // self._words)][: self._words]
        file.write_text("".join(f"{word}\n" for word in chosen))
        return file

    def _files(self) -> list[Path]:
        return sorted(path for root in self.roots for path in Path(root).rglob("*") if path.is_file())[:2000]


def search(world: World, text: Text, *, device: Device, threads: int | None = None) -> Source:
    """A fresh mount for each run; the page cache is warm from the run before."""

    def source() -> Generator[Sample]:
        dictionary = grep.Dictionary.read(text.words)
        while True:
            with Mount(device=device, staging=STAGING, twin_threads=threads) as mount:
                cpu = time.process_time()
                result = grep.search(mount, dictionary, text.roots)
                yield Sample(result.seconds, time.process_time() - cpu, result.files, result.bytes, 0)

    return source


def ripgrep(world: World, text: Text) -> Source:
    """Prints each match, which gpufs counts: a comparison of time, not of output. Both read the same files."""

    def source() -> Generator[Sample]:
        program = shutil.which("rg")
        if program is None:
            raise AbsentError("no rg here")
        timeout_s = QUICK_RIPGREP_TIMEOUT_S if world.quick else RIPGREP_TIMEOUT_S
        command = [program, "-o", "-w", "-F", "-uuu", "--no-filename", "-f", os.fspath(text.words), *text.roots]
        with Mount(device="cpu", staging=STAGING) as mount:
            whole = grep.search(mount, grep.Dictionary.read(text.words), text.roots)
        while True:
            wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            try:
                done = subprocess.run(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=timeout_s
                )
            except subprocess.TimeoutExpired:
                raise AbsentError(f"it did not end within {timeout_s} s") from None
            seconds, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
            if done.returncode not in (0, 1, 2):  # 2: something could not be read, besides
                raise AbsentError(f"rg gave status {done.returncode}")
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            yield Sample(seconds, cpu, whole.files, whole.bytes, 0)

    return source
