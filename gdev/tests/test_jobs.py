"""Jobs: processes on several GPUs whose work waits for each other leave and enter together."""

from __future__ import annotations

import time

from .gdev_daemon import Daemon
from .jobs import GPUS, Start, states, used, wait_until


def test_two_jobs_that_do_not_fit_together_take_turns(start: Start) -> None:
    jobs = [start(name, 6400) for name in ("a", "b")]
    for job in jobs:
        job.ends()


def test_jobs_begin_one_after_another(start: Start, daemon: Daemon) -> None:
    """Else each would have one GPU, with work that ends only when it has both."""
    jobs = [start("a", 640, ranks=[0]), start("b", 640, ranks=[1])]
    wait_until(lambda: len(states(daemon)) == len(jobs))
    time.sleep(0.5)
    jobs[0].run(1)
    jobs[1].run(0)
    for job in jobs:
        job.ends()


def test_a_job_is_paused_as_a_whole(start: Start, daemon: Daemon) -> None:
    job = start("a", 6400)
    wait_until(lambda: used(daemon).count(40) == GPUS)
    daemon.must("pause", str(job.processes[0].pid))
    wait_until(lambda: set(states(daemon).values()) == {"off"})
    daemon.must("resume", str(job.processes[0].pid))
    job.ends()


def test_a_daemon_that_is_started_anew_brings_jobs_together(start: Start, daemon: Daemon) -> None:
    jobs = [start(name, 6400) for name in ("a", "b")]
    for _ in range(3):
        wait_until(lambda: "off" in states(daemon).values() or all(job.has_ended for job in jobs))
        daemon.kill()
        daemon.start()
    for job in jobs:
        job.ends()


def test_a_job_goes_on_after_another_one_was_killed(start: Start, daemon: Daemon) -> None:
    jobs = [start(name, 6400) for name in ("a", "b")]
    wait_until(lambda: len(states(daemon)) == 2 * GPUS)
    jobs[0].processes[0].kill()
    time.sleep(0.5)  # the rest of it waits for the one that is gone
    jobs[0].kill()
    jobs[1].ends()
