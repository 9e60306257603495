"""Jobs: processes on several GPUs whose work waits for each other leave and enter together."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from .gdev_daemon import Daemon
from .simulated_gpu import BUILD, Gpu

GPUS = 2
MIB = 1 << 20
# Two do not fit the 64 MiB of a GPU, one does.
BYTES = 40 * MIB
TIMEOUT_S = 90


@pytest.fixture
def gpus(gpu: Gpu, tmp_path: Path) -> list[Gpu]:
    """Two simulated GPUs of 64 MiB each."""
    return [gpu, Gpu(tmp_path / "other_gpu", gpu.bytes)]


class Job:
    """A process on each GPU, which meet in their kernels."""

    def __init__(
        self, daemon: Daemon, gpus: list[Gpu], folder: Path, name: str, rounds: int, job: str
    ) -> None:
        self.gpus, self.rounds = gpus, rounds
        self.arrivals = folder / f"{name}.arrivals"
        self.arrivals.write_bytes(bytes(8 * len(gpus)))
        self.environment = daemon.environment() | {
            "GDEV_VGPU": name,
            "GDEV_JOB": job,
            "GDEV_JOB_SIZE": str(len(gpus)),
        }
        self.processes: list[subprocess.Popen[str]] = []

    def run(self, *ranks: int, size: int = BYTES, grows: int | None = None) -> None:
        """Starts some of its processes. grows: after so many rounds each waits for grow()."""
        for rank in ranks:
            one = self.gpus[rank]
            arguments = [rank, len(self.gpus), size, self.rounds, *([grows] if grows else [])]
            self.processes.append(
                subprocess.Popen(
                    [BUILD / "tests" / "collective", self.arrivals, *map(str, arguments)],
                    env=self.environment
                    | {
                        "GDEV_SIMULATED_GPU": str(one.memory),
                        "LD_PRELOAD": one.preloaded,
                        "KERNELS": str(one.kernels),
                    },
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def grow(self, rank: int) -> None:
        """Lets a process take twice the memory."""
        self.arrivals.with_suffix(f"{self.arrivals.suffix}.{rank}").touch()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    @property
    def has_ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def ends(self, timeout_s: float = TIMEOUT_S) -> None:
        """Waits for its end: all its numbers must be right."""
        end = time.monotonic() + timeout_s
        assert len(self.processes) == len(self.gpus)
        for process in self.processes:
            text, errors = process.communicate(timeout=max(0.1, end - time.monotonic()))
            assert (text, process.returncode) == ("ok\n", 0), errors


class Start(Protocol):
    """Makes a job in a virtual GPU, and starts some of its processes; by default all."""

    def __call__(self, vgpu: str, rounds: int, ranks: Sequence[int] = range(GPUS)) -> Job: ...


@pytest.fixture
def start(daemon: Daemon, gpus: list[Gpu], tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as started:

        def run(vgpu: str, rounds: int, ranks: Sequence[int] = range(GPUS)) -> Job:
            made = Job(daemon, gpus, tmp_path, vgpu, rounds, f"job of {vgpu}")
            started.callback(made.kill)
            made.run(*ranks)
            return made

        for name in ("a", "b"):
            daemon.must("vgpu", "add", name, "--memory", "128MiB")
        yield run


def states(daemon: Daemon) -> dict[int, str]:
    """Returns the state of each program."""
    return {int(row[0]): row[5].rstrip(",") for row in rows(daemon)}


def rows(daemon: Daemon) -> list[list[str]]:
    """Returns the words of each line of ``gdev ps``."""
    return [line.split() for line in daemon.must("ps").splitlines()[1:]]


def count_full(daemon: Daemon) -> int:
    """Returns how many programs have allocated all that they will."""
    return sum(row[2:4] == ["40", "MiB"] for row in rows(daemon))


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


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


def test_jobs_that_grow_do_not_wait_for_each_other(start: Start, daemon: Daemon) -> None:
    """
    Each has memory on a GPU for which a process of the other waits, and none can leave: its GPUs
    wait for what the program submits when it has its memory.
    """
    jobs = [start(name, 6400, ranks=()) for name in ("a", "b")]
    for rank, job in enumerate(jobs):
        job.run(*range(GPUS), size=BYTES // 2, grows=64)
        job.grow(rank)
    wait_until(lambda: count_full(daemon) == GPUS)
    for rank, job in enumerate(reversed(jobs)):
        job.grow(rank)
    for job in jobs:
        job.ends()


def test_a_job_is_paused_as_a_whole(start: Start, daemon: Daemon) -> None:
    job = start("a", 6400)
    wait_until(lambda: count_full(daemon) == GPUS)
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
