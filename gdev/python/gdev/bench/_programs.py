"""Finds the programs of ``gdev bench`` and runs them, alone and under gdev."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gdev import _files

# The two kinds of runs, as tables and files name them.
ALONE: Final = "alone"
GDEV: Final = "gdev"


def find(name: str) -> Path:
    """Returns a program. ``GDEV_BENCH_PROGRAMS`` names another folder than that of gdev's library.

    Raises OSError: it is not there.
    """
    chosen = os.environ.get("GDEV_BENCH_PROGRAMS")
    path = (Path(chosen).resolve() if chosen else _files.programs() / "bench") / name
    if not path.exists():
        raise FileNotFoundError(
            errno.ENOENT,
            "a program of gdev bench is missing: build the target gdev_bench_programs, "
            "and name its folder in GDEV_BENCH_PROGRAMS",
            str(path),
        )
    return path


def environments(vgpu: str) -> dict[str, dict[str, str]]:
    """Returns the environment of each kind of run, ``ALONE`` first. Starts the daemon.

    Raises OSError, as ``gdev run`` does.
    """
    from gdev import cli  # which imports this package

    return {ALONE: dict(os.environ), GDEV: cli.environment_of(vgpu)}


@dataclass(frozen=True)
class Outcome:
    """What a program printed, and how it ended."""

    status: int
    lines: list[dict[str, Any]]
    """Its lines of JSON."""
    errors: str
    """What it wrote on standard error."""
    seconds: float
    """From its start to its end."""
    was_killed: bool = False
    """It did not end in time."""

    @property
    def is_right(self) -> bool:
        """Whether it ended well and found no wrong result."""
        found_wrong = any(line.get("right") is False or line.get("wrong") for line in self.lines)
        return self.status == 0 and bool(self.lines) and not found_wrong

    @property
    def fault(self) -> str:
        """What is to say of it if it is not right, in one line."""
        if any(line.get("right") is False or line.get("wrong") for line in self.lines):
            return "wrong result"
        said = self.errors.strip().splitlines()
        if said:
            return said[-1]
        return f"no result, exit status {self.status}"


class Process:
    """A program that runs. Leaving its context kills it."""

    def __init__(
        self, program: Path, arguments: Sequence[object], environment: dict[str, str]
    ) -> None:
        """Starts it. Raises OSError."""
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            [str(program), *map(str, arguments)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for_line(self, timeout_s: float | None = None) -> None:
        """Waits until it prints a line, which is lost, or ends, or the time is over."""
        output = self._process.stdout
        assert output is not None
        if select.select([output], [], [], timeout_s)[0]:
            output.readline()

    def terminate(self) -> None:
        """Asks it to end."""
        self._process.terminate()

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """Waits for its end. Kills it if that does not come in time."""
        was_killed = False
        try:
            output, errors = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            was_killed = True
            self._process.kill()
            output, errors = self._process.communicate()
            errors += f"\nkilled: no end after {timeout_s:.0f} s"
        seconds = time.monotonic() - self._start
        lines = []
        for line in output.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found = json.loads(line)
                if isinstance(found, dict):
                    lines.append(found)
        return Outcome(self._process.returncode, lines, errors, seconds, was_killed)


def run(
    program: Path,
    arguments: Sequence[object],
    environment: dict[str, str],
    timeout_s: float | None = None,
) -> Outcome:
    """Runs a program to its end, or kills it. Raises OSError: it cannot be started."""
    with Process(program, arguments, environment) as process:
        return process.outcome(timeout_s)
