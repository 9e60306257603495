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


def in_turn(environments: dict[str, dict[str, str]], run: int) -> list[tuple[str, dict[str, str]]]:
    """Returns the kinds of runs with their environments: every second time the other one first.

    So a machine that gets slower or faster favours none.
    """
    kinds = list(environments.items())
    return kinds if run % 2 == 0 else kinds[::-1]


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
        self,
        program: Path,
        arguments: Sequence[object],
        environment: dict[str, str],
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Starts it. Raises OSError."""
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            [str(program), *map(str, arguments)],
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_for_line(self, timeout_s: float | None = None) -> str:
        """Waits for a line, which outcome() lacks. Empty: it has ended, or the time is over."""
        output = self._process.stdout
        assert output is not None
        return output.readline() if select.select([output], [], [], timeout_s)[0] else ""

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


class SteppedProcess(Process):
    """A program that waits for a line of standard input before each of its repeats."""

    def __init__(
        self, program: Path, arguments: Sequence[object], environment: dict[str, str]
    ) -> None:
        """Starts it, and waits until it is ready, or has ended. Raises OSError."""
        super().__init__(program, arguments, environment, subprocess.PIPE)
        self.wait_for_line()
        self._outside = time.monotonic() - self._start
        self.seconds: list[float] = []
        """What the program says of each repeat."""
        self.wall_seconds = 0.0
        """The whole process without the time that it waits for others, when it has ended."""

    def step(self) -> bool:
        """Lets it do a repeat. Returns false if it has none to say of: it has failed."""
        assert self._process.stdin is not None
        begin = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            print(file=self._process.stdin, flush=True)
        line = self.wait_for_line()
        self._outside += time.monotonic() - begin
        if not line:
            return False
        self.seconds.append(float(json.loads(line)["seconds"]))
        return True

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """Lets it end."""
        begin = time.monotonic()
        found = super().outcome(timeout_s)
        self.wall_seconds = self._outside + time.monotonic() - begin
        return found


def run(
    program: Path,
    arguments: Sequence[object],
    environment: dict[str, str],
    timeout_s: float | None = None,
) -> Outcome:
    """Runs a program to its end, or kills it. Raises OSError: it cannot be started."""
    with Process(program, arguments, environment) as process:
        return process.outcome(timeout_s)
