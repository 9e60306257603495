"""Stages of a test run: their commands, their tests' results, and the order in which they run.

tools/run_tests.py has the stages themselves.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOGS = BUILD / "logs"
PROCESSORS = len(os.sched_getaffinity(0))
TAIL_LINES = 60
FAILURE_LINES = 12


class StageError(Exception):
    """A command of a stage failed, or the stage ran nothing."""


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)  # reasons of skipped tests
    # The failed tests' names, and the first lines of their output.
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.reasons += [reason for reason in other.reasons if reason not in self.reasons]
        self.failures += other.failures

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


class Job:
    """Runs the commands of a stage, each with the stage's time limit.

    The limit is for commands that could hang. Compilers always end, even on slow machines, and get
    a limit of their own.
    """

    def __init__(self, name: str, log: TextIO, timeout_s: float) -> None:
        self.name = name
        self.log = log
        self.timeout_s = timeout_s
        self.counts = Counts()
        self.in_background = False
        self.is_stopped = False
        self.cpu_s = 0.0  # processor time of the commands that have ended
        self.lock = threading.Lock()  # of it
        self.processes: set[subprocess.Popen[bytes]] = set()

    def stop(self) -> None:
        """Kills what runs now. The job runs nothing any more. Called by any thread."""
        self.is_stopped = True
        for process in list(self.processes):
            kill_session(process)

    def run(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        log: TextIO | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Runs a command. Raises StageError if it fails or exceeds the time limit."""
        words = [str(word) for word in command]
        log = log or self.log
        log.write(f"$ {' '.join(words)}\n")
        log.flush()
        process = subprocess.Popen(
            ["nice", "-n", "19", *words] if self.in_background else words,
            cwd=ROOT,
            env=dict(os.environ) | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if self.in_background:
            # Linux compares the priorities of sessions first, where it groups processes by session.
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/autogroup").write_text("19")
        self.processes.add(process)
        if self.is_stopped:
            kill_session(process)
        try:
            status = self.wait(process, timeout_s or self.timeout_s)
            if status is None:
                raise StageError(f"out of time in: {' '.join(words)}")
        finally:
            # Also what the command left running, and when this program is interrupted.
            kill_session(process)
            process.wait()
            self.processes.discard(process)
        if status != 0:
            raise StageError(f"exit status {status} from: {' '.join(words)}")

    def wait(self, process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
        """Returns the exit status, or None after the time limit. Counts the processor time."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                process.returncode = os.waitstatus_to_exitcode(status)
                with self.lock:
                    self.cpu_s += usage.ru_utime + usage.ru_stime
                return process.returncode
            time.sleep(0.05)
        return None

    def run_tests(
        self, report: Path, *command: str | Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Runs a test runner that writes a JUnit report, and counts its tests."""
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        failure = None
        try:
            self.run(*command, env=env)
        except StageError as error:
            failure = error
        self.judge([report], failure)

    def run_googletest(
        self,
        program: Path,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Runs a googletest program in several processes at a time, each with a share of the tests.

        One process more than processors, because tests wait at times. With two per processor, calls
        that must end within milliseconds were late. More shares than processes, so that all
        processes end at about the same time. One process per test, as in CTest, would spend most of
        its time on startup, above all under a sanitizer.
        """
        processes = PROCESSORS + 1
        for old in LOGS.glob(f"{self.name}-*.xml"):
            old.unlink()
        reports = [LOGS / f"{self.name}-{shard}.xml" for shard in range(6 * processes)]

        def run_share(shard: int) -> StageError | None:
            shares = {
                "GTEST_TOTAL_SHARDS": str(len(reports)),
                "GTEST_SHARD_INDEX": str(shard),
            }
            command: list[str | Path] = [*prefix, program, f"--gtest_output=xml:{reports[shard]}"]
            with (LOGS / f"{self.name}-{shard}.log").open("w") as log:
                try:
                    self.run(*command, env=shares | dict(env or {}), log=log)
                except StageError as error:
                    return error
            return None

        with concurrent.futures.ThreadPoolExecutor(processes) as pool:
            failures = [
                failure
                for failure in pool.map(run_share, range(len(reports)))
                if failure is not None
            ]
        for shard in range(len(reports)):
            self.log.write((LOGS / f"{self.name}-{shard}.log").read_text(errors="replace"))
        self.judge(reports, failures[0] if failures else None)

    def judge(self, reports: Sequence[Path], failure: StageError | None) -> None:
        """Counts the tests in the existing reports. Raises StageError after any failure."""
        counts = Counts()
        for report in reports:
            if report.exists():
                counts.add(read_report(report))
        self.counts.add(counts)
        if failure is not None:
            raise failure
        if counts.failed:
            raise StageError("tests failed")
        if counts.passed + counts.skipped == 0:
            raise StageError("no test ran")


def kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read_report(report: Path) -> Counts:
    """Counts the test cases of a JUnit report of CTest, googletest or pytest."""
    counts = Counts()
    for case in ElementTree.parse(report).iter("testcase"):
        skip = case.find("skipped")
        if (
            case.find("failure") is not None
            or case.find("error") is not None
            or case.get("status") == "fail"
        ):
            counts.failed += 1
            counts.failures.append(describe_failure(case))
        elif skip is not None or case.get("status") in ("notrun", "disabled"):
            counts.skipped += 1
            reason = skip_reason(case)
            if reason and reason not in counts.reasons:
                counts.reasons.append(reason)
        else:
            counts.passed += 1
    return counts


def describe_failure(case: ElementTree.Element) -> str:
    failure = case.find("failure")
    if failure is None:
        failure = case.find("error")
    said = "" if failure is None else failure.get("message") or failure.text or ""
    if not said:  # CTest
        said = case.findtext("system-out") or ""
    lines = [line for line in said.splitlines() if line.strip()][:FAILURE_LINES]
    return "\n".join(
        [f"{case.get('classname')}.{case.get('name')}", *(f"    {line}" for line in lines)]
    )


def skip_reason(case: ElementTree.Element) -> str:
    lines = (case.findtext("system-out") or "").splitlines()
    for line, following in itertools.pairwise([*lines, ""]):
        if line.startswith("skipped: "):
            return line.removeprefix("skipped: ")
        if line.endswith(": Skipped"):  # googletest
            return following.strip()
    skip = case.find("skipped")
    message = "" if skip is None else skip.get("message") or ""
    # googletest also reports the source line.
    said = [line for line in message.splitlines() if not re.fullmatch(r".*\.cpp:\d+", line)]
    return "" if message.startswith("SKIP_") or not said else said[0].strip()


@dataclass(frozen=True)
class Stage:
    name: str
    text: str
    run: Callable[[Job], None] | None
    timeout_s: int  # of each command except compilers
    needs: tuple[str, ...] = ()
    # Runs before `run`, and beside the stages before this one, at the lowest priority: what takes a
    # processor's time, but no notice of how much it gets.
    background: Callable[[Job], None] | None = None
    only_if_chosen: bool = False


def failed_tests(lines: Sequence[str]) -> list[str]:
    """Returns googletest's output for the first failed tests."""
    found: list[str] = []
    begin = 0
    for i, line in enumerate(lines):
        if "[ RUN      ]" in line:
            begin = i
        elif "[  FAILED  ]" in line and "[ RUN      ]" in lines[begin]:
            found += lines[begin : min(i + 1, begin + TAIL_LINES)]
            begin = i
    return found[: 4 * TAIL_LINES]


class StageRun:
    """A stage that runs: its log, its outcome, and the seconds of its parts."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.path = LOGS / f"{stage.name}.log"
        self.log = self.path.open("w")
        self.job = Job(stage.name, self.log, stage.timeout_s)
        self.failure: Exception | None = None
        self.seconds: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}

    def run_part(self, name: str, part: Callable[[Job], None] | None) -> None:
        """Runs a part of the stage, unless there is none or the part before has failed."""
        if part is None or self.failure is not None:
            return
        start, cpu_s = time.monotonic(), self.job.cpu_s
        try:
            part(self.job)
        except (StageError, OSError, ElementTree.ParseError) as error:
            self.log.write(f"{self.stage.name}: {error}\n")
            self.failure = error
        self.seconds[name] = time.monotonic() - start
        self.cpu_s[name] = self.job.cpu_s - cpu_s

    def run_in_background(self) -> None:
        self.job.in_background = True
        self.run_part("background", self.stage.background)
        self.job.in_background = False

    def finish(self) -> str:
        """Shows what failed. Returns the outcome: 'passed', 'failed' or 'skipped'."""
        self.log.close()
        counts = self.job.counts
        if self.failure is not None:
            counts.failed = max(counts.failed, 1)
            lines = self.path.read_text(errors="replace").splitlines()
            print(f"--- {self.path.relative_to(ROOT)}: the tests that failed, and the end ---")
            print("\n".join([*failed_tests(lines), *lines[-TAIL_LINES:]]))
            print("---", flush=True)
            return "failed"
        if counts.passed + counts.skipped == 0:
            counts.passed = 1
        return "skipped" if counts.passed == 0 else "passed"

    def __str__(self) -> str:
        """Returns the seconds of the stage itself, and of what it had done in the background."""
        text = f"{self.seconds.get('own', 0):5.0f} s, CPU {self.cpu_s.get('own', 0):.0f} s"
        if "background" in self.seconds:
            text += f" (before: {self.seconds['background']:.0f} s"
            text += f", CPU {self.cpu_s['background']:.0f} s)"
        return text


class Background:
    """Runs the background parts of stages, one after another."""

    def __init__(self) -> None:
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.runs: dict[str, tuple[StageRun, concurrent.futures.Future[None]]] = {}

    def begin(self, stage: Stage) -> None:
        if stage.background is not None and stage.name not in self.runs:
            run = StageRun(stage)
            self.runs[stage.name] = (run, self.pool.submit(run.run_in_background))

    def wait_for(self, stage: Stage) -> StageRun:
        """Returns the stage, with its background part done."""
        self.begin(stage)
        if stage.name not in self.runs:
            return StageRun(stage)
        run, done = self.runs[stage.name]
        done.result()
        return run

    def stop(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        for run, _ in self.runs.values():
            run.job.stop()
        self.pool.shutdown()


def describe(outcome: str, counts: Counts) -> str:
    text = f"{outcome:<8} {counts}"
    return f"{text} ({'; '.join(counts.reasons)})" if counts.reasons else text


def run_stages(stages: Sequence[Stage], chosen: Sequence[str]) -> int:
    """Runs the stages, or the chosen ones of them, and reports them. Returns the exit status."""
    LOGS.mkdir(parents=True, exist_ok=True)
    plan = [
        stage
        for stage in stages
        if stage.name in chosen or (not chosen and not stage.only_if_chosen)
    ]
    names = [stage.name for stage in plan]
    outcomes: dict[str, str] = {}
    total = Counts()
    summary: list[str] = []
    cpu_s = 0.0
    failures: list[str] = []
    start = time.monotonic()
    background = Background()
    try:
        for stage in plan:
            for later in plan:
                if all(need not in names or outcomes.get(need) == "passed" for need in later.needs):
                    background.begin(later)
            print(
                f"[{1 + stages.index(stage)}/{len(stages)}] {stage.name}: {stage.text}", flush=True
            )
            broken = [need for need in stage.needs if outcomes.get(need) == "failed"]
            if broken:
                counts = Counts(skipped=1, reasons=[f"'{broken[0]}' failed"])
                outcome, seconds = "skipped", f"{0:5.0f} s"
            else:
                run = background.wait_for(stage)
                run.run_part("own", stage.run)
                outcome, counts, seconds = run.finish(), run.job.counts, str(run)
                cpu_s += run.job.cpu_s
            outcomes[stage.name] = outcome
            if stage.name != "setup" or outcome == "failed":
                total.add(counts)
                failures += [f"{stage.name}: {failure}" for failure in counts.failures]
            summary.append(f"{stage.name:<10} {seconds}  {describe(outcome, counts)}")
            print(f"    {summary[-1]}", flush=True)
    finally:
        background.stop()
    minutes, seconds_left = divmod(round(time.monotonic() - start), 60)
    print(f"\nSummary, after {minutes} min {seconds_left} s (CPU: {cpu_s:.0f} s)")
    for line in summary:
        print(f"  {line}")
    for failure in failures:
        print(f"\nFailed: {failure}")
    print(f"\n{total}", flush=True)
    ran = total.passed + total.failed > 0
    if not ran:
        print("No test ran, which counts as a failure.", file=sys.stderr)
    return 0 if ran and total.failed == 0 else 1
