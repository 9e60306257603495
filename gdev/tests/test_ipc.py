"""Memory that can be swapped is shared by the driver's IPC, as other memory is."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .gdev_daemon import Daemon, Program, seed_of_test
from .ipc_messages import ANSWER, HANDLE, REQUEST, changed, connect, request
from .simulated_gpu import BUILD, TIMEOUT_S, Gpu

MIB = 1 << 20
INVALID_VALUE, INVALID_CONTEXT, MAP_FAILED, INVALID_HANDLE = 1, 201, 205, 400
CHUNK = 64 * MIB
WAIT_S = 2  # answer_timeout in client.hpp


@pytest.fixture
def gpu(gpu_files: Path) -> Gpu:
    """A simulated GPU of 512 MiB."""
    return Gpu(gpu_files / "gpu", 512 * MIB)


@pytest.fixture
def ipc(daemon: Daemon) -> Iterator[Daemon]:
    """A daemon with the virtual GPUs ``a`` and ``b``."""
    for name in ("a", "b"):
        daemon.must("vgpu", "add", name, "--memory", "512MiB")
    yield daemon


def started(daemon: Daemon, vgpu: str = "a") -> Program:
    program = daemon.program(vgpu)
    program.does("init")
    return program


def write(program: Program, key: int, value: int, size: int) -> None:
    """Fills memory, and waits until it is done: another process is about to look."""
    program.does("fill", key, value, size)
    program.does("wait")


def filled(program: Program, mebibytes: int, value: int) -> int:
    """Returns the key of an allocation that is filled."""
    (key,) = program.does("alloc", mebibytes * MIB)
    write(program, key, value, mebibytes * MIB)
    return int(key)


def exported(program: Program, key: int) -> str:
    answer = program.says("export", key)
    assert answer.startswith("ok "), answer
    return answer.split()[1]


def state(daemon: Daemon) -> dict[int, list[str]]:
    """The rows of gdev ps, by process."""
    rows = daemon.must("ps").splitlines()[1:]
    return {int(row.split()[0]): row.split() for row in rows}


# --- Programs ---


@pytest.mark.parametrize("mebibytes", [3, 64, 130])
def test_two_programs_see_what_each_other_writes(ipc: Daemon, mebibytes: int) -> None:
    size = mebibytes * MIB
    with started(ipc) as one, started(ipc, "b") as other:
        key = filled(one, mebibytes, 1)
        (opened,) = other.does("open", exported(one, key))
        assert other.does("check", opened, 1, size) == [1]
        write(other, opened, 2, size)
        assert one.does("check", key, 2, size) == [1]
        write(one, key, 3, size)
        assert other.does("sum", opened, 3, size) == [1]
        other.does("close", opened)
        assert one.does("check", key, 3, size) == [1]


def test_every_chunk_has_its_place(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc, "b") as other:
        key = filled(one, 130, 0)
        for i in range(13):
            (part,) = one.does("part", key, i * 10 * MIB)
            write(one, part, i, 10 * MIB)
        (opened,) = other.does("open", exported(one, key))
        for i in range(13):
            (part,) = other.does("part", opened, i * 10 * MIB)
            assert other.does("check", part, i, 10 * MIB) == [1]


def test_many_chunks_come_in_several_messages(tmp_path: Path) -> None:
    """70 chunks: one message has at most 64."""
    daemon = Daemon(Gpu(tmp_path / "large", 4600 * MIB), tmp_path)
    daemon.start()
    try:
        daemon.must("vgpu", "add", "a", "--memory", "4600MiB")
        with started(daemon) as one, started(daemon) as other:
            (key,) = one.does("alloc", 70 * CHUNK)
            (last,) = one.does("part", key, 70 * CHUNK - 4 * MIB)
            write(one, last, 9, 4 * MIB)
            (opened,) = other.does("open", exported(one, key))
            (part,) = other.does("part", opened, 70 * CHUNK - 4 * MIB)
            assert other.does("check", part, 9, 4 * MIB) == [1]
    finally:
        daemon.kill()


def test_a_handle_of_an_inner_address_is_that_of_the_allocation(ipc: Daemon) -> None:
    """As in CUDA: what is opened begins with the allocation, and the offset is the program's."""
    with started(ipc) as one, started(ipc) as other:
        key = filled(one, 6, 1)
        (part,) = one.does("part", key, 4 * MIB)
        write(one, part, 2, 2 * MIB)
        assert exported(one, part) == exported(one, key)
        (opened,) = other.does("open", exported(one, part))
        assert other.does("check", opened, 1, 4 * MIB) == [1]
        (inner,) = other.does("part", opened, 4 * MIB)
        assert other.does("check", inner, 2, 2 * MIB) == [1]
        (base,) = other.does("address", opened)
        assert other.does("range", inner) == [base, 6 * MIB]
        assert other.does("legacy", inner) == [0, 6 * MIB]
        assert one.does("legacy", part) == [1, 6 * MIB]


def test_what_is_opened_twice_is_closed_twice(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc) as other:
        handle = exported(one, filled(one, 3, 1))
        (first,) = other.does("open", handle)
        (second,) = other.does("open", handle)
        assert other.does("address", first) == other.does("address", second)
        other.does("close", first)
        assert other.does("check", second, 1, 3 * MIB) == [1]
        other.does("close", second)
        assert other.says("close", second) == f"error {INVALID_VALUE}"
        (third,) = other.does("open", handle)
        assert other.does("check", third, 1, 3 * MIB) == [1]


def test_the_exporter_cannot_open_its_own(ipc: Daemon) -> None:
    with started(ipc) as one:
        assert one.says("open", exported(one, filled(one, 3, 1))) == f"error {INVALID_CONTEXT}"


def test_what_is_opened_cannot_be_exported(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc) as other:
        (opened,) = other.does("open", exported(one, filled(one, 3, 1)))
        assert other.says("export", opened) == f"error {INVALID_VALUE}"


def test_both_export_to_each_other(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc, "b") as other:
        keys = [filled(one, 3, 1), filled(other, 70, 2)]
        (of_other,) = one.does("open", exported(other, keys[1]))
        (of_one,) = other.does("open", exported(one, keys[0]))
        assert one.does("check", of_other, 2, 70 * MIB) == [1]
        assert other.does("check", of_one, 1, 3 * MIB) == [1]


def test_small_allocations_are_the_drivers(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc) as other:
        (key,) = one.does("alloc", 4096)
        write(one, key, 5, 4096)
        handle = exported(one, key)
        assert b"gdevIPC1" not in bytes.fromhex(handle)
        (opened,) = other.does("open", handle)
        assert other.does("check", opened, 5, 4096) == [1]
        other.does("close", opened)
        assert other.says("open", "00" * 64) == f"error {INVALID_HANDLE}"


def test_only_the_exporter_is_charged(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc, "b") as other:
        before = other.does("info")
        other.does("open", exported(one, filled(one, 130, 1)))
        # The bytes are wired: so much less is left for what others may have on the GPU.
        assert other.does("info") == [before[0] - 132 * MIB + 2 * MIB, before[1]]
        assert "130" in state(ipc)[one.process.pid]
        assert "130" not in state(ipc)[other.process.pid]


def test_a_child_exports_and_opens_by_itself(ipc: Daemon) -> None:
    """Without work: the simulated GPU's streams are not in a child."""
    with started(ipc) as one, started(ipc) as other:
        of_parent = exported(one, filled(one, 3, 1))
        one.does("fork")
        one.does("init")
        one.does("open", of_parent)
        of_child = exported(one, one.does("alloc", 3 * MIB)[0])
        assert of_child[:16] == of_parent[:16] and of_child[16:64] != of_parent[16:64]
        (opened,) = other.does("open", of_child)
        assert other.does("check", opened, 0, 3 * MIB) == [1]
        other.does("open", of_parent)  # the parent serves still
        one.end()


# --- Ends ---


def test_bytes_outlive_their_exporter(ipc: Daemon) -> None:
    with started(ipc) as other:
        with started(ipc) as one:
            (opened,) = other.does("open", exported(one, filled(one, 130, 7)))
            one.process.kill()
            one.process.wait(TIMEOUT_S)
        assert other.does("check", opened, 7, 130 * MIB) == [1]
        other.does("close", opened)


def test_bytes_outlive_their_allocation(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc) as other:
        key = filled(one, 3, 7)
        handle = exported(one, key)
        (opened,) = other.does("open", handle)
        one.does("free", key)
        assert other.does("check", opened, 7, 3 * MIB) == [1]
        again = filled(one, 3, 8)
        assert exported(one, again) != handle
        other.does("close", opened)
        assert other.says("open", handle) == f"error {INVALID_HANDLE}"


def test_memory_is_free_when_all_have_closed_it(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc, "b") as other:
        before = one.does("info")
        key = filled(one, 130, 7)
        (opened,) = other.does("open", exported(one, key))
        one.does("free", key)
        other.does("close", opened)
        (rest,) = other.does("alloc", 508 * MIB)
        other.does("free", rest)
        assert one.does("info") == before


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_an_exporter_that_does_not_answer_fails_the_open(ipc: Daemon, ends: str) -> None:
    with started(ipc) as one, started(ipc) as other:
        handle = exported(one, filled(one, 3, 1))
        if ends == "kill":
            one.process.kill()
            one.process.wait(TIMEOUT_S)
        else:
            one.stop()
        begin = time.monotonic()
        assert other.says("open", handle) == f"error {MAP_FAILED}"
        assert time.monotonic() - begin < WAIT_S + 3
        if ends == "stop":
            one.process.send_signal(signal.SIGCONT)
            (opened,) = other.does("open", handle)
            assert other.does("check", opened, 1, 3 * MIB) == [1]


def test_the_end_of_a_context_closes_what_was_opened_in_it(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc) as other:
        key = filled(one, 3, 1)
        (outer,) = other.does("open", exported(one, key))
        other.does("context")
        (opened,) = other.does("open", exported(one, key))
        assert other.does("address", opened) != other.does("address", outer)
        other.does("destroy")
        assert other.says("close", opened) == f"error {INVALID_VALUE}"
        assert other.does("check", outer, 1, 3 * MIB) == [1]
        other.does("close", outer)
        assert one.does("check", key, 1, 3 * MIB) == [1]


# --- Turns ---


def paused(daemon: Daemon, program: Program) -> list[str]:
    """Moves a program off the GPU. Returns its row."""
    daemon.must("pause", str(program.process.pid))
    end = time.monotonic() + TIMEOUT_S
    while "off," not in (row := state(daemon)[program.process.pid]):
        assert time.monotonic() < end
        time.sleep(0.02)
    return row


def test_shared_memory_stays_while_the_rest_is_moved_off(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc, "b") as other:
        key, rest = filled(one, 130, 1), filled(one, 20, 2)
        handle = exported(one, key)
        assert paused(ipc, one)[-2:] == ["20", "MiB"]  # is off
        # It serves, and its bytes are there.
        (opened,) = other.does("open", handle)
        assert other.does("check", opened, 1, 130 * MIB) == [1]
        write(other, opened, 3, 130 * MIB)
        ipc.must("resume", str(one.process.pid))
        assert one.does("check", key, 3, 130 * MIB) == [1]
        assert one.does("check", rest, 2, 20 * MIB) == [1]
        write(one, key, 4, 130 * MIB)
        assert other.does("check", opened, 4, 130 * MIB) == [1]
        one.does("free", key)
        assert paused(ipc, one)[-2:] == ["20", "MiB"]


@pytest.mark.parametrize("how", ["sync", "dmabuf"])
def test_memory_that_devices_use_stays(ipc: Daemon, how: str) -> None:
    with started(ipc) as one:
        key, rest = filled(one, 30, 1), filled(one, 20, 2)
        one.does(how, key)
        assert paused(ipc, one)[-2:] == ["20", "MiB"]
        ipc.must("resume", str(one.process.pid))
        assert one.does("check", key, 1, 30 * MIB) == [1]
        assert one.does("check", rest, 2, 20 * MIB) == [1]


def test_memory_that_has_been_off_is_shared(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc, "b") as other:
        key = filled(one, 130, 1)
        paused(ipc, one)
        ipc.must("resume", str(one.process.pid))
        (opened,) = other.does("open", exported(one, key))
        assert other.does("check", opened, 1, 130 * MIB) == [1]


# --- Strangers ---


def test_a_wrong_token_is_refused(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc) as other:
        handle = exported(one, filled(one, 3, 1))
        assert other.says("open", changed(handle, 2, 1)) == f"error {INVALID_HANDLE}"
        assert other.says("open", changed(handle, 4, 77)) == f"error {INVALID_HANDLE}"
        assert other.says("open", changed(handle, 1, 1)) == f"error {MAP_FAILED}"
        assert other.says("open", changed(handle, 5, 99 * MIB)) == f"error {MAP_FAILED}"
        other.does("open", handle)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_refused(ipc: Daemon) -> None:
    with started(ipc) as one:
        handle = exported(one, filled(one, 3, 1))
        code = f"""
import os, socket
os.setgroups([]); os.setgid(65534); os.setuid(65534)
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.connect("\\0gdev-ipc-{HANDLE.unpack(bytes.fromhex(handle))[1]:016x}")
try:
    one.send(bytes.fromhex({request(handle).hex()!r}))
    print(one.recv({ANSWER.size}))
except OSError as error:
    print(type(error).__name__)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.stdout.strip() in ("b''", "ConnectionResetError", "BrokenPipeError"), done
        with connect(handle) as same:
            same.send(request(handle))
            answer = ANSWER.unpack(same.recv(ANSWER.size))
            assert answer[1:4] == (0, 1, 1) and answer[4] == 4 * MIB


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_cannot_pose_as_the_exporter(ipc: Daemon, tmp_path: Path) -> None:
    """The importer is not root: it must not take descriptors from a stranger's socket."""
    for path in (tmp_path, *tmp_path.parents):
        if path == Path("/tmp"):
            break
        path.chmod(path.stat().st_mode | 0o011)
    ipc.must("vgpu", "add", "all", "--memory", "64MiB", "--users", "everybody")
    name = random.getrandbits(64)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as pose:
        pose.bind(f"\0gdev-ipc-{name:016x}")
        pose.listen()
        handle = HANDLE.pack(0x3143504976656467, name, 1, 2, 1, 3 * MIB, 1, 0).hex()
        memory = ipc.gpu.memory
        with started(ipc) as own:
            filled(own, 3, 1)
            memory.chmod(0o666)
            memory.parent.chmod(0o711)
        as_nobody = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        environment = ipc.environment() | {
            "GDEV_VGPU": "all",
            "PROGRAM": str(BUILD / "tests" / "memory"),
            "PRELOAD": str(ipc.gpu.interposer),
        }
        execute = (
            "os.environ['LD_PRELOAD'] = os.environ['PRELOAD']; "
            "os.execv(os.environ['PROGRAM'], ['memory'])"
        )
        program = Program([sys.executable, "-c", as_nobody + execute], environment)
        with program:
            if program.says("init") != "ok":
                pytest.skip("another user cannot run the programs of this build")
            assert program.says("open", handle) == f"error {MAP_FAILED}"
            pose.setblocking(False)
            accepted, _ = pose.accept()
            accepted.settimeout(TIMEOUT_S)
            assert accepted.recv(4096) == b""  # it has not told the token
            accepted.close()


def test_hostile_peers_do_not_stop_the_exporter(ipc: Daemon) -> None:
    chance = random.Random(seed_of_test())
    with started(ipc) as one, started(ipc) as other:
        key = filled(one, 130, 1)
        handle = exported(one, key)
        kept = []
        for _ in range(200):  # more than the exporter holds, silent
            kept.append(connect(handle))
        for _ in range(200):
            with connect(handle) as peer:
                data = chance.choice(
                    [
                        b"",
                        chance.randbytes(chance.choice([1, 39, 40, 41, 5000])),
                        request(handle)[:-8] + chance.randbytes(8),
                        request(changed(handle, 4, chance.getrandbits(64))),
                    ]
                )
                try:
                    peer.send(data)
                    peer.settimeout(0.001)
                    peer.recv(4096)
                except OSError:
                    pass  # closed, or no answer: both are right
        for peer in kept[:30]:  # they never read
            peer.setblocking(False)
            try:
                for _ in range(1000):
                    peer.send(request(handle))
            except OSError:
                pass
        begin = time.monotonic()
        (opened,) = other.does("open", handle)
        assert time.monotonic() - begin < WAIT_S
        assert other.does("check", opened, 1, 130 * MIB) == [1]
        for peer in kept:
            peer.close()
        descriptors = Path(f"/proc/{one.process.pid}/fd")
        end = time.monotonic() + TIMEOUT_S
        while len(list(descriptors.iterdir())) > 30:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert one.does("check", key, 1, 130 * MIB) == [1]


def test_silent_peers_make_room_for_others(ipc: Daemon) -> None:
    with started(ipc) as one, started(ipc) as other:
        handle = exported(one, filled(one, 3, 1))
        silent = [connect(handle) for _ in range(100)]
        begin = time.monotonic()
        (opened,) = other.does("open", handle)
        assert time.monotonic() - begin < WAIT_S / 2
        assert other.does("check", opened, 1, 3 * MIB) == [1]
        for peer in silent:
            peer.close()


def test_a_server_with_bad_answers_fails_the_open(ipc: Daemon) -> None:
    """A program of the same user may answer anything: the importer gets an error in time."""
    chance = random.Random(seed_of_test())
    name, magic = random.getrandbits(64), 0x3143504976656467
    handle = HANDLE.pack(magic, name, 1, 2, 1, 3 * MIB, 1, 0).hex()
    sizes = [4 * MIB] * 64
    answers = [
        ANSWER.pack(magic, 0, 0, 1, *sizes),  # no descriptor
        ANSWER.pack(magic, 0, 1, 1, *sizes),  # that is not what came
        ANSWER.pack(magic, 0, 1, 1 << 63, *sizes),
        ANSWER.pack(magic, 11, 0, 0, *sizes),  # EAGAIN for ever
        chance.randbytes(ANSWER.size),
        b"x",
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as pose, started(ipc) as other:
        pose.bind(f"\0gdev-ipc-{name:016x}")
        pose.listen()
        pose.settimeout(TIMEOUT_S)
        for answer in answers:
            for files in ([], [0], [0] * 70):
                assert other.process.stdin is not None and other.process.stdout is not None
                begin = time.monotonic()
                print("open", handle, file=other.process.stdin, flush=True)
                accepted, _ = pose.accept()
                with accepted:
                    accepted.settimeout(TIMEOUT_S)
                    while accepted.recv(REQUEST.size):
                        try:
                            socket.send_fds(accepted, [answer], files)
                        except OSError:
                            break
                said = other.process.stdout.readline().strip()
                assert said == f"error {MAP_FAILED}", (answer[:24], files)
                assert time.monotonic() - begin < WAIT_S + 3
        assert len(list(Path(f"/proc/{other.process.pid}/fd").iterdir())) < 30
