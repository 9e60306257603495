"""What strangers can do to memory shared by keys: what their rights say, and no more."""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .gdev_daemon import Daemon, seed_of_test
from .segments import (
    BLOCK,
    CREAT,
    EXCL,
    MAKE,
    MIB,
    descriptors,
    error,
    program,
    wait_for_descriptors,
    wait_until_free,
)
from .simulated_gpu import TIMEOUT_S
from .test_limits import used, wait_until_used
from .test_protocol import HELLO, LAYOUT, LIST, NUMBERS, VERSION, WANT, ask, connect, packed, works

GET, GIVE, ATTACH, DETACH, STATUS, SET, REMOVE, KEYS = range(32, 40)


def join(daemon: Daemon) -> socket.socket:
    made = connect(daemon)
    assert ask(made, HELLO, b"a")[0] == 0
    return made


def give(to: socket.socket, files: list[int], *numbers: int) -> tuple[int, list[int]]:
    socket.send_fds(to, [packed(GIVE, b"", *numbers)], files)
    answer = LAYOUT.unpack(to.recv(LAYOUT.size))
    return answer[2], list(answer[5:])


def test_nobody_makes_a_segment_of_more_than_is_in_use(shared: Daemon) -> None:
    read, write = os.pipe()
    with join(shared) as one:
        assert give(one, [read], 7, BLOCK, MAKE, BLOCK)[0] == errno.ENOMEM
        assert ask(one, WANT, b"", BLOCK)[0] == 0
        assert give(one, [read], 7, BLOCK, MAKE, BLOCK + 4096)[0] == errno.ENOMEM
        assert give(one, [read], 7, BLOCK, MAKE, BLOCK + 1)[0] == errno.EINVAL
        assert give(one, [read], 7, BLOCK + 1, MAKE, BLOCK)[0] == errno.EINVAL
        assert give(one, [read], 7, 0, MAKE, BLOCK)[0] == errno.EINVAL
        assert give(one, [read], 7, BLOCK, 1 << 40, BLOCK)[0] == errno.EINVAL
        assert give(one, [], 7, BLOCK, MAKE, BLOCK)[0] == errno.ENOSPC
        assert used(shared) == "2 MiB"
        assert give(one, [read], 7, BLOCK, MAKE, BLOCK)[0] == 0
        assert give(one, [read], 8, BLOCK, MAKE, BLOCK)[0] == errno.ENOMEM
    # What was given is a pipe: a program that attaches it gets an error, and no more happens.
    with program(shared) as other:
        (number,) = other.does("get", 7, 0, 0)
        assert other.says("at", number, 0) == error(errno.EIO)
        assert other.does("stat", number)[2] == 0
        other.does("rm", number)
    os.close(read)
    os.close(write)
    wait_until_used(shared, "0 B")


def test_descriptors_from_strangers_do_not_stay(shared: Daemon) -> None:
    chance = random.Random(seed_of_test())
    pipe = os.pipe()
    before = descriptors(shared)
    kinds = [*range(30, 42), HELLO, WANT, LIST]
    for _ in range(200):
        with connect(shared) as one:
            if chance.random() < 0.5:
                ask(one, HELLO, b"a")
            for _ in range(chance.randrange(1, 5)):
                numbers = [
                    chance.choice([0, 1, 7, 4096, BLOCK, MAKE, 1 << 63, (1 << 64) - 1])
                ] * NUMBERS
                data = LAYOUT.pack(
                    chance.choice([VERSION] * 3 + [1]), chance.choice(kinds), 0, 0, b"a", *numbers
                )
                data = chance.choice([data, data, data, data[:50], data + b"x"])
                try:
                    socket.send_fds(
                        one, [data], [chance.choice(pipe)] * chance.choice([0, 1, 2, 100])
                    )
                    one.settimeout(0.001)
                    one.recv(LAYOUT.size)
                except OSError:
                    pass  # closed, or no answer: both are right
    works(shared)
    with connect(shared) as one:
        assert ask(one, KEYS, b"", 0)[0] == errno.ENOENT
    for file in pipe:
        os.close(file)
    wait_for_descriptors(shared, before)


def test_the_number_of_segments_is_bounded(shared: Daemon) -> None:
    read, write = os.pipe()
    before = descriptors(shared)
    with join(shared) as one:
        assert ask(one, WANT, b"", 8 * MIB)[0] == 0
        for key in range(1, 257):
            assert give(one, [read], key, 1, MAKE, 4096)[0] == 0
        assert give(one, [read], 257, 1, MAKE, 4096)[0] == errno.ENOSPC
        assert used(shared) == "8 MiB"
        ids = [ask(one, KEYS, b"", index)[1][0] for index in range(256)]
        for number in ids:
            assert ask(one, REMOVE, b"", number)[0] == 0
        assert ask(one, KEYS, b"", 0)[0] == errno.ENOENT
    os.close(read)
    os.close(write)
    wait_until_used(shared, "0 B")
    wait_for_descriptors(shared, before)


def test_a_creator_that_dies_half_way_leaves_nothing(shared: Daemon) -> None:
    """It has asked, has memory, and has not given it to the daemon."""
    with join(shared) as dying, program(shared) as other:
        assert ask(dying, GET, b"", 7, BLOCK, MAKE)[0] == errno.ENOENT
        assert ask(dying, WANT, b"", 16 * MIB)[0] == 0
        assert other.says("get", 7, BLOCK, 0) == error(errno.ENOENT)
        assert other.says("get", 7, BLOCK, MAKE) == error(errno.ENOMEM)
        dying.close()
        wait_until_used(shared, "0 B")
        other.does("get", 7, BLOCK, MAKE)


def test_of_two_who_make_the_same_key_the_first_wins(shared: Daemon) -> None:
    read, write = os.pipe()
    before = descriptors(shared)
    with join(shared) as one, join(shared) as other:
        for client in (one, other):
            assert ask(client, GET, b"", 7, BLOCK, MAKE)[0] == errno.ENOENT
            assert ask(client, WANT, b"", BLOCK)[0] == 0
        refused, (number, is_kept, *_) = give(one, [read], 7, BLOCK, MAKE, BLOCK)
        assert (refused, is_kept) == (0, 1)
        assert give(other, [read], 7, BLOCK, MAKE, BLOCK)[1][:2] == [number, 0]
        assert give(other, [read], 7, BLOCK, MAKE | EXCL, BLOCK)[0] == errno.EEXIST
        assert used(shared) == "4 MiB"  # the other has its memory still
        ask(one, REMOVE, b"", number)
    os.close(read)
    os.close(write)
    wait_for_descriptors(shared, before)


def test_a_descriptor_that_does_not_close_does_not_stop_the_daemon(shared: Daemon) -> None:
    """A socket that lingers: its data cannot leave, and close() waits for that."""
    with socket.create_server(("127.0.0.1", 0)) as listener, join(shared) as one:
        stuck = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\x3c\0\0\0")  # 60 s
        stuck.setblocking(False)
        try:
            while True:
                stuck.send(bytes(65536))
        except BlockingIOError:
            pass
        assert ask(one, WANT, b"", BLOCK)[0] == 0
        number = give(one, [stuck.fileno()], 7, BLOCK, MAKE, BLOCK)[1][0]
        os.close(os.dup(stuck.fileno()))
        stuck.setblocking(True)
        os.close(stuck.detach())  # the daemon's is the last one
        begin = time.monotonic()
        assert ask(one, REMOVE, b"", number)[0] == 0
        works(shared)
        with program(shared) as other:  # and its memory is freed
            (number,) = other.does("get", 8, BLOCK, MAKE)
            other.does("rm", number)
        wait_until_free(shared)
        assert time.monotonic() - begin < 10
        accepted.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_has_the_rights_of_the_mode(shared: Daemon) -> None:
    shared.must("vgpu", "add", "all", "--memory", "8MiB", "--users", "everybody")
    for folder in (shared.socket.parent, *shared.socket.parent.parents):
        if folder == Path("/tmp"):
            break
        folder.chmod(folder.stat().st_mode | 0o011)
    with program(shared) as one:
        modes = {1: 0o600, 2: 0o604, 3: 0o606, 4: 0o660}
        ids = {key: one.does("get", key, BLOCK, CREAT | mode)[0] for key, mode in modes.items()}
        one.does("set", ids[4], 65534, 65534, 0o400)
        code = f"""
import os, socket, struct
os.setgroups([]); os.setgid(65534); os.setuid(65534)
layout = struct.Struct("=IIiI32s{NUMBERS}Q")
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.connect({str(shared.socket)!r})
def ask(kind, *numbers, name=b""):
    numbers += (0,) * ({NUMBERS} - len(numbers))
    one.sendall(layout.pack({VERSION}, kind, 0, 0, name, *numbers))
    return layout.unpack(one.recv(layout.size))[2]
ask({HELLO}, name=b"all")
for key, number in {list(ids.items())!r}:
    print(ask({GET}, key, 0, 0o4), ask({GET}, key, 0, 0o2), ask({ATTACH}, number, 0),
          ask({ATTACH}, number, 1), ask({STATUS}, number), ask({SET}, number, 0, 0, 0o777),
          ask({KEYS}, 3), ask({REMOVE}, number))
"""
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        # EACCES, EPERM. It sees three. The last one is its own, which it gives away.
        assert [[int(word) for word in line.split()] for line in done.stdout.splitlines()] == [
            [13, 13, 13, 13, 13, 1, 2, 1],
            [0, 13, 0, 13, 0, 1, 2, 1],
            [0, 0, 0, 0, 0, 1, 2, 1],
            [0, 13, 0, 13, 0, 0, 2, 1],
        ]
        assert one.does("stat", ids[1])[4:6] == [os.getgid(), 0o600]
