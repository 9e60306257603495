"""Programs that are off the GPU keep there what nobody needs, and give it when somebody does."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .gdev_daemon import Daemon, Program
from .jobs import wait_until
from .raw_client import ORDER, OUT, REPORT, ROOM, UNIT, RawClient
from .simulated_gpu import TIMEOUT_S, Gpu
from .test_swap import MIB, state, wait_for
from .test_swap_host import own_mebibytes

AGAIN, NO_MEMORY = errno.EAGAIN, errno.ENOMEM
GPU = 1
PART = 4  # MiB: each allocation moves by itself


def with_parts(
    daemon: Daemon, vgpu: str, mebibytes: int, value: int, env: Mapping[str, str] | None = None
) -> Program:
    """A program that has filled so much memory, in allocations that can move one by one."""
    program = daemon.program(vgpu, env=env)
    program.does("init")
    for key in range(mebibytes // PART):
        assert program.does("alloc", PART * MIB) == [key]
    fill(program, mebibytes, value)
    return program


def fill(program: Program, mebibytes: int, value: int) -> None:
    for key in range(mebibytes // PART):
        program.does("fill", key, value + key, PART * MIB)


def has(program: Program, mebibytes: int, value: int) -> bool:
    """Tells whether its memory is as it was filled. It has a turn for that."""
    return all(
        program.does("check", key, value + key, PART * MIB) == [1]
        for key in range(mebibytes // PART)
    )


def swapped(daemon: Daemon, program: Program) -> str:
    """What of a program is on the host, as gdev ps says it."""
    return " ".join(state(daemon)[program.process.pid][-2:])


def is_about(daemon: Daemon, program: Program, mebibytes: int, more: int = PART) -> bool:
    """Tells whether so much of a program is on the host, or an allocation of the other one more.

    Who grows may ask for the next one before it has used all that it got for the last. The exact
    values are those of clients that say what they do, below.
    """
    found = int(swapped(daemon, program).split()[0])
    return mebibytes <= found <= mebibytes + more


def counts(daemon: Daemon, program: Program) -> dict[str, int]:
    """What gdev top counts of a program."""
    top = json.loads(daemon.must("top", "--once", "-i", "0.1", "--json"))
    (found,) = [one for one in top["programs"] if one["process"] == program.process.pid]
    return dict(found)


def test_only_what_others_need_leaves_the_gpu(two_vgpus: Daemon) -> None:
    """80 MiB on 64: each turn moves 16, and neither program needs the host for more."""
    with with_parts(two_vgpus, "a", 40, 10) as a, with_parts(two_vgpus, "b", 40, 20) as b:
        for value in (20, 30):
            assert has(a, 40, value - 10)
            assert is_about(two_vgpus, b, 16) and swapped(two_vgpus, a) == "0 B"
            fill(a, 40, value)
            assert has(b, 40, 20)
            assert is_about(two_vgpus, a, 16) and swapped(two_vgpus, b) == "0 B"
            assert has(a, 40, value)
            assert has(b, 40, 20)
            fill(a, 40, value)
        for one in (a, b):
            found = counts(two_vgpus, one)
            assert 0 < found["bytes_out"] <= (found["turns"] + 1) * (16 + PART) * MIB


def test_a_program_that_grows_takes_what_others_have_kept(two_vgpus: Daemon) -> None:
    """And nobody enters or leaves for it."""
    with with_parts(two_vgpus, "a", 40, 10) as a, with_parts(two_vgpus, "b", 40, 20) as b:
        assert is_about(two_vgpus, a, 16)
        assert b.does("alloc", 8 * MIB) == [10]
        assert is_about(two_vgpus, a, 24)
        assert b.does("alloc", 16 * MIB) == [11]  # all of the GPU
        assert swapped(two_vgpus, a) == "40 MiB"
        assert counts(two_vgpus, a)["turns"] == counts(two_vgpus, b)["turns"] == 0
        b.does("fill", 10, 1, 8 * MIB)
        b.does("fill", 11, 2, 16 * MIB)
        assert has(a, 40, 10) and has(b, 40, 20)
        assert b.does("check", 10, 1, 8 * MIB) == b.does("check", 11, 2, 16 * MIB) == [1]


def test_three_programs_take_turns(two_vgpus: Daemon) -> None:
    """What is kept is of those who come next; all have their bytes, whatever they write."""
    two_vgpus.must("vgpu", "add", "c", "--memory", "64MiB")
    with (
        with_parts(two_vgpus, "a", 40, 10) as a,
        with_parts(two_vgpus, "b", 32, 20) as b,
        with_parts(two_vgpus, "c", 24, 30) as c,
    ):
        for value in range(50, 300, 50):
            for one, size, own in ((a, 40, 1), (b, 32, 2), (c, 24, 3)):
                fill(one, size, value + own)
            assert has(a, 40, value + 1) and has(b, 32, value + 2) and has(c, 24, value + 3)


def test_what_has_stayed_and_was_written_before_is_not_lost(two_vgpus: Daemon) -> None:
    """The host has a copy of it, from a turn before; and in its last turn nothing is written."""
    with with_parts(two_vgpus, "a", 40, 10) as a:
        pid = str(a.process.pid)

        def go_off(words: str = "off, paused") -> None:
            two_vgpus.must("pause", pid)
            wait_for(two_vgpus, a, words)

        go_off()  # all of it has places on the host now
        two_vgpus.must("resume", pid)
        fill(a, 40, 50)
        with with_parts(two_vgpus, "b", 32, 20) as b:
            assert is_about(two_vgpus, a, 8)  # 32 MiB stay, whose copies are old
            assert has(b, 32, 20)
            a.does("create", 2 * MIB)  # it has a turn, and writes nothing
            wait_for(two_vgpus, a, " on ")
        go_off()
        two_vgpus.must("resume", pid)
        assert has(a, 40, 50)


def test_a_pause_takes_all_off_the_gpu(two_vgpus: Daemon) -> None:
    """Whether the program is off already, or on."""
    with with_parts(two_vgpus, "a", 40, 10) as a, with_parts(two_vgpus, "b", 40, 20) as b:
        assert is_about(two_vgpus, a, 16)
        for one in (a, b):
            two_vgpus.must("pause", str(one.process.pid))
            wait_for(two_vgpus, one, "off, paused")
            assert swapped(two_vgpus, one) == "40 MiB"
        for one, value in ((a, 10), (b, 20)):
            two_vgpus.must("resume", str(one.process.pid))
            assert has(one, 40, value)


def test_the_end_of_a_program_frees_what_it_has_kept(two_vgpus: Daemon) -> None:
    with with_parts(two_vgpus, "b", 40, 20) as b:
        with with_parts(two_vgpus, "a", 40, 10) as a:
            assert has(b, 40, 20) and is_about(two_vgpus, a, 16)
        assert b.does("alloc", 24 * MIB) == [10]
        assert counts(two_vgpus, b)["turns"] == 1


def test_memory_that_was_kept_can_be_freed_off_the_gpu(two_vgpus: Daemon) -> None:
    with with_parts(two_vgpus, "a", 40, 10) as a, with_parts(two_vgpus, "b", 40, 20) as b:
        for key in range(10):
            a.does("free", key)
        assert swapped(two_vgpus, a) == "0 B" and " off " in two_vgpus.must("ps")
        assert b.does("alloc", 24 * MIB) == [10]
        assert has(b, 40, 20)


@pytest.mark.parametrize("is_growing", [False, True])
def test_a_new_daemon_knows_what_was_kept(two_vgpus: Daemon, is_growing: bool) -> None:
    with with_parts(two_vgpus, "a", 40, 10) as a, with_parts(two_vgpus, "b", 40, 20) as b:
        two_vgpus.kill()
        two_vgpus.start()
        wait_for(two_vgpus, a, "off")
        wait_for(two_vgpus, b, " on ")
        assert is_about(two_vgpus, a, 16)
        if is_growing:
            assert b.does("alloc", 24 * MIB) == [10]
            assert swapped(two_vgpus, a) == "40 MiB"
        assert has(a, 40, 10) and has(b, 40, 20)


def give_no_more_memory(program: Program) -> None:
    """From now on a program cannot make memory on the host."""
    mapped = int(Path(f"/proc/{program.process.pid}/statm").read_text().split()[0])
    most = mapped * resource.getpagesize() + 48 * MIB  # for threads, but no segment
    resource.prlimit(program.process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


@pytest.fixture
def large(gpu_files: Path, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with two virtual GPUs on a GPU of four segments of the host's memory."""
    made = Daemon(Gpu(gpu_files / "gpu", 256 * MIB), tmp_path)
    made.start()
    for name in ("a", "b", "c"):
        made.must("vgpu", "add", name, "--memory", "256MiB")
    yield made
    made.kill()


def test_without_a_daemon_nothing_is_kept_for_long(large: Daemon) -> None:
    """Nobody can ask for it any more; and nobody says whether the host has room for it."""
    with with_parts(large, "a", 200, 10) as a, with_parts(large, "b", 200, 20) as b:
        assert is_about(large, a, 144, 8)  # three segments
        large.kill()
        end = time.monotonic() + TIMEOUT_S
        while b.does("info")[0] < 56 * MIB:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert has(b, 200, 20)
        for key in range(50):
            b.does("free", key)
        assert has(a, 200, 10)


def test_without_a_daemon_those_that_kept_memory_do_not_wait_for_each_other(large: Daemon) -> None:
    """Both are off, have work, and together more on the GPU than leaves room for one of them."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        with_parts(large, "a", 160, 10) as a,
        with_parts(large, "b", 160, 20) as b,
        with_parts(large, "c", 100, 30) as c,
    ):
        large.kill()
        both = [threads.submit(has, one, 160, value) for one, value in ((a, 10), (b, 20))]
        time.sleep(3)
        for key in range(25):
            c.does("free", key)
        first, _ = concurrent.futures.wait(both, TIMEOUT_S, concurrent.futures.FIRST_COMPLETED)
        assert len(first) == 1 and first.pop().result()
        done = a if both[0].done() else b
        for key in range(40):
            done.does("free", key)
        assert [one.result(TIMEOUT_S) for one in both] == [True, True]


def test_who_cannot_release_what_it_has_kept_comes_back_first(large: Daemon) -> None:
    """Else nobody could go on: others wait for that memory."""
    arena = {"MALLOC_ARENA_MAX": "1"}
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        with_parts(large, "a", 160, 10, arena) as a,
        with_parts(large, "b", 160, 20, arena) as b,
    ):
        assert is_about(large, a, 64, 8)
        give_no_more_memory(a)
        waiting = threads.submit(b.does, "alloc", 68 * MIB)
        wait_for(large, a, " on, no host memory ")
        assert has(a, 160, 10) and not waiting.done()
        resource.prlimit(a.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        assert waiting.result(TIMEOUT_S) == [40]
        assert has(b, 160, 20) and has(a, 160, 10)


# --- Exact values: clients that say what they do ---


def is_made_to_leave(one: RawClient, by: RawClient) -> None:
    """Each needs 40 of 64 MiB: the first has them, and the other one asks for them."""
    one.gets(40 * MIB)
    assert by.wants(40 * MIB) == AGAIN
    wait_until(lambda: one.read(ORDER) & OUT != 0)


def test_what_a_client_need_not_release_is_exact(large_vgpus: Daemon) -> None:
    with RawClient(large_vgpus, "a", GPU) as one, RawClient(large_vgpus, "b", GPU) as other:
        is_made_to_leave(one, other)
        assert one.read(ROOM) == 24 * MIB // UNIT
        one.leaves(24 * MIB + UNIT)  # one too much: it is told so again
        assert other.wants(40 * MIB) == AGAIN and one.read(ORDER) & REPORT != 0
        one.leaves(24 * MIB)
        assert one.read(ORDER) == OUT
        other.gets(40 * MIB)
        # Who grows gets a 32nd of the GPU at least.
        assert other.wants(UNIT) == AGAIN
        assert one.read(ORDER) == OUT | REPORT and one.read(ROOM) == 22 * MIB // UNIT
        one.leaves(22 * MIB)
        assert other.wants(2 * MIB) == 0
        assert other.wants(UNIT) == AGAIN and one.read(ROOM) == 20 * MIB // UNIT


def test_who_grows_during_its_turn_is_served_before_those_that_wait(large_vgpus: Daemon) -> None:
    """They have kept what it needs. Else it would have to leave for each of its requests."""
    with RawClient(large_vgpus, "a", GPU) as one, RawClient(large_vgpus, "b", GPU) as other:
        is_made_to_leave(one, other)
        one.leaves(24 * MIB, moved=80 * MIB, nanoseconds=10**10)  # slow: so a turn lasts 30 s
        other.gets(40 * MIB)
        one.waits()
        for kept in (16 * MIB, 8 * MIB):
            assert other.wants(8 * MIB) == AGAIN
            assert other.read(ORDER) & OUT == 0
            assert one.read(ORDER) == OUT | REPORT and one.read(ROOM) == kept // UNIT
            one.leaves(kept)
            other.gets(8 * MIB)
        time.sleep(0.5)
        assert other.read(ORDER) & OUT == 0 and one.read(ORDER) & OUT != 0


def test_if_nobody_can_release_more_a_request_is_refused(large_vgpus: Daemon) -> None:
    """Else two would wait for each other: one for memory, and the other for its turn."""
    with RawClient(large_vgpus, "a", GPU) as one, RawClient(large_vgpus, "b", GPU) as other:
        is_made_to_leave(one, other)
        one.leaves(24 * MIB)
        other.gets(40 * MIB)
        assert other.wants(8 * MIB) == AGAIN
        one.cannot_leave(is_off=True)
        wait_until(lambda: other.read(ORDER) & OUT != 0)  # so that the one can come back
        assert other.read(ROOM) == 24 * MIB // UNIT
        other.cannot_leave(is_off=False)
        assert other.read(ORDER) & OUT == 0
        assert other.wants(8 * MIB) == NO_MEMORY
        other.frees(10 * MIB)
        other.has(30 * MIB)
        wait_until(lambda: one.read(ORDER) & OUT == 0 and one.read(ROOM) == 34 * MIB // UNIT)


def test_a_client_that_was_not_off_cannot_say_so(large_vgpus: Daemon) -> None:
    """It would be served before all others, and begin a new turn."""
    with RawClient(large_vgpus, "a", GPU) as one, RawClient(large_vgpus, "b", GPU) as other:
        is_made_to_leave(one, other)
        one.cannot_leave(is_off=True)
        assert one.read(ORDER) & OUT == 0  # it goes on: that was said of one on its GPU
        wait_until(lambda: one.read(ORDER) & OUT != 0)


def test_one_that_is_off_and_stopped_holds_up_nobody_for_whom_others_have_enough(
    large_vgpus: Daemon,
) -> None:
    with (
        RawClient(large_vgpus, "a", GPU) as one,
        RawClient(large_vgpus, "b", GPU) as other,
        RawClient(large_vgpus, "b", GPU) as third,
    ):
        is_made_to_leave(one, other)
        one.leaves(24 * MIB)
        other.gets(40 * MIB)
        assert third.wants(20 * MIB) == AGAIN
        assert one.read(ROOM) < 24 * MIB // UNIT  # it should release more, and does not
        begin = time.monotonic()
        wait_until(lambda: other.read(ORDER) & OUT != 0)
        assert time.monotonic() - begin >= 4.9
        other.leaves(other.read(ROOM) * UNIT)
        third.gets(20 * MIB)


def test_a_pause_that_finds_no_room_on_the_host_holds_up_nobody(large_vgpus: Daemon) -> None:
    with RawClient(large_vgpus, "a", GPU) as one:
        one.gets(40 * MIB)
        large_vgpus.must("pause", str(os.getpid()))
        wait_until(lambda: one.read(ORDER) & OUT != 0)
        assert one.read(ROOM) == 0
        one.cannot_leave(is_off=False)
        assert one.read(ORDER) & OUT != 0 and one.read(ROOM) >= 40 * MIB // UNIT
        one.leaves(40 * MIB)
        assert "off, paused, no host memory" in large_vgpus.must("ps")
        time.sleep(1.1)  # then it is asked again
        with RawClient(large_vgpus, "b", GPU) as other:
            assert other.wants(40 * MIB) == AGAIN
            wait_until(lambda: one.read(ROOM) == 24 * MIB // UNIT)
            one.leaves(24 * MIB)
            other.gets(40 * MIB)
            large_vgpus.must("gpu", "set", "--host-memory", "1GiB")
            assert one.read(ROOM) == 0 and one.read(ORDER) & REPORT != 0


def test_who_said_that_it_is_full_is_asked_again(large_vgpus: Daemon) -> None:
    """The host may have room a second later; until then others are asked."""
    with RawClient(large_vgpus, "a", GPU) as one, RawClient(large_vgpus, "b", GPU) as other:
        is_made_to_leave(one, other)
        one.cannot_leave(is_off=False)
        begin = time.monotonic()
        wait_until(lambda: one.read(ORDER) & OUT != 0)
        assert time.monotonic() - begin >= 0.9


def test_a_move_that_finds_no_room_takes_none_of_the_hosts(large: Daemon) -> None:
    """Of four segments that it needs there are two: others may need these."""
    large.must("gpu", "set", "--host-memory", "128MiB")
    with with_parts(large, "a", 200, 10) as a:
        before = own_mebibytes(a)
        large.must("pause", str(a.process.pid))
        wait_for(large, a, "off, paused, no host memory")
        assert swapped(large, a) == "0 B" and own_mebibytes(a) < before + 64
        large.must("gpu", "set", "--host-memory", "256MiB")
        wait_until(lambda: swapped(large, a) == "200 MiB")
        large.must("resume", str(a.process.pid))
        assert has(a, 200, 10)
