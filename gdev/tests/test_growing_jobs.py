"""
Jobs that grow: each has memory on a GPU for which a process of the other waits, and none can leave,
as its GPUs wait for what the program submits when it has its memory. What they ask for is served in
the host's memory.
"""

from __future__ import annotations

import signal
import time

import pytest

from .gdev_daemon import Daemon
from .jobs import BYTES, GPUS, MIB, Job, Start, rows, used, wait_until

ROUNDS = 1280
OUT_OF_MEMORY = "collective: cuMemAlloc: error 2"


def start_growing(
    start: Start,
    daemon: Daemon,
    times: int = 1,
    env: dict[str, str] | None = None,
    sleeps_at: str = "",
) -> list[Job]:
    """
    Starts two jobs, which have grown once on a GPU each, and wait for grow() on the other. A thread
    of the first job sleeps at a crash point.
    """
    jobs = [start(name, ROUNDS, ranks=()) for name in ("a", "b")]
    for rank, job in enumerate(jobs):
        sleeps = "" if rank else sleeps_at
        job.run(*range(GPUS), size=BYTES // 2, grows=64, times=times, env=env, sleeps_at=sleeps)
        job.grow(rank)
    wait_until(lambda: sorted(used(daemon)) == [20, 20, 40, 40])
    return jobs


def grow(jobs: list[Job], times: int = 1) -> None:
    """Lets all grow so many times, first where each job is in the other's way."""
    for rank, job in enumerate(jobs):
        job.grow(1 - rank, times)
    for rank, job in enumerate(jobs):
        job.grow(rank, times)


def ends_out_of_memory(jobs: list[Job]) -> bool:
    """Tells whether a process has ended because it got no memory; none may end otherwise."""
    ended = [one for job in jobs for one in job.processes if one.poll() is not None]
    for one in ended:
        text, errors = one.communicate()
        assert (text, errors.splitlines()[-1], one.returncode) == ("", OUT_OF_MEMORY, 1)
    return bool(ended)


def test_they_do_not_wait_for_each_other(start: Start, daemon: Daemon) -> None:
    jobs = start_growing(start, daemon)
    grow(jobs)
    for job in jobs:
        job.ends()


def test_they_grow_again_beside_what_is_on_the_host(start: Start, daemon: Daemon) -> None:
    """To 60 of 64 MiB. The host needs a segment of 64 MiB for each of the four processes."""
    daemon.must("gpu", "set", "--host-memory", "256MiB")
    jobs = start_growing(start, daemon, times=2)
    grow(jobs, 2)
    for job in jobs:
        job.ends()


def test_they_do_not_grow_beyond_the_gpu(start: Start, daemon: Daemon) -> None:
    """To 80 of 64 MiB, which could not come back to it. The limit allows 128 MiB."""
    jobs = start_growing(start, daemon, times=3)
    grow(jobs, 3)
    wait_until(lambda: ends_out_of_memory(jobs))


def test_a_host_that_could_not_hold_it_gives_none(start: Start, daemon: Daemon) -> None:
    daemon.must("gpu", "set", "--host-memory", f"{(256 << 20) - 4096}")
    jobs = start_growing(start, daemon)
    grow(jobs)
    wait_until(lambda: ends_out_of_memory(jobs))


@pytest.mark.parametrize("host", ["none", str(MIB << 1)])
def test_without_memory_on_the_host_they_wait(start: Start, daemon: Daemon, host: str) -> None:
    """Until one of the jobs is gone. The driver cannot do it, or the host has too little."""
    jobs = start_growing(start, daemon, env={"GDEV_SIMULATED_HOST": host})
    grow(jobs)
    time.sleep(5)
    assert sorted(used(daemon)) == [20, 20, 40, 40]
    jobs[1].kill()
    jobs[0].ends()


def test_a_new_daemon_while_memory_is_on_the_host(start: Start, daemon: Daemon) -> None:
    """
    A process that is stopped keeps its job from leaving: so one of them has memory on the host when
    the daemon ends.
    """
    jobs = start_growing(start, daemon)
    stopped = [job.processes[rank] for rank, job in enumerate(jobs)]
    for one in stopped:
        one.send_signal(signal.SIGSTOP)
    grow(jobs)
    wait_until(lambda: used(daemon).count(40) > GPUS)
    for _ in range(2):
        daemon.kill()
        daemon.start()
        wait_until(lambda: len(rows(daemon)) >= GPUS)
    for one in stopped:
        one.send_signal(signal.SIGCONT)
    for job in jobs:
        job.ends()


def test_what_is_exported_from_the_host_is_right(start: Start, daemon: Daemon) -> None:
    """It stays in the host's memory, and the rest takes turns."""
    jobs = start_growing(start, daemon, env={"EXPORTS": "1"})
    grow(jobs)
    for job in jobs:
        job.ends()


def test_a_job_leaves_before_its_memory_on_the_host_is_made(start: Start, daemon: Daemon) -> None:
    """Its thread has got it, and comes to the gate too late."""
    jobs = start_growing(start, daemon, sleeps_at="memory_taken:2")
    grow(jobs)
    for job in jobs:
        job.ends()
