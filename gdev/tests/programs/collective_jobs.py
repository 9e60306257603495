"""Runs jobs whose kernels meet across two GPUs.

    collective_jobs.py PROGRAM [--rounds N] [--timeout S]

PROGRAM is the tests' client `collective`; KERNELS names their PTX. Two jobs of a process on each
GPU, where programs have 30 GiB of each GPU:

* `take turns`: each process has 20 GiB, so only one job fits at a time;
* `grow`: each process has 8 GiB, and 8 GiB more later. Each job gets its second half on one GPU
  first, which leaves no room there for the other one's;
* `daemon killed`: as `take turns`, while the daemon is killed three times and starts anew.

Prints a line of JSON for each, with what the daemon knows of the programs if a job did not end in
time. Exit status: 0, or 1 if a job failed, had wrong numbers, or did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from known_programs import programs
from small_gpu import set_memory

from gdev import _daemon, _files, cli

RANKS = 2
GPU_BYTES = 30 << 30
LARGE, SMALL = 20 << 30, 8 << 30
KILLS = 3
BETWEEN_KILLS_S = 5.0
HEAD_START_S = 8.0
PEER_CREDENTIALS = (socket.SOL_SOCKET, socket.SO_PEERCRED)


class Job:
    """A process on each GPU."""

    def __init__(self, program: str, folder: Path, name: str, size: int, *rounds: int) -> None:
        self.arrivals = folder / name
        self.arrivals.write_bytes(bytes(8 * RANKS))
        self.processes = [
            subprocess.Popen(
                [program, self.arrivals, *map(str, (rank, RANKS, size, *rounds))],
                env=cli.environment_of("default")
                | {
                    "GDEV_JOB": name,
                    "GDEV_JOB_SIZE": str(RANKS),
                    "CUDA_VISIBLE_DEVICES": str(rank),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]

    def grow(self, rank: int) -> None:
        """Lets a process take as much memory again."""
        self.arrivals.with_name(f"{self.arrivals.name}.{rank}").write_bytes(b"+")

    def end(self, until: float) -> list[str]:
        """Returns what its processes said."""
        said = []
        for process in self.processes:
            try:
                text, _ = process.communicate(timeout=max(0.0, until - time.monotonic()))
                said.append(text.strip())
            except subprocess.TimeoutExpired:
                said.append("no end in time")
        return said

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def run(name: str, jobs: list[Job], timeout_s: float, meanwhile: Callable[[], None]) -> bool:
    """Waits for jobs, and prints what came of them. Returns whether all is right."""
    begin = time.monotonic()
    try:
        meanwhile()
        said = [one for job in jobs for one in job.end(begin + timeout_s)]
        seconds = round(time.monotonic() - begin, 1)
        is_right = all(
            one.splitlines()[-1:] == ["ok"] for one in said
        )  # gdev may say that it waits
        found = {} if is_right else {"programs": programs()}
    finally:
        for job in jobs:
            job.kill()
    print(json.dumps({"run": name, "seconds": seconds, "said": said, **found}), flush=True)
    return is_right


def kill_daemon() -> None:
    time.sleep(HEAD_START_S)
    for _ in range(KILLS):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            daemon.connect(str(_files.socket_path()))
            process, _, _ = struct.unpack("3i", daemon.getsockopt(*PEER_CREDENTIALS, 12))
        death = os.pidfd_open(process)
        signal.pidfd_send_signal(death, signal.SIGKILL)
        select.select([death], [], [])
        os.close(death)
        with _daemon.connect(start=True):
            pass
        time.sleep(BETWEEN_KILLS_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=3200)
    parser.add_argument("--timeout", type=float, default=90.0)
    chosen = parser.parse_args()
    rounds = chosen.rounds
    before = set_memory(GPU_BYTES)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:

        def two(*arguments: int) -> list[Job]:
            return [Job(chosen.program, Path(folder), name, *arguments) for name in "ab"]

        try:
            is_right = run("take turns", two(LARGE, rounds), chosen.timeout, lambda: None)
            growing = two(SMALL, rounds, rounds // 5)

            def grow() -> None:
                for one, rank in zip(growing, range(RANKS), strict=True):
                    one.grow(rank)
                time.sleep(BETWEEN_KILLS_S)
                for one, rank in zip(growing, range(RANKS), strict=True):
                    one.grow(1 - rank)

            is_right &= run("grow", growing, chosen.timeout, grow)
            is_right &= run("daemon killed", two(LARGE, rounds), chosen.timeout, kill_daemon)
        finally:
            set_memory(before)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
