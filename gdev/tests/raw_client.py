"""A client that sends each message as a test says, where real ones would do more."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Sequence

from .gdev_daemon import Daemon
from .simulated_gpu import TIMEOUT_S
from .test_protocol import HELLO, HOST, LAYOUT, MEMORY, NUMBERS, TURN, VERSION, WANT, ask, connect

UNIT = 4096
HERE, ELSEWHERE, ANY, NOT_ANY_MORE = range(4)  # a memory_place
WAITS, LEFT, STAYS, ENTERED, HELD = 1, 4, 5, 6, 7  # turn_events
OUT, REPORT, HOLD = 1, 4, 32  # bits of an order
# Words of a client_page.
ACCOUNT = 8
ORDER, ROOM, ROUND, SWAPPABLE, RESIDENT, ELSEWHERE_WORD = range(16, 40, 4)


class RawClient:
    """Is on a GPU of 64 MiB, as it says, and in a job of a size, if that is not 0."""

    def __init__(self, daemon: Daemon, vgpu: str, gpu: int, job: int = 0, size: int = 0) -> None:
        self.gpu = gpu
        self.socket = connect(daemon)
        numbers = [0] * NUMBERS
        word = job << 8 | size if job else 0
        self.socket.sendall(LAYOUT.pack(VERSION, HELLO, 0, word, vgpu.encode(), *numbers))
        data, self.files, _, _ = socket.recv_fds(self.socket, LAYOUT.size, 2)
        assert LAYOUT.unpack(data)[2] == 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self.socket.close()
        for file in self.files:
            os.close(file)
        self.files = []

    def read(self, word: int) -> int:
        """Returns a word of the page."""
        (value,) = struct.unpack("=I", os.pread(self.files[0], 4, word))
        return int(value)

    def write(self, word: int, size: int) -> None:
        """Writes an amount of memory to the page."""
        os.pwrite(self.files[0], struct.pack("=I", size // UNIT), word)

    def has(self, size: int, resident: int | None = None, elsewhere: int = 0) -> None:
        """Says how much of its memory can leave the GPU, is there now, and is not on it."""
        self.write(SWAPPABLE, size)
        self.write(RESIDENT, size if resident is None else resident)
        self.write(ELSEWHERE_WORD, elsewhere)

    def wants(self, size: int, place: int = HERE, free: int = 64 << 20) -> int:
        """Asks for memory. Returns the error."""
        return ask(self.socket, WANT, b"", size, self.gpu, 64 << 20, free, place)[0]

    def gets(self, size: int) -> None:
        """Asks for memory that can leave the GPU, and gets it."""
        assert self.wants(size) == 0
        self.has(self.read(SWAPPABLE) * UNIT + size)

    def could_have(self, gpu: int) -> int:
        """Asks how much of a GPU it could have, where it uses none yet."""
        failed, numbers = ask(self.socket, MEMORY, b"", gpu, 64 << 20)
        assert failed == 0
        return numbers[2]

    def holds(self, size: int) -> int:
        """Asks for so much of the host's memory, altogether. Returns the error."""
        return ask(self.socket, HOST, b"", size, 0)[0]

    def frees(self, size: int) -> None:
        """Frees memory that is in the host's memory."""
        (account,) = struct.unpack("=Q", os.pread(self.files[0], 8, ACCOUNT))
        units = size // UNIT
        os.pwrite(self.files[0], struct.pack("=Q", account - units - (units << 32)), ACCOUNT)
        self.has(self.read(SWAPPABLE) * UNIT)

    def waits(self) -> None:
        """Says that it is off the GPU, and has work."""
        assert ask(self.socket, TURN, b"", WAITS, 0, 0)[0] == 0

    def enters(self) -> None:
        """Says that all of its memory is on the GPU again."""
        self.has(self.read(SWAPPABLE) * UNIT)
        assert ask(self.socket, TURN, b"", ENTERED, 0, 0)[0] == 0

    def leaves(self, resident: int = 0, moved: int = 0, nanoseconds: int = 0) -> None:
        """Says that it has left the GPU, but for so much, and how long that took."""
        self.has(self.read(SWAPPABLE) * UNIT, resident)
        assert ask(self.socket, TURN, b"", LEFT, moved, nanoseconds)[0] == 0

    def cannot_leave(self, is_off: bool) -> None:
        """Says that the host has no room for what it should release."""
        assert ask(self.socket, TURN, b"", STAYS, errno.ENOMEM, int(is_off))[0] == 0


def leave_together(clients: Sequence[RawClient]) -> None:
    """Those of a job whose GPUs have finished all say so in a round, and leave."""
    end = time.monotonic() + TIMEOUT_S
    while any(one.read(ORDER) & OUT == 0 for one in clients):
        assert time.monotonic() < end
        for one in clients:
            if one.read(ORDER) & (OUT | HOLD) == HOLD:
                ask(one.socket, TURN, b"", HELD, one.read(ROUND) >> 8)
    for one in clients:
        one.leaves()
