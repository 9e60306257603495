"""The ways to share a GPU that ``gdev bench rivals`` compares: none, gdev, nvshare, HAMi-core."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdev import _daemon, _files
from gdev._users import ALL_USERS
from gdev._values import NO_LIMIT
from gdev.bench import _programs

NOTHING: Final = "nothing"
GDEV: Final = "gdev"
NVSHARE: Final = "nvshare"
HAMI: Final = "HAMi-core"

# The nvshare sources have this folder fixed.
_NVSHARE_SOCKET: Final = Path("/var/run/nvshare/scheduler.sock")
# So has HAMi-core its lock.
_HAMI_LOCK: Final = Path("/tmp/vgpulock")
_START_TIMEOUT_S: Final = 5.0


class UnableError(Exception):
    """Something cannot be done this way. The text says why."""


@dataclass(frozen=True)
class Way:
    """A way to share a GPU, ready to start programs."""

    name: str
    folder: Path
    """For files that live as long as the benchmark."""
    library: Path | None = None
    """What is preloaded; gdev knows its own."""
    control: Path | None = None
    """nvshare's command."""

    @property
    def has_limits(self) -> bool:
        """Whether it limits the memory of a group."""
        return self.name in (GDEV, HAMI)

    def environment(self, group: str, limit: int | None = None) -> dict[str, str]:
        """Returns the environment of the programs of a group, which have a limit together.

        Raises OSError, as ``gdev run`` does.
        """
        chosen = dict(os.environ)
        if self.name == GDEV:
            _set_virtual_gpu(f"rivals-{group}", NO_LIMIT if limit is None else limit)
            return _programs.environments(f"rivals-{group}")[_programs.GDEV]
        if self.name == NVSHARE:
            folders = [str(self.folder), chosen.get("LD_LIBRARY_PATH", "")]
            chosen["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
        if self.name == HAMI:
            # The region holds the limit that its first program brought.
            chosen["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(self.folder / f"{group}.{limit}")
            chosen["CUDA_REDIRECT"] = str(self.library)
            chosen["LIBCUDA_LOG_LEVEL"] = "0"
            if limit is not None:
                chosen["CUDA_DEVICE_MEMORY_LIMIT"] = str(limit)
        if self.library is not None:
            chosen["LD_PRELOAD"] = str(self.library)
        return chosen

    def set_turn(self, seconds: int) -> None:
        """Sets the length of nvshare's turns. Raises UnableError."""
        assert self.control is not None
        done = subprocess.run(
            [str(self.control), "-T", str(seconds)],
            capture_output=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise UnableError(f"nvsharectl -T {seconds}: exit status {done.returncode}")


def _set_virtual_gpu(name: str, limit: int) -> None:
    with _daemon.connect(start=True) as daemon:
        try:
            daemon.ask(_daemon.ADD, name, limit, ALL_USERS, *[_daemon.UNCHANGED] * 4)
        except FileExistsError:
            daemon.ask(_daemon.SET, name, limit, _daemon.UNCHANGED, *[_daemon.UNCHANGED] * 4)


@contextlib.contextmanager
def gpu_memory(size: int) -> Iterator[None]:
    """Lets the programs of gdev have so much of the GPU together. Ends that afterwards."""
    with _daemon.connect(start=True) as daemon:
        before = daemon.settings()[0]
        daemon.settings(memory=size)
    try:
        yield
    finally:
        with _daemon.connect(start=True) as daemon:
            daemon.settings(memory=before)


@contextlib.contextmanager
def ways(nvshare: Path | None, hami: Path | None) -> Iterator[list[Way]]:
    """Makes all ways ready: nvshare's scheduler runs meanwhile.

    nvshare: a folder with libnvshare.so, nvshare-scheduler and nvsharectl; hami: libvgpu.so. One
    that is not named is left out. Raises OSError: a file is missing, or one does not start.
    """
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gdev-rivals-")))
        found = [Way(NOTHING, root), Way(GDEV, root)]
        stack.callback(_remove_virtual_gpus)
        if nvshare is not None:
            files = [nvshare / name for name in ("libnvshare.so", "nvshare-scheduler")]
            library, scheduler = (_existing(one) for one in files)
            control = _existing(nvshare / "nvsharectl")
            driver = _files.driver()
            if driver is not None:
                (root / "libcuda.so").symlink_to(driver)  # the name that nvshare opens
            stack.enter_context(_running(scheduler))
            found.append(Way(NVSHARE, root, library, control))
        if hami is not None:
            _HAMI_LOCK.mkdir(exist_ok=True)
            found.append(Way(HAMI, root, _existing(hami)))
        yield found


def _existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return path.resolve()


def _remove_virtual_gpus() -> None:
    with contextlib.suppress(OSError), _daemon.connect(start=False) as daemon:
        for one in daemon.vgpus():
            if one.name.startswith("rivals-"):
                with contextlib.suppress(OSError):
                    daemon.ask(_daemon.REMOVE, one.name)


@contextlib.contextmanager
def _running(scheduler: Path) -> Iterator[None]:
    """Runs nvshare's scheduler. Raises OSError: it did not start."""
    if _NVSHARE_SOCKET.exists():
        _NVSHARE_SOCKET.unlink()  # of one that was killed
    process = subprocess.Popen(
        [str(scheduler)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + _START_TIMEOUT_S
        while not _NVSHARE_SOCKET.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, "nvshare's scheduler does not run", str(scheduler))
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()
