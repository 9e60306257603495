"""Programs whose memory does not fit the GPU together: they take turns, and keep their bytes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator

import pytest

from .gdev_daemon import NOT_READY, OUT_OF_MEMORY, Daemon, Program, seed_of_test
from .segments import MAKE
from .simulated_gpu import BUILD, TIMEOUT_S

MIB = 1 << 20


def started(daemon: Daemon, vgpu: str, mebibytes: int, value: int) -> Program:
    """A program that has filled so much memory."""
    program = daemon.program(vgpu)
    program.does("init")
    key = program.does("alloc", mebibytes * MIB)[0]
    assert key == 0
    program.does("fill", key, value, mebibytes * MIB)
    return program


def state(daemon: Daemon) -> dict[int, list[str]]:
    """The rows of gdev ps, by process."""
    rows = daemon.must("ps").splitlines()[1:]
    return {int(row.split()[0]): row.split() for row in rows}


def test_two_programs_that_do_not_fit_together_take_turns(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        for _ in range(5):
            assert a.does("check", 0, 1, 40 * MIB) == [1]
            assert b.does("check", 0, 2, 40 * MIB) == [1]


@pytest.mark.parametrize("withheld", [2, 10])
def test_memory_that_the_driver_does_not_give_keeps_nobody_off(
    two_vgpus: Daemon, monkeypatch: pytest.MonkeyPatch, withheld: int
) -> None:
    """A driver may say that memory is free, and give none of it."""
    monkeypatch.setenv("GDEV_SIMULATED_WITHHELD", str(withheld * MIB))
    with two_vgpus.program("a") as a, two_vgpus.program("b") as b:
        for program, value in ((a, 1), (b, 2)):
            program.does("init")
            for key in range(20):  # in chunks, as large programs have them
                assert program.does("alloc", 2 * MIB) == [key]
                program.does("fill", key, value, 2 * MIB)
        for _ in range(3):
            for program, value in ((a, 1), (b, 2)):
                for key in range(20):
                    assert program.does("check", key, value, 2 * MIB) == [1]


def test_shared_memory_that_the_driver_does_not_give_makes_others_leave(
    two_vgpus: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDEV_SIMULATED_WITHHELD", str(10 * MIB))
    with (
        started(two_vgpus, "a", 20, 1) as a,
        two_vgpus.program("b", "shared_memory") as b,
    ):
        b.does("init")
        segment = b.does("get", 7, 40 * MIB, MAKE)[0]
        wait_for(two_vgpus, a, "off")
        b.does("rm", segment)
        assert a.does("check", 0, 1, 20 * MIB) == [1]


def test_programs_that_fit_together_are_left_alone(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 30, 1) as a, started(two_vgpus, "b", 30, 2) as b:
        for _ in range(3):
            assert a.does("check", 0, 1, 30 * MIB) == [1]
            assert b.does("check", 0, 2, 30 * MIB) == [1]
        text = two_vgpus.must("ps")
        assert text.count(" on ") == 2 and text.count("0 B") == 2


def test_addresses_never_change(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a:
        before = a.does("address", 0)
        with started(two_vgpus, "b", 40, 2) as b:
            assert b.does("check", 0, 2, 40 * MIB) == [1]
        a.does("fill", 0, 3, 40 * MIB)
        assert a.does("address", 0) == before
        assert a.does("check", 0, 3, 40 * MIB) == [1]


def test_a_program_that_is_off_has_nothing_on_the_gpu(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2):
        rows = state(two_vgpus)
        assert "off" in rows[a.process.pid] and "waits" not in rows[a.process.pid]
        assert rows[a.process.pid][-2:] == ["40", "MiB"]


def test_growth_makes_others_leave(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 20, 1) as a, started(two_vgpus, "b", 20, 2) as b:
        key = b.does("alloc", 30 * MIB)[0]
        b.does("fill", key, 3, 30 * MIB)
        assert a.does("check", 0, 1, 20 * MIB) == [1]
        assert b.does("check", 0, 2, 20 * MIB) == [1]
        assert b.does("check", key, 3, 30 * MIB) == [1]


def test_more_than_the_gpu_has_is_refused(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 20, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        assert b.says("alloc", 26 * MIB) == OUT_OF_MEMORY  # 66 MiB
        key = b.does("alloc", 24 * MIB)[0]  # all of it
        b.does("fill", key, 3, 24 * MIB)
        assert a.does("check", 0, 1, 20 * MIB) == [1]


def test_the_most_for_programs_is_exact(two_vgpus: Daemon) -> None:
    two_vgpus.must("gpu", "set", "--memory", "32MiB")
    with started(two_vgpus, "a", 20, 1) as a, started(two_vgpus, "b", 30, 2) as b:
        assert b.says("alloc", 4 * MIB) == OUT_OF_MEMORY
        b.does("alloc", 2 * MIB)
        for _ in range(3):
            assert a.does("check", 0, 1, 20 * MIB) == [1]
            assert b.does("check", 0, 2, 30 * MIB) == [1]


def test_a_program_sees_what_it_could_have(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1), started(two_vgpus, "b", 40, 2) as b:
        assert b.does("info") == [24 * MIB, 64 * MIB]


def test_memory_is_freed_while_a_program_is_off(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        a.does("free", 0)
        key = a.does("alloc", 10 * MIB)[0]
        a.does("fill", key, 7, 10 * MIB)
        assert a.does("check", key, 7, 10 * MIB) == [1]
        assert b.does("check", 0, 2, 40 * MIB) == [1]


def test_a_program_that_only_frees_gets_no_turn(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 24, 1) as a:
        keys = [a.does("alloc", 2 * MIB)[0] for _ in range(8)]
        with started(two_vgpus, "b", 40, 2):
            for key in keys:
                a.does("free", key)
            time.sleep(0.5)  # turns last 0.1 s
            assert "off" in state(two_vgpus)[a.process.pid]


@pytest.mark.parametrize("which", ["a", "b"])
def test_the_end_of_a_program_makes_room(two_vgpus: Daemon, which: str) -> None:
    """Whether it is killed on the GPU or off it."""
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        gone, rest = (a, b) if which == "a" else (b, a)
        gone.process.kill()
        gone.process.wait(TIMEOUT_S)
        value = 2 if which == "a" else 1
        assert rest.does("check", 0, value, 40 * MIB) == [1]
        rest.does("alloc", 24 * MIB)


def test_when_full_fail(two_vgpus: Daemon) -> None:
    two_vgpus.must("vgpu", "set", "b", "--when-full", "fail")
    with started(two_vgpus, "a", 40, 1) as a, two_vgpus.program("b") as b:
        b.does("init")
        assert b.says("alloc", 26 * MIB) == OUT_OF_MEMORY
        b.does("alloc", 24 * MIB)
        assert a.does("check", 0, 1, 40 * MIB) == [1]


def wait_for(daemon: Daemon, program: Program, words: str) -> None:
    """Waits until gdev ps says this of a program, which may be new to the daemon."""
    end = time.monotonic() + TIMEOUT_S
    while words not in " ".join(state(daemon).get(program.process.pid, [])):
        assert time.monotonic() < end, state(daemon)
        time.sleep(0.02)


@contextlib.contextmanager
def kept_waiting(two_vgpus: Daemon) -> Iterator[Program]:
    """A program that keeps another one's request waiting; after the block that must succeed."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        two_vgpus.program("b") as b,
    ):
        b.does("init")
        waiting = threads.submit(b.does, "alloc", 40 * MIB)
        time.sleep(0.5)
        assert not waiting.done() and "on" in state(two_vgpus)[a.process.pid]
        wait_for(two_vgpus, b, " on, waits for memory ")
        yield a
        waiting.result(TIMEOUT_S)


def test_when_full_wait(two_vgpus: Daemon) -> None:
    two_vgpus.must("vgpu", "set", "b", "--when-full", "wait")
    with kept_waiting(two_vgpus) as a:
        a.does("free", 0)


def test_a_reserve_is_never_taken_away(two_vgpus: Daemon) -> None:
    two_vgpus.must("vgpu", "set", "a", "--reserve", "40MiB")
    with kept_waiting(two_vgpus):
        two_vgpus.must("vgpu", "set", "a", "--reserve", "39MiB")


def test_memory_that_others_free_past_gdev_makes_room(two_vgpus: Daemon) -> None:
    """All programs are off, so no request says that the GPU has more room than it had."""
    environment = two_vgpus.gpu.environment(under_gdev=False)
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        two_vgpus.program("b") as small,
        Program([str(BUILD / "tests" / "memory")], environment) as stranger,
    ):
        two_vgpus.must("pause", str(a.process.pid))
        wait_for(two_vgpus, a, "off, paused")
        stranger.does("init")
        stranger.does("alloc", 30 * MIB)
        small.does("init")
        small.does("alloc", 2 * MIB)  # which reports what is free
        waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
        two_vgpus.must("resume", str(a.process.pid))
        time.sleep(0.3)
        assert not waiting.done()
        stranger.process.kill()
        assert waiting.result(10) == [1]


def lines_of_misfit(program: Program) -> list[str]:
    """What a program that ends has said of not fitting."""
    return [line for line in program.end().splitlines() if "does not fit" in line]


@pytest.mark.parametrize("setting", ["memory", "spare"])
def test_a_program_that_fits_no_more_says_so_and_goes_on_when_it_fits(
    two_vgpus: Daemon, setting: str
) -> None:
    less, enough = {"memory": ("39MiB", "40MiB"), "spare": ("25MiB", "24MiB")}[setting]
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
    ):
        with started(two_vgpus, "b", 30, 2) as b:
            wait_for(two_vgpus, a, "off")
            two_vgpus.must("gpu", "set", f"--{setting}", less)
            waiting = threads.submit(a.does, "check", 0, 1, 40 * MIB)
            wait_for(two_vgpus, a, "off, does not fit")
            assert b.does("check", 0, 2, 30 * MIB) == [1]
        time.sleep(0.5)
        assert not waiting.done() and "does not fit" in two_vgpus.must("top", "--once", "-i", "0.1")
        two_vgpus.must("gpu", "set", f"--{setting}", enough)
        assert waiting.result(TIMEOUT_S) == [1]
        (line,) = lines_of_misfit(a)
        assert line == (
            f"gdev: process {a.process.pid}, virtual GPU a: is off the GPU and does not fit any"
            " more: it needs 40.0 MiB, and there are 39.0 MiB for it. It goes on when it fits"
            " (gdev gpu list, gdev vgpu list)."
        )


def test_a_program_that_a_reserve_keeps_off_says_so_and_others_go_on(two_vgpus: Daemon) -> None:
    two_vgpus.must("vgpu", "add", "c", "--memory", "64MiB")
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 50, 1) as a,
        started(two_vgpus, "b", 30, 2) as b,
    ):
        wait_for(two_vgpus, a, "off")
        two_vgpus.must("vgpu", "set", "b", "--reserve", "30MiB")
        waiting = threads.submit(a.does, "check", 0, 1, 50 * MIB)
        wait_for(two_vgpus, a, "off, does not fit")
        with started(two_vgpus, "c", 20, 3) as c, started(two_vgpus, "c", 20, 4) as d:
            for _ in range(2):  # they take turns, and do not wait for a
                assert c.does("check", 0, 3, 20 * MIB) == [1]
                assert d.does("check", 0, 4, 20 * MIB) == [1]
            assert b.does("check", 0, 2, 30 * MIB) == [1]
            assert not waiting.done()
        two_vgpus.must("vgpu", "set", "b", "--reserve", "0")
        assert waiting.result(TIMEOUT_S) == [1]
        (line,) = lines_of_misfit(a)
        assert "it needs 50.0 MiB, and there are 34.0 MiB for it" in line


def test_allocations_of_others_make_none_fail(two_vgpus: Daemon) -> None:
    """While one allocates and frees, the other's requests wait; both would fit alone."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        two_vgpus.program("a") as a,
        two_vgpus.program("b") as b,
    ):
        for one in (a, b):
            one.does("init")
        both = [threads.submit(one.does, "churn", 40 * MIB, 100) for one in (a, b)]
        assert [one.result(TIMEOUT_S) for one in both] == [[0], [0]]


def test_a_program_that_is_off_can_end(two_vgpus: Daemon) -> None:
    """It frees memory when the driver has ended, and waits for its turn for that."""
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        assert "off" in state(two_vgpus)[a.process.pid]
        assert a.process.stdin is not None
        print("end", file=a.process.stdin, flush=True)
        assert a.process.wait(TIMEOUT_S) == 0
        assert b.does("check", 0, 2, 40 * MIB) == [1]


def test_a_daemon_that_is_killed_leaves_programs_with_their_bytes(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        two_vgpus.kill()
        # a is off, and comes back by itself only when the GPU has room: when b ends.
        b.does("check", 0, 2, 40 * MIB)
        b.does("free", 0)
        assert a.does("check", 0, 1, 40 * MIB) == [1]
        two_vgpus.start()
        key = b.does("alloc", 40 * MIB)[0]
        b.does("fill", key, 5, 40 * MIB)
        assert a.does("check", 0, 1, 40 * MIB) == [1]
        assert b.does("check", key, 5, 40 * MIB) == [1]


def test_a_program_that_comes_back_without_a_daemon_stays(two_vgpus: Daemon) -> None:
    """The last order of the daemon, which is gone, was to leave the GPU."""
    environment = two_vgpus.gpu.environment(under_gdev=False)
    with (
        started(two_vgpus, "a", 40, 1) as a,
        Program([str(BUILD / "tests" / "memory")], environment) as stranger,
    ):
        stranger.does("init")
        two_vgpus.must("pause", str(a.process.pid))
        wait_for(two_vgpus, a, "off, paused")
        two_vgpus.kill()
        assert a.does("check", 0, 1, 40 * MIB) == [1]
        for _ in range(20):
            free, _ = stranger.does("info")
            assert free < 40 * MIB
            time.sleep(0.1)


def test_programs_without_a_daemon_do_not_wait_for_each_other(two_vgpus: Daemon) -> None:
    """Each has a part of its memory on the GPU, and there is no room for all of both."""
    two_vgpus.must("vgpu", "add", "c", "--memory", "64MiB")
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        two_vgpus.program("a") as a,
        two_vgpus.program("b") as b,
        started(two_vgpus, "c", 20, 3) as c,
    ):
        for one in (a, b):
            one.does("init")
            keys = [one.does("alloc", 2 * MIB)[0] for _ in range(20)]
            for key in keys:
                one.does("fill", key, key, 2 * MIB)
            two_vgpus.must("pause", str(one.process.pid))
            wait_for(two_vgpus, one, "off, paused")
        c.does("alloc", 24 * MIB)  # 20 MiB are left
        two_vgpus.kill()
        checks = [threads.submit(one.does, "check", keys[0], keys[0], 2 * MIB) for one in (a, b)]
        time.sleep(4)
        assert not any(one.done() for one in checks)
        c.does("free", 0)  # 40 MiB are left: for one of them
        first, _ = concurrent.futures.wait(checks, TIMEOUT_S, concurrent.futures.FIRST_COMPLETED)
        assert len(first) == 1 and first.pop().result() == [1]
        done, other = (a, b) if checks[0].done() else (b, a)
        for key in keys:
            assert done.does("check", key, key, 2 * MIB) == [1]
            done.does("free", key)
        for check in checks:
            assert check.result(TIMEOUT_S) == [1]
        for key in keys:
            assert other.does("check", key, key, 2 * MIB) == [1]
        said = "the daemon is gone, and the GPU has no room for the 40.0 MiB of this process"
        for one in (a, b):
            assert [said in line for line in one.end().splitlines()] == [True]


def test_a_daemon_that_is_started_anew_goes_on_with_the_turns(two_vgpus: Daemon) -> None:
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 40, 2) as b:
        for _ in range(3):
            two_vgpus.kill()
            two_vgpus.start()
            assert a.does("check", 0, 1, 40 * MIB) == [1]
            two_vgpus.kill()
            two_vgpus.start()
            assert b.does("check", 0, 2, 40 * MIB) == [1]


def test_work_that_does_not_end_keeps_its_program_on_the_gpu(two_vgpus: Daemon) -> None:
    """And is said so; the others get their turn when it has ended."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        two_vgpus.program("b") as b,
    ):
        b.does("init")
        a.does("spin", 4000)
        waiting = threads.submit(b.does, "alloc", 40 * MIB)
        end = time.monotonic() + TIMEOUT_S
        while "busy" not in two_vgpus.must("ps"):
            assert time.monotonic() < end and not waiting.done()
            time.sleep(0.02)
        waiting.result(TIMEOUT_S)
        assert a.does("check", 0, 1, 40 * MIB) == [1]


def test_random_operations_of_programs_on_a_full_gpu(daemon: Daemon) -> None:
    """Each program against a model: what it has written is what it reads; kills; daemons anew."""
    chance = random.Random(seed_of_test())
    for name in ("a", "b", "c"):
        daemon.must("vgpu", "add", name, "--memory", f"{chance.choice([40, 64])}MiB")

    def use(vgpu: str, seed: int) -> int:
        own = random.Random(seed)
        done = 0
        with daemon.program(vgpu) as program:
            program.does("init")
            has: dict[int, tuple[int, int]] = {}
            for _ in range(40):
                what = own.random()
                if what < 0.35 or not has:
                    size = own.choice([1, 2, 3, 7, 20]) * MIB
                    answer = program.says("alloc", size)
                    if answer == OUT_OF_MEMORY:
                        continue
                    key, value = int(answer.split()[1]), own.randrange(1 << 32)
                    program.does("fill", key, value, size)
                    has[key] = (size, value)
                elif what < 0.55:
                    key = own.choice([*has])
                    program.does("free", key)
                    del has[key]
                else:
                    key = own.choice([*has])
                    size, value = has[key]
                    answer = program.says(own.choice(["check", "sum"]), key, value, size)
                    # The first sum allocates a number, which the limit may refuse.
                    assert answer in ("ok 1", OUT_OF_MEMORY)
                done += 1
            for key, (size, value) in has.items():
                assert program.does("check", key, value, size) == [1]
        return done

    with concurrent.futures.ThreadPoolExecutor() as threads:
        users = [
            threads.submit(use, name, chance.randrange(1 << 32)) for name in ("a", "b", "c", "a")
        ]
        while not all(one.done() for one in users):
            time.sleep(chance.uniform(0.2, 1.0))
            if chance.random() < 0.3:
                daemon.kill()
                daemon.start()
        assert all(one.result() > 0 for one in users)


def test_kills_at_any_time_leave_nothing_behind(daemon: Daemon) -> None:
    """Programs that take turns are killed, and the daemon too; the last program gets all."""
    chance = random.Random(seed_of_test())
    for name in ("a", "b", "c"):
        daemon.must("vgpu", "add", name, "--memory", "64MiB")

    def run_until_killed(vgpu: str, lasts_s: float, value: int) -> None:
        end = time.monotonic() + lasts_s
        with daemon.program(vgpu) as program:
            timer = threading.Timer(lasts_s, program.process.kill)
            timer.start()
            try:
                # Both need a daemon; there is none for a moment.
                while program.says("init") == NOT_READY:
                    pass
                while program.says("alloc", 40 * MIB) == OUT_OF_MEMORY:
                    pass
                program.does("fill", 0, value, 40 * MIB)
                while True:
                    assert program.does("sum", 0, value, 40 * MIB) == [1]
            except (AssertionError, BrokenPipeError):
                assert time.monotonic() >= end, "it failed before it was killed"
            finally:
                timer.cancel()

    with concurrent.futures.ThreadPoolExecutor() as threads:
        for _ in range(6):
            running = [
                threads.submit(
                    run_until_killed, name, chance.uniform(0.1, 1.5), chance.randrange(9)
                )
                for name in ("a", "b", "c")
            ]
            if chance.random() < 0.5:
                time.sleep(chance.uniform(0.0, 1.0))
                daemon.kill()
                daemon.start()
            for one in running:
                one.result(TIMEOUT_S)
    with daemon.program("a") as last:
        last.does("init")
        last.does("alloc", 64 * MIB)
        assert last.does("info")[0] == 0
    gpus = json.loads(daemon.must("gpu", "list", "--json"))["gpus"]
    assert all(one["given"] == 0 for one in gpus)


def test_what_was_freed_during_a_capture_leaves_with_the_program(two_vgpus: Daemon) -> None:
    """It cannot be unmapped before the capture ends."""
    with started(two_vgpus, "a", 40, 1) as a, two_vgpus.program("b") as b:
        b.does("init")
        assert a.does("alloc", 8 * MIB)[0] == 1
        a.does("free_in_capture", 0)
        two_vgpus.must("pause", str(a.process.pid))
        try:
            end = time.monotonic() + TIMEOUT_S
            while "off," not in state(two_vgpus)[a.process.pid]:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert b.does("alloc", 60 * MIB)[0] == 0
        finally:
            two_vgpus.must("resume", str(a.process.pid))
