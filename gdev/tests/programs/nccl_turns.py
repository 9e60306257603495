"""Runs jobs that use NCCL on two GPUs: nccl_turns.py [--hold MIB] [--rounds N] [--timeout S]

First jobs of one process and of two processes, without gdev and under it: the sums must be equal.
Then two jobs at once under gdev: with room for both, and on GPUs with room for one and a half, so
that they take turns. Prints a line of JSON for each, with what `gdev ps` knows of the programs of a
job that did not end in time. All jobs are killed at the end. Exit status: 0, or 1 if a sum differs
or a job failed; a job that did not end counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gdev._values import NO_LIMIT
from known_programs import programs
from small_gpu import set_memory

from gdev import cli

PROGRAM = Path(__file__).with_name("nccl_job.py")
# What a process has beside `hold`: numbers of two rounds, their checks, and NCCL's own.
BESIDE_MIB = 2048


class Job:
    """A job, with all its processes in a group of their own."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, until: float) -> dict[str, Any]:
        """Returns what it said. Kills it if it did not end in time."""
        try:
            text, errors = self.process.communicate(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return {"failed": "no end in time", "programs": programs()}
        if self.process.returncode != 0:
            return {"failed": errors.strip().splitlines()[-1:] or self.process.returncode}
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def run(name: str, jobs: list[tuple[list[str], dict[str, str]]], timeout_s: float) -> list[str]:
    """Runs jobs at once, and prints what came of them. Returns their sums."""
    until = time.monotonic() + timeout_s
    begin = time.monotonic()
    running = [Job(*one) for one in jobs]
    try:
        said = [one.end(until) for one in running]
    finally:
        for one in running:
            one.kill()
    seconds = round(time.monotonic() - begin, 1)
    print(json.dumps({"run": name, "seconds": seconds, "jobs": said}), flush=True)
    return [str(one.get("sum", one.get("failed"))) for one in said]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, standard in (("hold", 8192), ("rounds", 2000), ("timeout", 60)):
        parser.add_argument(f"--{name}", type=int, default=standard)
    chosen = parser.parse_args()
    alone, gdev = dict(os.environ), cli.environment_of("default")
    rest = ["--hold", str(chosen.hold), "--rounds", str(chosen.rounds)]
    is_right = True
    for processes in ("0", "2"):
        arguments = ["--processes", processes, *rest]
        about = "one process" if processes == "0" else "two processes"
        expected = run(f"{about}, no gdev", [(arguments, alone)], chosen.timeout)
        is_right &= expected[0].startswith("0x")
        is_right &= run(f"{about}, gdev", [(arguments, gdev)], chosen.timeout) == expected
        both = [(arguments, cli.environment_of("default")) for _ in range(2)]
        fits = run(f"2 jobs of {about} that fit", both, chosen.timeout)
        is_right &= fits == expected * 2
        set_memory((chosen.hold + BESIDE_MIB) * 3 // 2 << 20)
        try:
            turns = run(f"2 jobs of {about} that take turns", both, chosen.timeout)
        finally:
            set_memory(NO_LIMIT)
        is_right &= turns == expected * 2
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
