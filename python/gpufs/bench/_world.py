"""The environment of benchmarks: a device, a file with known content and state, small files."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from gpufs import _core, _machine
from gpufs._mount import Mount
from gpufs._options import Device
from gpufs._output import unfinished

State: TypeAlias = Literal["hot", "dropped"]

# A file that changed less than two seconds before its open gets a new version at the next open
# (docs/design.md), which makes its registrations useless.
SETTLING_S: Final = 3.0

DEFAULT_BYTES: Final = {"cuda": 8 << 30, "cpu": 256 << 20}
QUICK_PART: Final = 10  # divides the default size, the small files and the repetitions
SMALL_FILES: Final = 40_000
WRITE_AT_ONCE: Final = 256 << 20
READ_AT_ONCE: Final = 8 << 20

Tell: TypeAlias = Callable[[str], object]


class NotOursError(ValueError):
    """A given file does not contain the benchmarks' content."""


def power_of_two_below(number: int) -> int:
    """Returns the largest power of two that is not larger than ``number``."""
    return 1 << (number.bit_length() - 1)


@dataclass
class World:
    """The environment of a run: a context manager that removes its files at the end.

    Attributes:
        device: the device of the benchmarks.
        runs: repetitions of each measurement after its warm-up.
        path: the file.
        file_bytes: the used bytes of the file: a power of two.
        small_files: the number of small files.
        tree: folders that ``gpufs grep`` searches.
    """

    device: Literal["cuda", "cpu"]
    device_name: str
    multiprocessors: int
    quick: bool
    runs: int
    path: Path
    file_bytes: int
    small_files: int
    tree: list[str]
    tell: Tell
    folder: Path  # removed at the end
    _small_folder: Path | None = None

    @classmethod
    def make(
        cls,
        device: Device,
        *,
        file: str | None,
        size: int | None,
        quick: bool,
        tree: list[str],
        tell: Tell,
        default_max: int | None = None,
    ) -> Self:
        """Examines the machine. Writes nothing yet.

        Args:
            device: the device to measure.
            file: the file to measure on; None: a temporary one.
            size: the bytes of it to use; None: a default.
            quick: whether to measure less.
            tree: folders that ``gpufs grep`` searches.
            tell: called with what happens, in words.
            default_max: the default size is at most this.

        Raises:
            NotOursError: ``file`` exists and was not made by this program.
            OSError: the device does not work, or the file cannot be read.
        """
        with Mount(device=device, cache="16MiB") as mount:
            kind, name, processors = mount.device, mount.device_name, mount.multiprocessors
        given = None if file is None else Path(file)
        if given is not None and given.exists():
            there = given.stat().st_size
            if not _core.bench_holds_content(os.fsencode(given)):
                raise NotOursError(
                    f"{given} was not made by gpufs bench: name a new file, and it will be written"
                )
            wanted = there if size is None else min(size, there)
        else:
            place = Path(tempfile.gettempdir()) if given is None else given.parent
            wanted = _default_bytes(kind, place, quick, default_max) if size is None else size
        folder = Path(tempfile.mkdtemp(prefix="gpufs-bench-"))
        unfinished.add(os.fspath(folder))
        return cls(
            device=kind,
            device_name=name,
            multiprocessors=processors,
            quick=quick,
            runs=3,
            path=folder / "file" if given is None else given,
            file_bytes=max(power_of_two_below(max(wanted, 1)), 1 << 20),
            small_files=SMALL_FILES // QUICK_PART if quick else SMALL_FILES,
            tree=tree,
            tell=tell,
            folder=folder,
        )

    def __enter__(self) -> Self:
        """Writes the file, if it does not exist."""
        try:
            if not self.path.exists():
                self.tell("writing the file")
                for at in range(0, self.file_bytes, WRITE_AT_ONCE):
                    _core.bench_write_content(
                        self.name, at, min(WRITE_AT_ONCE, self.file_bytes - at)
                    )
            self.settle(self.path)
        except BaseException:
            self._remove_folder()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Removes all written files except one that the user named."""
        self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        unfinished.discard(os.fspath(self.folder))

    @property
    def name(self) -> bytes:
        return os.fsencode(self.path)

    @property
    def threads(self) -> int:
        """The number of cores that this process may use."""
        return len(os.sched_getaffinity(0))

    def mount(self, **options: Any) -> Mount:  # noqa: ANN401 - Mount says what they are
        """Mounts the measured device."""
        return Mount(device=self.device, **{"read_only": True, **options})

    def bring_into(self, state: State) -> str:
        """Loads the file into the page cache, or drops it. Returns why that failed, or nothing."""
        if state == "hot" and _core.bench_cached_share(self.name) < 1:
            with self.path.open("rb", buffering=0) as file:
                buffer = bytearray(READ_AT_ONCE)
                while file.readinto(buffer):
                    pass
        elif state == "dropped":
            _core.bench_drop_from_cache(self.name)
        share = _core.bench_cached_share(self.name)
        if state == "hot":
            return (
                ""
                if share > 0.99
                else f"could not bring all into the page cache: {share:.0%} is there"
            )
        return "" if share < 0.01 else f"could not drop the page cache: {share:.0%} is still there"

    def small_folder(self) -> bytes:
        """Returns the folder of the small files. The first call writes them."""
        if self._small_folder is None:
            self.tell(f"writing {self.small_files:,} small files")
            folder = self.folder / "small"
            _core.bench_write_small_files(os.fsencode(folder), 0, self.small_files)
            self.settle(folder)
            self._small_folder = folder
        return os.fsencode(self._small_folder)

    def settle(self, path: Path) -> None:
        """Waits until a file is old enough to keep its version and registrations at an open."""
        status = path.stat()
        age = time.time() - max(status.st_mtime, status.st_ctime)
        if age < SETTLING_S:
            self.tell("waiting until the file is older than three seconds")
            # A clock that was set back must not prolong the wait.
            time.sleep(min(SETTLING_S - age, SETTLING_S))


def _default_bytes(
    device: Literal["cuda", "cpu"], folder: Path, quick: bool, most: int | None
) -> int:
    """Returns a size that fits into this machine's memory, disk and GPU; at most the default."""
    host = _machine.examine_host()
    memory = min(host.memory_bytes, host.memory_limit_bytes or host.memory_bytes)
    rooms = [DEFAULT_BYTES[device], memory // 4, shutil.disk_usage(folder).free // 2]
    if device == "cuda":
        # The GPU needs a cache as large as the file, a copy of the file for comparison, and a
        # target for transfers.
        rooms.append(min(gpu["memory_bytes"] for gpu in _core.examine_cuda()["gpus"]) // 5)
    usual = min(rooms) // (QUICK_PART if quick else 1)
    return usual if most is None else min(usual, most)
