"""What strangers and broken clients can do to the daemon: nothing but to themselves."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .gdev_daemon import OUT_OF_MEMORY, Daemon, seed_of_test
from .simulated_gpu import CHECKED, TIMEOUT_S

NUMBERS, VERSION = 16, 7
LAYOUT = struct.Struct(f"=IIiI32s{NUMBERS}Q")
HELLO, WANT, MEMORY, GPU, TURN, HOST, UNKNOWN = range(1, 8)
ADD, SET, REMOVE, LIST, CLIENTS, STOP, SETTINGS, PAUSE, GPUS = range(16, 25)
OBSERVE, COUNTS, TOTALS, UNKNOWN_NAME = range(25, 29)
MIB = 1 << 20


def connect(daemon: Daemon) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(TIMEOUT_S)
    try:
        made.connect(str(daemon.socket))
    except OSError:
        made.close()
        raise
    return made


def packed(kind: int, name: bytes = b"", *numbers: int) -> bytes:
    return LAYOUT.pack(VERSION, kind, 0, 0, name, *numbers, *[0] * (NUMBERS - len(numbers)))


def ask(to: socket.socket, kind: int, name: bytes = b"", *numbers: int) -> tuple[int, list[int]]:
    """Returns the error and the numbers of the answer."""
    to.sendall(packed(kind, name, *numbers))
    answer = LAYOUT.unpack(to.recv(LAYOUT.size))
    return answer[2], list(answer[5:])


def works(daemon: Daemon) -> None:
    """The daemon answers others."""
    with connect(daemon) as other:
        assert ask(other, LIST, b"", 1 << 40)[0] == 2  # ENOENT: past the last


def test_a_connection_that_a_process_leaves_behind_joins_nothing(daemon: Daemon) -> None:
    """Its number may be another process's by then, which a daemon of root could kill."""
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    ends, begin = os.pipe()
    answers, answer = os.pipe()
    owner = os.fork()
    if owner == 0:
        one = connect(daemon)
        if os.fork() == 0:
            os.read(ends, 1)
            os.write(answer, str(ask(one, HELLO, b"a")[0]).encode())
        os._exit(0)
    os.waitpid(owner, 0)
    os.write(begin, b"x")
    assert os.read(answers, 10) == b"3"  # ESRCH
    for file in (ends, begin, answers, answer):
        os.close(file)
    works(daemon)


def test_random_bytes_end_nothing_but_their_connection(daemon: Daemon) -> None:
    chance = random.Random(seed_of_test())
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    kinds = [*range(1, 9), *range(16, 30), 99, 1 << 31]
    kinds.remove(STOP)
    for _ in range(300):
        with connect(daemon) as one:
            for _ in range(chance.randrange(1, 6)):
                if chance.random() < 0.3:
                    data = chance.randbytes(
                        chance.choice([0, 1, LAYOUT.size - 1, LAYOUT.size, 4000])
                    )
                else:
                    name = chance.choice([b"a", b"", b"\xff" * 32, chance.randbytes(32)])
                    values = [0, 1, 2, 5, 4096, 1 << 63, (1 << 64) - 1]
                    data = LAYOUT.pack(
                        VERSION,
                        chance.choice(kinds),
                        0,
                        chance.randrange(1 << 32),
                        name,
                        *chance.choices(values, k=NUMBERS),
                    )
                try:
                    one.sendall(data)
                    one.settimeout(0.001)
                    one.recv(LAYOUT.size)
                except OSError:
                    pass  # closed, or no answer: both are right
    works(daemon)


def test_another_version_is_told_so(daemon: Daemon) -> None:
    with connect(daemon) as one:
        one.sendall(LAYOUT.pack(VERSION + 1, LIST, 0, 0, b"", *[0] * NUMBERS))
        version, _, error, *_ = LAYOUT.unpack(one.recv(LAYOUT.size))
        assert (version, error) == (VERSION, 71)  # EPROTO


def test_a_claim_of_memory_goes_no_further_than_the_limit(daemon: Daemon) -> None:
    """A client that comes back says what it has; it may say anything."""
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    daemon.must("vgpu", "add", "b", "--memory", "8MiB")
    with connect(daemon) as liar, daemon.program("b") as other:
        assert ask(liar, HELLO, b"a", 1 << 42)[0] == 0
        assert json.loads(daemon.must("vgpu", "list", "--json"))[0]["used"] == 8 * MIB
        other.does("init")
        other.does("alloc", 8 * MIB)
    with daemon.program("a") as honest:
        honest.does("init")
        honest.does("alloc", 8 * MIB)


def test_a_page_with_anything_in_it_hurts_its_client_only(daemon: Daemon) -> None:
    """It can take what its virtual GPU may have, as by allocating; others have theirs."""
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    daemon.must("vgpu", "add", "b", "--memory", "8MiB")
    with connect(daemon) as liar, daemon.program("b") as other:
        other.does("init")
        liar.sendall(packed(HELLO, b"a"))
        _, files, _, _ = socket.recv_fds(liar, LAYOUT.size, 2)
        for word in (0, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 0xFFFFFFFF, 0x7FFFFFFF << 32):
            os.pwrite(files[0], struct.pack("=Q", word), 8)
            assert ask(liar, WANT, b"", 4096)[0] in (0, 12)
            daemon.must("vgpu", "set", "a", "--memory", "8MiB")
            other.does("free", other.does("alloc", 8 * MIB)[0])
        with pytest.raises(OSError):
            os.ftruncate(files[0], 0)
        os.close(files[0])
    works(daemon)


def test_what_was_given_to_one_is_not_taken_back_for_another(daemon: Daemon) -> None:
    """Between the answer and what the client does with it, others may ask: NCCL's start did."""
    daemon.must("vgpu", "add", "a", "--memory", "1GiB")
    with connect(daemon) as one, connect(daemon) as other:
        files = []
        for client in (one, other):
            client.sendall(packed(HELLO, b"a"))
            files.append(socket.recv_fds(client, LAYOUT.size, 2)[1][0])
        assert ask(one, WANT, b"", 8 * MIB)[0] == 0
        assert ask(other, WANT, b"", 1000 * MIB)[0] == 0
        for file, mebibytes in zip(files, (8, 1000), strict=True):
            (word,) = struct.unpack("=Q", os.pread(file, 8, 8))
            used, granted = word & 0xFFFFFFFF, word >> 32 & 0x7FFFFFFF
            assert used == mebibytes * MIB // 4096 and granted >= used
            os.close(file)
        assert ask(one, WANT, b"", 17 * MIB)[0] == 12  # ENOMEM: 1,025 MiB


def test_the_daemon_itself_refuses_impossible_settings(daemon: Daemon) -> None:
    """Whatever a command sends: the number says what is wrong, and the next the most possible."""
    keep, tib = (1 << 64) - 2, 1 << 40
    most = (8 * tib) - 4096
    with connect(daemon) as one:
        for kind, numbers, fault, bound in (
            (ADD, (0, 0, keep, keep, keep, keep), 2, most),
            (ADD, (most + 1, 0, keep, keep, keep, keep), 2, most),
            (ADD, (keep, 0, keep, keep, keep, keep), 2, most),
            (ADD, (MIB, 0, most + 1, keep, keep, keep), 3, most),
            (ADD, (MIB, 0, MIB + 1, keep, keep, keep), 4, MIB),
            (ADD, (MIB, 0, keep, 1001, keep, keep), 6, 0),
            (ADD, (MIB, 0, keep, (1 << 64) - 1001, keep, keep), 6, 0),
            (ADD, (MIB, 0, keep, keep, 3, keep), 7, 0),
            (ADD, (MIB, 0, keep, keep, keep, 10**9 + 1), 8, 0),
            (SETTINGS, (0, keep, keep, keep), 2, most),
            (SETTINGS, (most + 1, keep, keep, keep), 2, most),
            (SETTINGS, (MIB, MIB, keep, keep), 9, MIB),
            (SETTINGS, (keep, keep, most + 1, keep), 10, most),
            (SETTINGS, (keep, keep, keep, (1 << 64) - 1), 10, most),
        ):
            error, values = ask(one, kind, b"b" if kind == ADD else b"", *numbers)
            assert (error, *values[:2]) == (22, fault, bound), (kind, numbers)
        assert ask(one, ADD, b"no word", MIB, 0, keep, keep, keep, keep)[1][0] == 1
        assert ask(one, LIST)[0] == 2  # none was added


def test_what_a_client_says_to_hold_of_the_host_is_bounded(daemon: Daemon) -> None:
    """Who comes back with nothing in use holds a segment at most."""
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    daemon.must("gpu", "set", "--host-memory", "128MiB", "--swap-files", "128MiB")
    with connect(daemon) as liar, connect(daemon) as other:
        assert ask(liar, HELLO, b"a", 0, (1 << 64) - 2)[0] == 0
        assert ask(other, HELLO, b"a")[0] == 0
        assert ask(other, HOST, b"", 64 * MIB, 64 * MIB)[0] == 0
        assert ask(other, HOST, b"", 64 * MIB + 4096, 0)[0] == 12  # ENOMEM


def test_counts_may_be_anything_and_never_fall(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    most, page_counts = (1 << 64) - 1, 56
    with connect(daemon) as liar, connect(daemon) as other:
        liar.sendall(packed(HELLO, b"a", 0, 0, 0, 0, 5, *[0] * 5, 7, most))
        _, files, _, _ = socket.recv_fds(liar, LAYOUT.size, 2)
        assert ask(other, COUNTS)[1][4:12] == [5, 0, 0, 0, 0, 0, 7, most]
        for written, read in ((9, 9), (3, 9), (most, most), (0, most)):
            os.pwrite(files[0], struct.pack("=Q", written), page_counts)
            assert ask(other, COUNTS)[1][4] == read
        ask(liar, TURN, b"", 4, most, most)  # refused: it is not leaving
        for name in (TOTALS, TOTALS):
            assert ask(other, name, b"a")[1][:8] == [most, 0, 0, 0, 0, 0, 7, most]
        for file in files:
            os.close(file)
    with connect(daemon) as other:
        end = time.monotonic() + TIMEOUT_S
        while ask(other, COUNTS)[0] == 0:
            assert time.monotonic() < end
        assert ask(other, TOTALS, b"a")[1][:1] == [most]  # of the one that has ended
        daemon.must("vgpu", "rm", "a")
        assert ask(other, TOTALS, b"a")[0] == 2  # ENOENT
        daemon.must("vgpu", "add", "a", "--memory", "8MiB")
        assert ask(other, TOTALS, b"a") == (0, [0] * NUMBERS)


def test_names_of_unknown_functions_are_names(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")

    def tell(index: int, name: bytes) -> int:
        return ask(liar, UNKNOWN, b"", index, *struct.unpack("=15Q", name.ljust(120, b"\0")))[0]

    with connect(daemon) as liar:
        assert tell(0, b"cuEarly") == 2  # ENOENT: it has not joined
        assert ask(liar, HELLO, b"a")[0] == 0
        for wrong in (b"", b"cu\x1b[2J", b"cu name", b"\xff", b"c" * 96, b"c" * 120):
            assert tell(0, wrong) == 22, wrong  # EINVAL
        assert tell(1, b"cuB") == 22
        for index in range(64):
            assert tell(index, b"c" * 95) == 0
        assert tell(64, b"cuOneMore") == 28  # ENOSPC
        (number, _, _, names) = ask(liar, COUNTS)[1][:4]
        assert names == 64
        assert struct.pack("=16Q", *ask(liar, UNKNOWN_NAME, b"", number, 63)[1]) == (
            (b"c" * 95).ljust(128, b"\0")
        )
        for index in (64, 1 << 63):
            assert ask(liar, UNKNOWN_NAME, b"", number, index)[0] == 2
    works(daemon)


def test_programs_are_not_asked_all_the_time(daemon: Daemon) -> None:
    """Everybody may observe; a signal for each question could keep the programs busy."""
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    with daemon.program("a") as program, connect(daemon) as other:
        program.does("init")
        watched = Path(f"/proc/{program.process.pid}/task")
        names = {one: (one / "comm").read_text().strip() for one in watched.iterdir()}
        (service,) = [one for one, name in names.items() if name == "gdev"]

        def wakes() -> int:
            status = (service / "status").read_text()
            (line,) = [one for one in status.splitlines() if one.startswith("voluntary_ctxt")]
            return int(line.split()[1])

        before = wakes()
        time.sleep(0.5)
        assert wakes() - before <= 1  # nobody observes it
        begin = time.monotonic()
        for _ in range(2000):
            ask(other, OBSERVE, b"", 1)
        assert 1 <= wakes() - before <= 110 * (time.monotonic() - begin) + 5


def test_both_sides_change_the_account_at_the_same_time(daemon: Daemon) -> None:
    process = daemon.gpu.run("account_race", str(seed_of_test()), under_gdev=False)
    assert process.returncode == 0, process.stdout


def test_many_who_connect_do_not_starve_others(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "a", "--memory", "8MiB")
    code = (
        "import socket, sys\n"
        "while True:\n"
        "    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:\n"
        "        one.connect_ex(sys.argv[1])\n"
    )
    floods = [subprocess.Popen([sys.executable, "-c", code, str(daemon.socket)]) for _ in range(2)]
    try:
        with daemon.program("a") as program:
            program.does("init")
            for _ in range(20):
                assert program.says("alloc", 9 * MIB) == OUT_OF_MEMORY
                key = program.does("alloc", 8 * MIB)[0]
                program.does("free", key)
    finally:
        for flood in floods:
            flood.kill()
            flood.wait()


def test_a_daemon_without_descriptors_burns_no_time(daemon: Daemon) -> None:
    assert daemon.process is not None
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (20, 20))
    held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(60)]
    for one in held:
        one.setblocking(False)
        one.connect_ex(str(daemon.socket))

    def seconds() -> float:
        fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    before = seconds()
    time.sleep(1)
    assert seconds() - before < 0.3
    for one in held:
        one.close()
    works(daemon)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_may_join_and_list_and_no_more(daemon: Daemon) -> None:
    daemon.must("vgpu", "add", "own", "--memory", "8MiB")
    daemon.must("vgpu", "add", "all", "--memory", "8MiB", "--users", "everybody")
    for folder in (daemon.socket.parent, *daemon.socket.parent.parents):
        if folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
        if folder == Path("/tmp"):
            break
    code = f"""
import os, socket, struct, sys
os.setuid(65534)
layout = struct.Struct("=IIiI32s{NUMBERS}Q")
def ask(kind, name=b"", *numbers):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect({str(daemon.socket)!r})
    numbers += (0,) * ({NUMBERS} - len(numbers))
    one.sendall(layout.pack({VERSION}, kind, 0, 0, name, *numbers))
    return layout.unpack(one.recv(layout.size))[2]
print(ask({ADD}, b"b", 4096), ask({SET}, b"own", 4096), ask({REMOVE}, b"own"), ask({STOP}),
      ask({SETTINGS}, b"", 4096), ask({SETTINGS}, b"", *[{(1 << 64) - 2}] * 4),
      ask({LIST}), ask({CLIENTS}, b"", 5), ask({HELLO}, b"own"), ask({HELLO}, b"all"))
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    #   EPERM                          EACCES
    assert process.stdout.split() == ["1", "1", "1", "1", "1", "0", "0", "2", "13", "0"]


def test_the_socket_takes_no_other_file_away(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("text")
    process = subprocess.run(
        [CHECKED / "programs" / "gdevd", file], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert process.returncode == 1 and file.read_text() == "text"


def test_a_folder_in_which_others_write_is_refused(tmp_path: Path) -> None:
    """Others could put a state there, or a link in its place."""
    tmp_path.chmod(0o777)
    process = subprocess.run(
        [CHECKED / "programs" / "gdevd", tmp_path / "socket"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 1
    assert "others may write in this folder" in process.stderr


def test_a_second_daemon_ends_by_itself(daemon: Daemon) -> None:
    process = subprocess.run(
        [CHECKED / "programs" / "gdevd", daemon.socket],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 3
    works(daemon)
