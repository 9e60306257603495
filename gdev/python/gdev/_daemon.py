"""Talks to the daemon: the messages of ``gdev/protocol/messages.hpp``."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from gpufs.sizes import format_size

from gdev import _files
from gdev._records import (
    COUNTERS,
    OVERHEAD_SOURCES,
    PHASES,
    WHEN_FULL,
    Client,
    GpuUse,
    Segment,
    Vgpu,
)

NUMBERS: Final = 16
LAYOUT: Final = struct.Struct(f"=IIiI32s{NUMBERS}Q")
VERSION: Final = 7
ADD, SET, REMOVE, LIST, CLIENTS, STOP, SETTINGS, PAUSE, GPUS = range(16, 25)
OBSERVE, COUNTS, TOTALS, UNKNOWN_NAME, OVERHEAD_OF = range(25, 30)
KEY_STATUS, KEY_REMOVE, KEY_LIST = 36, 38, 39
UNCHANGED: Final = 2**64 - 2
_PAUSED, _WAITS, _UNFIT, _HELD = 1, 2, 4, 8  # client_flag in gdev/protocol/messages.hpp
_REMOVED: Final = 0o1000  # in a segment's mode
NAME_BYTES: Final = 32  # with the zero at its end
ANSWER_TIMEOUT_S: Final = 5.0

# What the daemon's errors mean to a user; of others the system's text is right.
_MEANINGS: Final = {
    errno.ENOENT: "there is no such virtual GPU (gdev vgpu list)",
    errno.EEXIST: "there is a virtual GPU of this name already",
    errno.EBUSY: "programs use it (gdev ps), or it holds shared memory (gdev shm)",
    errno.EIDRM: "it has been removed",
    errno.EPERM: "only the user whose daemon it is, and root, may do this",
    errno.EINVAL: "the daemon does not know this request",
    errno.ESRCH: "no such process runs under gdev (gdev ps)",
    errno.EPROTO: "the daemon is of another version of gdev: end it with that one's gdev stop, or"
    " kill gdevd",
}
_NO_DAEMON: Final = "no daemon runs (gdev run, vgpu, gpu and apply start one)"
NOTHING_RUNS: Final = (
    "no daemon runs; programs that it left go on (gdev run, vgpu, gpu and apply start one)"
)
NAME_RULE: Final = "a name has 1 to 31 letters, digits, '.', '_' or '-'"
# setting_fault in gdev/protocol/messages.hpp; {}: the most that is possible.
_FAULTS: Final = (
    "the settings are wrong",
    NAME_RULE,
    "a limit is 1 byte to {}, or 'none'",
    "--reserve is at most {}",
    "--reserve is at most the virtual GPU's --memory, {}",
    "--reserve: those of all virtual GPUs together are at most what programs may have of the GPU,"
    " {} (gdev vgpu list: what is set)",
    "--priority is -1000 to 1000",
    "--when-full is one of swap, wait, fail",
    "--end-after is 0 to 1000000000 seconds",
    "--spare is less than what programs may have of the GPU, {} (gdev gpu list: what is set)",
    "--host-memory and --swap-files are at most {}",
)
_CHANGES: Final = (ADD, SET, REMOVE, SETTINGS)


class SettingError(ValueError):
    """A setting that is impossible: the daemon refuses it."""


def _refusal(kind: int, error: int, name: str, numbers: list[int], path: str) -> Exception:
    if error == errno.EINVAL and kind in _CHANGES:
        text = _FAULTS[numbers[0] if numbers[0] < len(_FAULTS) else 0]
        about = f"{name}: " if name else ""
        return SettingError(about + text.format(format_size(numbers[1])))
    text = _MEANINGS.get(error, os.strerror(error))
    if kind in _CHANGES and error not in _MEANINGS:
        text = f"it holds until the daemon ends, because {path}.state cannot be written: {text}"
    return OSError(error, text, name) if name else OSError(error, text)


class Daemon:
    """A connection to the daemon. Calls raise OSError with the errno that it answers."""

    def __init__(self, path: Path) -> None:
        """Connects. Raises OSError: there is no daemon."""
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        try:
            self._socket.connect(self._path)
        except OSError as error:
            self._socket.close()
            # Without an errno: the path is too long for a socket.
            number = error.errno or errno.ENAMETOOLONG
            if number in (errno.ENOENT, errno.ECONNREFUSED):
                raise OSError(number, _NO_DAEMON) from None
            text = f"the daemon's socket cannot be used: {os.strerror(number)}"
            raise OSError(number, text, self._path) from None

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, kind: int, name: str = "", *numbers: int) -> tuple[str, list[int]]:
        """Sends a message. Returns the name and the numbers of the answer.

        Raises SettingError: the daemon refuses a setting.
        """
        values = [*numbers, *[0] * (NUMBERS - len(numbers))]
        encoded = name.encode()
        if len(encoded) >= NAME_BYTES:
            raise SettingError(f"{name}: {NAME_RULE}")
        try:
            self._socket.sendall(LAYOUT.pack(VERSION, kind, 0, 0, encoded, *values))
            answer = self._socket.recv(LAYOUT.size)
        except TimeoutError:
            text = "the daemon does not answer: if it stays so, end it with kill"
            raise OSError(errno.ETIMEDOUT, text, self._path) from None
        except ConnectionError:
            answer = b""
        if len(answer) != LAYOUT.size:
            text = f"the daemon has ended, or refuses more connections: see {self._path}.log"
            raise OSError(errno.ECONNRESET, text)
        _, _, error, _, said, *values = LAYOUT.unpack(answer)
        if error:
            raise _refusal(kind, error, name, values, self._path)
        return said.partition(b"\0")[0].decode(errors="replace"), values

    def vgpus(self) -> list[Vgpu]:
        """Returns the virtual GPUs, in the order in which they were added."""
        found: list[Vgpu] = []
        # Not by index: one that is removed meanwhile would hide another one.
        while answer := self._ask_if(LIST, 0, *[one.number for one in found[-1:]]):
            name, n = answer
            found.append(
                Vgpu(
                    name=name,
                    limit=n[0],
                    used=n[1],
                    granted=n[2],
                    clients=n[3],
                    refusals=n[4],
                    owner=n[5],
                    reserve=n[6],
                    priority=n[7] - (n[7] >> 63 << 64),
                    when_full=WHEN_FULL[n[8]],
                    end_after_s=n[9],
                    number=n[10],
                    shared=n[11],
                    overhead=n[12],
                )
            )
        return found

    def clients(self) -> list[Client]:
        """Returns the programs, the oldest first."""
        found: list[Client] = []
        last = 0
        while answer := self._ask_if(COUNTS, last):
            last, _, gpu, names, *counts = answer[1]
            if (facts := self._ask_if(CLIENTS, 0, last)) is None:
                continue  # it has ended meanwhile
            if (overhead := self._ask_if(OVERHEAD_OF, last)) is None:
                continue
            name, n = facts
            found.append(
                Client(
                    id=last,
                    vgpu=name,
                    process=n[0],
                    user=n[1],
                    used=n[2],
                    granted=n[3],
                    phase=PHASES[n[5]],
                    phase_ns=n[6],
                    is_paused=bool(n[7] & _PAUSED),
                    is_waiting=bool(n[7] & _WAITS),
                    is_unfit=bool(n[7] & _UNFIT),
                    is_held=bool(n[7] & _HELD),
                    stays=n[8],
                    swappable=n[9],
                    resident=n[10],
                    overhead=overhead[1][0],
                    overhead_source=OVERHEAD_SOURCES[overhead[1][1]],
                    gpu=gpu,
                    counts=dict(zip(COUNTERS, counts, strict=True)),
                    names=names,
                )
            )
        return found

    def observe(self, begin: bool) -> int:
        """Asks the programs for their counts, if ``begin``.

        Returns how many have not answered since they were asked last.
        """
        return self.ask(OBSERVE, "", int(begin))[1][0]

    def totals(self, vgpu: str) -> dict[str, int] | None:
        """Returns the counts of a virtual GPU's programs, also of those that have ended.

        By the names of COUNTERS. None: there is no such virtual GPU.
        """
        answer = self._ask_if(TOTALS, name=vgpu)
        return None if answer is None else dict(zip(COUNTERS, answer[1], strict=False))

    def unknown_functions(self, client: Client) -> list[str]:
        """Returns the names of driver functions that a program asked for and gdev does not know."""
        found: list[str] = []
        while answer := self._ask_if(UNKNOWN_NAME, client.id, len(found)):
            text = struct.pack(f"={NUMBERS}Q", *answer[1])
            found.append(text.partition(b"\0")[0].decode("ascii", "replace"))
        return found

    def pause(self, process: int, *, is_paused: bool) -> None:
        """Takes a process off its GPU until it may go on, or lets it. Raises OSError."""
        try:
            self.ask(PAUSE, "", process, int(is_paused))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(process)) from None

    def settings(
        self,
        memory: int | None = None,
        spare: int | None = None,
        host_memory: int | None = None,
        swap_files: int | None = None,
    ) -> tuple[int, int, int, int]:
        """Changes what programs may have of the GPUs and of the host. None: as it is.

        Returns what holds now; everybody may ask for that.
        """
        wanted = (memory, spare, host_memory, swap_files)
        _, numbers = self.ask(SETTINGS, "", *[UNCHANGED if one is None else one for one in wanted])
        return numbers[0], numbers[1], numbers[2], numbers[3]

    def known_gpu(self) -> int:
        """Returns the memory of the largest GPU that was used here; NO_LIMIT: none was yet."""
        _, numbers = self.ask(SETTINGS, "", *[UNCHANGED] * 4)
        return numbers[4]

    def gpus(self) -> list[GpuUse]:
        """Returns the GPUs on which programs take turns."""
        return [GpuUse(*numbers[:6]) for _, numbers in self._all(GPUS)]

    def segments(self) -> list[Segment]:
        """Returns the segments that the user may read, the oldest first; all to the daemon's."""
        found = []
        for _, (number, *_) in self._all(KEY_LIST):
            try:
                name, (key, size, owner, _, mode, *_) = self.ask(KEY_STATUS, "", number)
            except OSError as error:
                if error.errno != errno.EIDRM:  # it is gone meanwhile
                    raise
                continue
            found.append(
                Segment(
                    id=number,
                    key=key - (key >> 63 << 64),
                    bytes=size,
                    owner=owner & 0xFFFFFFFF,
                    mode=mode & 0o777,
                    attachments=mode >> 32,
                    is_removed=bool(mode & _REMOVED),
                    vgpu=name,
                )
            )
        return found

    def _ask_if(self, kind: int, *numbers: int, name: str = "") -> tuple[str, list[int]] | None:
        """Returns an answer, or None if what was asked for is not there."""
        try:
            return self.ask(kind, name, *numbers)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return None

    def _all(self, kind: int) -> list[tuple[str, list[int]]]:
        found: list[tuple[str, list[int]]] = []
        while answer := self._ask_if(kind, len(found)):
            found.append(answer)
        return found


def connect(start: bool, wait: bool = False) -> Daemon:
    """Connects to the daemon; starts it if there is none and ``start``.

    Waits for a daemon that starts, at most 5 s; also for one that others start, if ``wait``.
    A daemon that is started gets the virtual GPUs and settings of the file ``GDEV_CONFIG``. Raises
    OSError; ValueError: that file is wrong, and no daemon is started.
    """
    path = _files.socket_path()
    try:
        return Daemon(path)
    except OSError as error:
        if not (start or wait) or error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
            raise
    if not start:
        return _await(path, None)
    if not _files.daemon().exists():
        raise OSError(
            errno.ENOENT,
            "the daemon is missing: was gdev built without CUDA?",
            str(_files.daemon()),
        )
    from gdev import _config  # which imports this module

    config = _config.of_environment()
    # Not through a link that somebody may have put there.
    log_file = os.open(f"{path}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(log_file, "a") as log:
        process = subprocess.Popen(
            [_files.daemon(), path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    made = _await(path, process)
    if config is not None and process.poll() is None:  # else another command has started one
        for line in _config.apply(made, config):
            print(f"gdev: {config.path}: {line}", file=sys.stderr)
    return made


def connect_if_running() -> Daemon | None:
    """Connects to the daemon, or returns None if none runs. Raises OSError."""
    try:
        return connect(start=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            return None
        raise


def _await(path: Path, process: subprocess.Popen[bytes] | None) -> Daemon:
    """Waits for a daemon that starts; ``process``: which this command has started."""
    end = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            return Daemon(path)
        except OSError:
            # 3: another command has started one at the same time.
            has_ended = process is not None and process.poll() not in (None, 3)
            if has_ended or time.monotonic() > end:
                raise OSError(
                    errno.ECONNREFUSED, f"the daemon does not start; see {path}.log"
                ) from None
        time.sleep(0.01)
