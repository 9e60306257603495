"""Jobs of a process on each of two simulated GPUs, whose kernels meet."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from .gdev_daemon import Daemon
from .simulated_gpu import BUILD, Gpu

GPUS = 2
MIB = 1 << 20
# Two do not fit the 64 MiB of a GPU, one does.
BYTES = 40 * MIB
TIMEOUT_S = 90


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

    def run(
        self,
        *ranks: int,
        size: int = BYTES,
        grows: int = 0,
        times: int = 1,
        env: Mapping[str, str] | None = None,
        sleeps_at: str = "",
    ) -> None:
        """
        Starts some of its processes. grows: after so many rounds each waits for grow().
        sleeps_at: a crash point and which time, where a thread sleeps for 5 s.
        """
        chosen = {"GDEV_TEST_CRASH": f"{sleeps_at}:sleep"} if sleeps_at else {}
        for rank in ranks:
            one = self.gpus[rank]
            if sleeps_at:
                one = replace(one, programs=BUILD / "crash" / "programs")
            arguments = [rank, len(self.gpus), size, self.rounds, grows, times]
            self.processes.append(
                subprocess.Popen(
                    [BUILD / "tests" / "collective", self.arrivals, *map(str, arguments)],
                    env=self.environment
                    | chosen
                    | dict(env or {})
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

    def grow(self, rank: int, times: int = 1) -> None:
        """Lets a process take as much memory again, altogether so many times."""
        self.arrivals.with_suffix(f"{self.arrivals.suffix}.{rank}").write_bytes(bytes(times))

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


def states(daemon: Daemon) -> dict[int, str]:
    """Returns the state of each program."""
    return {int(row[0]): row[5].rstrip(",") for row in rows(daemon)}


def rows(daemon: Daemon) -> list[list[str]]:
    """Returns the words of each line of ``gdev ps``."""
    return [line.split() for line in daemon.must("ps").splitlines()[1:]]


def used(daemon: Daemon) -> list[int]:
    """Returns how many MiB each program has allocated."""
    return [int(row[2]) for row in rows(daemon)]


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)
