"""Talks to the daemon: the messages of ``gdev/protocol/messages.hpp``."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdev import _files

NUMBERS: Final = 16
LAYOUT: Final = struct.Struct(f"=IIiI32s{NUMBERS}Q")
VERSION: Final = 2
ADD, SET, REMOVE, LIST, CLIENTS, STOP, SETTINGS, PAUSE, GPUS = range(16, 25)
KEY_STATUS, KEY_REMOVE, KEY_LIST = 36, 38, 39
UNCHANGED: Final = 2**64 - 2
PHASES: Final = ("on", "leaving", "off", "entering")
WHEN_FULL: Final = ("swap", "wait", "fail")
ALL_USERS: Final = 2**64 - 1
_REMOVED: Final = 0o1000  # in a segment's mode
NAME_BYTES: Final = 32  # with the zero at its end
ANSWER_TIMEOUT_S: Final = 5.0

# What the daemon's errors mean to a user; of others the system's text is right.
_MEANINGS: Final = {
    errno.ENOENT: "there is no such virtual GPU",
    errno.EEXIST: "there is a virtual GPU of this name already",
    errno.EBUSY: "programs use it, or it holds shared memory (gdev shm)",
    errno.EIDRM: "it has been removed",
    errno.EPERM: "only its daemon's user and root may do this",
    errno.EINVAL: "a name has 1 to 31 letters, digits, '.', '_' or '-'",
    errno.ESRCH: "no such process runs under gdev",
    errno.EPROTO: "the daemon is of another version: gdev stop",
}
_NO_DAEMON: Final = "no daemon runs (gdev run and gdev vgpu add start it)"


def _refusal(error: int, about: str) -> OSError:
    return OSError(error, _MEANINGS.get(error, os.strerror(error)), about)


@dataclass(frozen=True)
class Vgpu:
    """A virtual GPU. All amounts are bytes."""

    name: str
    limit: int
    used: int
    granted: int
    clients: int
    refusals: int
    """How often a client asked for more than the limit."""
    owner: int
    reserve: int
    """As much of the GPU is never taken away from its programs."""
    priority: int
    when_full: str
    end_after_s: int
    """A program that cannot leave the GPU for so long is killed; 0: never."""


@dataclass(frozen=True)
class Client:
    """A program that runs under gdev."""

    vgpu: str
    process: int
    user: int
    used: int
    granted: int
    refusals: int
    phase: str
    """Where it is: on the GPU, leaving it, off it, entering it."""
    phase_ns: int
    is_paused: bool
    stays: int
    """The errno of a turn that it could not end, or 0."""
    swappable: int
    resident: int
    turns: int
    bytes_out: int
    bytes_in: int
    moving_ns: int
    waiting_ns: int


@dataclass(frozen=True)
class GpuUse:
    """A GPU on which programs take turns. All amounts are bytes."""

    number: int
    total: int
    capacity: int
    rooms: int
    """What the programs on it may have."""


@dataclass(frozen=True)
class Segment:
    """Device memory shared by a key."""

    id: int
    key: int
    """0: it has none."""
    bytes: int
    owner: int
    mode: int
    attachments: int
    is_removed: bool
    vgpu: str


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
            is_absent = number in (errno.ENOENT, errno.ECONNREFUSED)
            text = _NO_DAEMON if is_absent else os.strerror(number)
            raise OSError(number, text, self._path) from None

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, kind: int, name: str = "", *numbers: int) -> tuple[str, list[int]]:
        """Sends a message. Returns the name and the numbers of the answer."""
        values = [*numbers, *[0] * (NUMBERS - len(numbers))]
        encoded = name.encode()
        if len(encoded) >= NAME_BYTES:
            raise _refusal(errno.EINVAL, name)
        try:
            self._socket.sendall(LAYOUT.pack(VERSION, kind, 0, 0, encoded, *values))
            answer = self._socket.recv(LAYOUT.size)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "the daemon does not answer", self._path) from None
        if len(answer) != LAYOUT.size:
            raise OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), self._path)
        _, _, error, _, said, *values = LAYOUT.unpack(answer)
        if error:
            raise _refusal(error, name or self._path)
        return said.partition(b"\0")[0].decode(errors="replace"), values

    def vgpus(self) -> list[Vgpu]:
        """Returns the virtual GPUs, in the order in which they were added."""
        return [
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
            )
            for name, n in self._all(LIST)
        ]

    def clients(self) -> list[Client]:
        """Returns the programs, the oldest first."""
        return [
            Client(
                vgpu=name,
                process=n[0],
                user=n[1],
                used=n[2],
                granted=n[3],
                refusals=n[4],
                phase=PHASES[n[5]],
                phase_ns=n[6],
                is_paused=bool(n[7]),
                stays=n[8],
                swappable=n[9],
                resident=n[10],
                turns=n[11],
                bytes_out=n[12],
                bytes_in=n[13],
                moving_ns=n[14],
                waiting_ns=n[15],
            )
            for name, n in self._all(CLIENTS)
        ]

    def gpus(self) -> list[GpuUse]:
        """Returns the GPUs on which programs take turns."""
        return [GpuUse(*numbers[:4]) for _, numbers in self._all(GPUS)]

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

    def _all(self, kind: int) -> list[tuple[str, list[int]]]:
        found: list[tuple[str, list[int]]] = []
        while True:
            try:
                found.append(self.ask(kind, "", len(found)))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                return found


def connect(start: bool) -> Daemon:
    """Connects to the daemon; starts it if there is none and ``start``.

    Waits for a daemon that starts, at most 5 s. Raises OSError.
    """
    path = _files.socket_path()
    try:
        return Daemon(path)
    except OSError as error:
        if not start or error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
            raise
    if not _files.daemon().exists():
        raise OSError(
            errno.ENOENT,
            "the daemon is missing: was gdev built without CUDA?",
            str(_files.daemon()),
        )
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
    end = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            return Daemon(path)
        except OSError:
            # 3: another command has started one at the same time.
            if process.poll() not in (None, 3) or time.monotonic() > end:
                raise OSError(
                    errno.ECONNREFUSED, f"the daemon does not start; see {path}.log"
                ) from None
        time.sleep(0.01)
