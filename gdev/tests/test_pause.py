"""Programs that are paused, or stopped: others go on, and they do when they are resumed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import time
from collections.abc import Iterator

from .gdev_daemon import Daemon, Program
from .simulated_gpu import TIMEOUT_S
from .test_swap import MIB, started, wait_for


@contextlib.contextmanager
def paused(daemon: Daemon) -> Iterator[Program]:
    """Yields a program that is paused, and uses its memory. It goes on when it is resumed."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(daemon, "a", 40, 1) as program,
    ):
        daemon.must("pause", str(program.process.pid))
        wait_for(daemon, program, "off, paused")
        waiting = threads.submit(program.does, "check", 0, 1, 40 * MIB)
        yield program
        assert not waiting.done()
        daemon.must("resume", str(program.process.pid))
        assert waiting.result(TIMEOUT_S) == [1]


def test_a_paused_program_is_off_until_it_is_resumed(two_vgpus: Daemon) -> None:
    with paused(two_vgpus):
        time.sleep(0.3)
    failed = two_vgpus.gdev("pause", "1")
    assert failed.returncode == 1
    assert failed.stderr == "gdev: 1: no such process runs under gdev (gdev ps)\n"


def test_a_pause_outlasts_daemons(two_vgpus: Daemon) -> None:
    with paused(two_vgpus) as program:
        for _ in range(2):
            two_vgpus.kill()
            two_vgpus.start()
            wait_for(two_vgpus, program, "off, paused")
        time.sleep(2)  # a new daemon lets nobody enter for 1.5 s


def test_a_write_that_waited_for_its_turn_is_kept(two_vgpus: Daemon) -> None:
    """It is the only one of the turn: the host's copy is older than it."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
    ):
        pid = str(a.process.pid)
        two_vgpus.must("pause", pid)
        wait_for(two_vgpus, a, "off, paused")
        waiting = threads.submit(a.does, "fill", 0, 7, 40 * MIB)
        time.sleep(0.1)
        two_vgpus.must("resume", pid)
        waiting.result(TIMEOUT_S)
        two_vgpus.must("pause", pid)
        wait_for(two_vgpus, a, "off, paused")
        two_vgpus.must("resume", pid)
        assert a.does("check", 0, 7, 40 * MIB) == [1]


@contextlib.contextmanager
def stopped_at_its_turn(daemon: Daemon) -> Iterator[tuple[Program, Program]]:
    """Two programs of which one fits: the first is stopped, and gets its turn all the same."""
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(daemon, "a", 40, 1) as a,
        started(daemon, "b", 40, 2) as b,
    ):
        daemon.must("pause", str(a.process.pid))
        wait_for(daemon, a, "off, paused")
        waiting = threads.submit(a.says, "check", 0, 1, 40 * MIB)
        wait_for(daemon, a, "off, paused, waits for memory")
        a.process.send_signal(signal.SIGSTOP)
        daemon.must("resume", str(a.process.pid))
        wait_for(daemon, a, "moving in")
        wait_for(daemon, b, "off")
        yield a, b
        a.process.send_signal(signal.SIGCONT)
        waiting.result(TIMEOUT_S)


def test_a_program_that_is_stopped_at_its_turn_holds_up_others_for_seconds(
    two_vgpus: Daemon,
) -> None:
    with stopped_at_its_turn(two_vgpus) as (a, b):
        assert b.does("check", 0, 2, 40 * MIB) == [1]
        a.process.send_signal(signal.SIGCONT)
        assert b.does("check", 0, 2, 40 * MIB) == [1]


def test_a_program_that_is_stopped_at_its_turn_is_ended_after_a_while(two_vgpus: Daemon) -> None:
    with stopped_at_its_turn(two_vgpus) as (a, b):
        two_vgpus.must("vgpu", "set", "a", "--end-after", "1")
        assert b.does("check", 0, 2, 40 * MIB) == [1]
        assert a.process.wait(TIMEOUT_S) == -signal.SIGKILL


def test_a_stopped_program_holds_up_those_that_need_its_memory_only(two_vgpus: Daemon) -> None:
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        started(two_vgpus, "a", 40, 1) as a,
        two_vgpus.program("b") as b,
        two_vgpus.program("b") as small,
    ):
        b.does("init")
        small.does("init")
        a.stop()
        waiting = threads.submit(b.does, "alloc", 40 * MIB)
        wait_for(two_vgpus, a, "moving out")
        time.sleep(0.5)
        assert not waiting.done()
        a.process.send_signal(signal.SIGCONT)
        waiting.result(TIMEOUT_S)
        assert a.does("check", 0, 1, 40 * MIB) == [1]
        small.does("alloc", 2 * MIB)


def test_a_program_that_cannot_leave_is_ended_if_that_was_chosen(two_vgpus: Daemon) -> None:
    two_vgpus.must("vgpu", "set", "a", "--end-after", "2")
    with started(two_vgpus, "a", 40, 1) as a, started(two_vgpus, "b", 20, 2) as b:
        a.stop()
        begin = time.monotonic()
        b.does("alloc", 30 * MIB)
        assert time.monotonic() - begin >= 2.0
        assert a.process.wait(TIMEOUT_S) == -signal.SIGKILL
        assert b.does("check", 0, 2, 20 * MIB) == [1]
