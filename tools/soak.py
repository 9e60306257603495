#!/usr/bin/env python3
"""Runs all tests with random or enumerated work for a given time, and reports their coverage.

    tools/soak.py MINUTES                 all classes of tests, with new seeds
    tools/soak.py MINUTES --only CLASS    some of them; may be given several times
    tools/soak.py --list                  the classes, and their tests

Each class gets a share of the time, and each test a part of that share. A test executes steps, each
with a seed of its own (tests/support/work_budget.hpp). A failure is printed with the command that
repeats its step. The exit status is 0 only if nothing failed and something ran. docs/testing.md
describes the classes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fuzz

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "tests" / "gpufs_tests"
# With the package, as `make test` installs it.
TEST_PYTHON = ROOT / "build" / "venv" / "bin" / "python3"
LOGS = ROOT / "build" / "logs" / "soak"
OVERTIME_S = 300  # a step may exceed the test's time by this much
TAIL_LINES = 60
SEEDS_AT_ONCE = 8  # for tests that have seeds but no time budget
FIRST_S = 1  # for each test; after that it is known which tests have a budget
SEEDS_OF_COPY = 10_000_000


@dataclass(frozen=True)
class Class:
    """A class of tests. To add a class, add a line below."""

    name: str
    files: str  # its sources: patterns of paths below tests/, separated by blanks
    weight: float = 1.0  # share of the time


CLASSES = (
    Class("power loss", "power/*"),
    Class("nth failure", "api/nth_failure_test.cpp"),
    Class("deterministic simulation", "simulation/*", 2.0),
    Class("nth hang", "api/hanging_backend_test.cpp"),
    Class("scribbling", "api/scribbled_arena_test.cpp", 0.5),
    Class("fsx", "fsx/*"),
    Class("FUSE", "backend/fuse_test.cpp", 0.5),
    Class("good guest", "guest/*", 0.5),
    Class("hostile memory", "service/hostile_test.cpp", 0.5),
    Class("fuzzers without guidance", "fuzz/*", 0.5),
    Class("parsers in Python", "python/test_fuzz.py", 0.5),
    Class("random operations", "api/random_operations_test.cpp api/random_writes_test.cpp"),
    Class("random operations with faults", "api/random_write_faults_test.cpp"),
    Class("memory model", "litmus/*", 0.5),
    Class("text", "text/*", 0.5),
)
FUZZERS = Class("fuzzers", "")  # if there is a compiler for them
# Tests with a budget that belong to no class. So no test is left out before it has a line above.
OTHERS = Class("others", "", 0.5)

BUDGET = re.compile(r"\bwork_budget\b")
SEEDS = re.compile(r"\bseeds\(\)")
COVERED = re.compile(
    r"^covered: (.+?): (\d+) steps(?: \(seeds (\d+) to (\d+)\))?(?:, (\d+) (.+))?$", re.MULTILINE
)


@dataclass(frozen=True)
class Test:
    """A unit of execution: a test or a suite of googletest, a file of pytest, or a fuzzer."""

    of: Class
    name: str
    kind: str  # "budget", "seeds", "pytest", "fuzzer"


@dataclass
class Coverage:
    """The coverage of a test."""

    of: Class
    test: str
    seconds: float
    steps: int = 0
    units: dict[str, int] = field(default_factory=dict)
    seeds: tuple[int, int] | None = None
    failure: str = ""  # the printed output
    replay: str = ""

    def add(self, output: str) -> None:
        """Adds the coverage that a test printed."""
        for _, steps, first, last, count, unit in COVERED.findall(output):
            self.steps += int(steps)
            if first:
                seeds = self.seeds or (int(first), int(last))
                self.seeds = (min(seeds[0], int(first)), max(seeds[1], int(last)))
            if unit:
                self.units[unit] = self.units.get(unit, 0) + int(count)


def class_of(path: str) -> Class:
    """Returns the class of a source below tests/."""
    for of in CLASSES:
        if any(fnmatch.fnmatch(path, pattern) for pattern in of.files.split()):
            return of
    return OTHERS


def listed(program: Path) -> Iterable[tuple[str, str, str]]:
    """Yields suite, test and source (below tests/) of each test of a program."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.json"
        # With a given seed, a suite lists one test for each seed.
        environment = os.environ | {"GPUFS_TEST_SEED": "1"}
        subprocess.run(
            [program, "--gtest_list_tests", f"--gtest_output=json:{report}"],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        suites = json.loads(report.read_text())["testsuites"]
    for suite in suites:
        for test in suite["testsuite"]:
            yield suite["name"], test["name"], test["file"].rpartition("tests/")[2]


def tests_of_program(program: Path) -> list[Test]:
    """Returns the tests that have a budget, or have seeds and belong to a class."""
    found: dict[Test, None] = {}
    text: dict[str, str] = {}
    for suite, name, source in listed(program):
        if source not in text:
            path = ROOT / "tests" / source
            text[source] = path.read_text() if path.exists() else ""
        of = class_of(source)
        if BUDGET.search(text[source]):
            found[Test(of, f"{suite}.{name}", "budget")] = None
        elif SEEDS.search(text[source]) and of is not OTHERS:
            found[Test(of, f"{suite}.*", "seeds")] = None
    return list(found)


def tests_in_python() -> list[Test]:
    """Returns the files of pytest that have a budget."""
    if not TEST_PYTHON.exists() and "GPUFS_TEST_PYTHON" not in os.environ:
        return []
    paths = sorted((ROOT / "tests" / "python").glob("test_*.py"))
    return [
        Test(class_of(f"python/{path.name}"), str(path.relative_to(ROOT)), "pytest")
        for path in paths
        if BUDGET.search(path.read_text())
    ]


def run_process(
    command: Sequence[str | Path], environment: dict[str, str], seconds: float
) -> tuple[int | None, str]:
    """Runs a command. Returns its output and its exit status; None if it was killed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(seconds + OVERTIME_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")


def tail(output: str) -> str:
    """Returns the relevant part of a failed test's output."""
    lines = output.splitlines()
    failed = [
        i
        for i, line in enumerate(lines)
        if ": Failure" in line or "ERROR: " in line or line.startswith("found:")
    ]
    first = lines[failed[0] : failed[0] + TAIL_LINES] if failed else []
    return "\n".join(line[:1000] for line in [*first, "...", *lines[-TAIL_LINES:]])


def replay_of(output: str, step_file: Path, otherwise: str) -> str:
    """Returns the command that repeats a step, as printed by the test or at the step's begin."""
    said = re.findall(r"replay: (.+)", output)
    if said:
        return str(said[-1])
    step = step_file.read_text().strip() if step_file.exists() else ""
    return step.removeprefix("replay: ") or otherwise


class Soak:
    """A run over some tests."""

    def __init__(self, program: Path, seed: int, stops: bool) -> None:
        self.program = program
        self.seed = seed
        self.stops = stops  # whether to stop at the first failure
        self.ended = threading.Event()
        self.lock = threading.Lock()  # guards the output

    def run_class(self, tests: Sequence[Test], seconds: float, copy: int) -> list[Coverage]:
        """Runs the tests of a class for about `seconds`.

        `copy` is the number of this run among several runs of the class.
        """
        end = time.monotonic() + seconds
        seed = self.seed + copy * SEEDS_OF_COPY
        all_covered: list[Coverage] = []
        # A source with a budget also has tests without one. These print no steps, and run only
        # once.
        lasting: list[tuple[Test, Coverage]] = []
        for test in tests:
            covered = Coverage(test.of, test.name, 0)
            if test.kind == "budget":
                self._run(test, FIRST_S, seed, covered)
            if covered.failure:
                all_covered.append(covered)
            elif covered.steps or test.kind != "budget":
                lasting.append((test, covered))
        for number, (test, covered) in enumerate(lasting):
            left = (end - time.monotonic()) / (len(lasting) - number)
            if left >= FIRST_S:
                self._run(test, left, seed + covered.steps, covered)
            all_covered.append(covered)
        return all_covered

    def _run(self, test: Test, seconds: float, seed: int, covered: Coverage) -> None:
        if self.ended.is_set():
            return
        begin = time.monotonic()
        kinds = {
            "budget": self._budget,
            "seeds": self._seeds,
            "pytest": self._pytest,
            "fuzzer": self._fuzzer,
        }
        kinds[test.kind](test, seconds, seed, covered)
        covered.seconds += time.monotonic() - begin
        if covered.failure or seconds > FIRST_S:
            with self.lock:
                self._say(covered)
        if covered.failure and self.stops:
            self.ended.set()

    def _say(self, covered: Coverage) -> None:
        units = "".join(f", {count:,} {unit}" for unit, count in covered.units.items())
        outcome = "FAILED" if covered.failure else "ok"
        print(
            f"{covered.of.name}: {covered.test}: {covered.steps:,} steps{units}, "
            f"{covered.seconds:.0f} s: {outcome}",
            flush=True,
        )
        if covered.failure:
            print(f"{covered.failure}\n\nreplay: {covered.replay}\n", flush=True)

    def _judge(
        self, covered: Coverage, status: int | None, output: str, otherwise: str, step_file: Path
    ) -> None:
        covered.add(output)
        LOGS.mkdir(parents=True, exist_ok=True)
        (LOGS / (re.sub(r"[^A-Za-z0-9_.-]+", "_", covered.test) + ".log")).write_text(
            output, errors="replace"
        )
        if status == 0:
            return
        why = "it did not end in time" if status is None else f"exit status {status}"
        covered.failure = f"{tail(output)}\n{why}"
        covered.replay = replay_of(output, step_file, otherwise)

    def _googletest(
        self, filter_: str, environment: dict[str, str], seconds: float, covered: Coverage
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            step_file = Path(folder) / "step"
            known = environment | {"GPUFS_TEST_STEP_FILE": str(step_file)}
            status, output = run_process(
                [self.program, f"--gtest_filter={filter_}"], known, seconds
            )
            words = " ".join(f"{name}={value}" for name, value in environment.items())
            program = (
                self.program.relative_to(ROOT)
                if self.program.is_relative_to(ROOT)
                else self.program
            )
            self._judge(
                covered, status, output, f"{words} {program} --gtest_filter={filter_}", step_file
            )
            covered.replay = covered.replay.replace("build/release/tests/gpufs_tests", str(program))

    def _budget(self, test: Test, seconds: float, seed: int, covered: Coverage) -> None:
        known = {"GPUFS_TEST_SEED": str(seed), "GPUFS_TEST_SECONDS": str(max(1, round(seconds)))}
        self._googletest(test.name, known, seconds, covered)

    def _seeds(self, test: Test, seconds: float, seed: int, covered: Coverage) -> None:
        first, end = seed, time.monotonic() + seconds
        while time.monotonic() < end and not covered.failure and not self.ended.is_set():
            known = {"GPUFS_TEST_SEED": str(seed), "GPUFS_TEST_SEED_COUNT": str(SEEDS_AT_ONCE)}
            self._googletest(test.name, known, seconds, covered)
            covered.steps += SEEDS_AT_ONCE
            seed += SEEDS_AT_ONCE
        covered.seeds = (first, seed - 1)

    def _pytest(self, test: Test, seconds: float, seed: int, covered: Coverage) -> None:
        each = max(1, round(seconds / 5))  # a file has several tests
        known = {"GPUFS_TEST_SEED": str(seed), "GPUFS_TEST_SECONDS": str(each)}
        python = Path(os.environ.get("GPUFS_TEST_PYTHON", TEST_PYTHON))
        command: list[str | Path] = [
            python,
            "-m",
            "pytest",
            "--capture=no",
            "--quiet",
            "--timeout=0",
            test.name,
        ]
        with tempfile.TemporaryDirectory() as folder:
            step_file = Path(folder) / "step"
            status, output = run_process(
                command, known | {"GPUFS_TEST_STEP_FILE": str(step_file)}, seconds
            )
            self._judge(covered, status, output, f"{python} -m pytest {test.name}", step_file)

    def _fuzzer(self, test: Test, seconds: float, seed: int, covered: Coverage) -> None:
        outcome = fuzz.run(test.name, round(seconds), seed % 2**32)
        covered.steps = outcome.executions
        covered.units["inputs"] = outcome.executions
        covered.seeds = (seed, seed)
        if outcome.replay:
            covered.failure = outcome.output
            covered.replay = outcome.replay


@dataclass(frozen=True)
class Share:
    """The time of a class, or one of several shares if there are more processors than classes."""

    tests: tuple[Test, ...]
    seconds: float
    copy: int


def shares(tests: Sequence[Test], seconds: float, jobs: int) -> list[Share]:
    """Returns the shares, longest first, so that `jobs` at a time take about `seconds`."""
    by_class: dict[str, list[Test]] = {}
    for test in tests:
        by_class.setdefault(test.of.name, []).append(test)
    if not by_class:
        return []
    copies = -(-jobs // len(by_class))
    whole = copies * sum(mine[0].of.weight for mine in by_class.values())
    made = [
        Share(tuple(mine), min(seconds, seconds * jobs * mine[0].of.weight / whole), copy)
        for mine in by_class.values()
        for copy in range(copies)
    ]
    return sorted(made, key=lambda share: -share.seconds)


def table(all_covered: Sequence[Coverage], *, markdown: bool) -> str:
    """Returns a table of the classes' coverage."""
    rows = [("class", "tests", "steps", "covered", "seeds", "seconds", "failed")]
    for of in (*CLASSES, FUZZERS, OTHERS):
        mine = [covered for covered in all_covered if covered.of is of]
        if not mine:
            continue
        units: dict[str, int] = {}
        for covered in mine:
            for unit, count in covered.units.items():
                units[unit] = units.get(unit, 0) + count
        seeds = [covered.seeds for covered in mine if covered.seeds is not None]
        rows.append(
            (
                of.name,
                str(len(mine)),
                f"{sum(covered.steps for covered in mine):,}",
                ", ".join(f"{count:,} {unit}" for unit, count in units.items()),
                f"{min(s[0] for s in seeds)} to {max(s[1] for s in seeds)}" if seeds else "",
                f"{sum(covered.seconds for covered in mine):.0f}",
                str(sum(1 for covered in mine if covered.failure)),
            )
        )
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Runs random and enumerated tests for a time.")
    parser.add_argument("minutes", type=float, nargs="?", default=10.0)
    parser.add_argument("--list", action="store_true", help="list the classes and their tests")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CLASS", help="run only this class"
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="the first seed; else a new one"
    )
    parser.add_argument(
        "--program",
        type=Path,
        default=PROGRAM,
        help="the tests' program, such as one with a sanitizer",
    )
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="tests at a time"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the table at the end in Markdown"
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="collect failures instead of stopping at the first",
    )
    parser.add_argument(
        "--no-fuzzers", action="store_true", help="without libFuzzer, also where it could be had"
    )
    arguments = parser.parse_args()
    program = arguments.program.resolve()
    tests = tests_of_program(program) + tests_in_python()
    if fuzz.is_possible() and not arguments.no_fuzzers:
        if not arguments.list:
            fuzz.build(arguments.jobs)
        tests += [Test(FUZZERS, target, "fuzzer") for target in fuzz.targets()]
    known = {test.of.name for test in tests}
    unknown = set(arguments.only) - known
    if unknown:
        parser.error(
            f"no such class: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"
        )
    if arguments.only:
        tests = [test for test in tests if test.of.name in arguments.only]
    if arguments.list:
        for of in (*CLASSES, FUZZERS, OTHERS):
            mine = [test.name for test in tests if test.of is of]
            print("\n  ".join([f"{of.name}{'' if mine else ': no tests'}", *mine]))
        return 0
    if all(test.kind != "pytest" for test in tests):
        print("skipped: tests in Python (`make test STAGES=python` installs what they need)")
    if not fuzz.is_possible():
        print(f"skipped: fuzzers ({fuzz.MISSING})")
    print(f"seed {arguments.seed}, {len(tests)} tests, {arguments.minutes:g} minutes", flush=True)
    soak = Soak(program, arguments.seed, not arguments.keep_going)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        parts = shares(tests, arguments.minutes * 60, arguments.jobs)
        done = pool.map(lambda share: soak.run_class(share.tests, share.seconds, share.copy), parts)
        all_covered = [covered for mine in done for covered in mine]
    print(f"\n{table(all_covered, markdown=arguments.markdown)}")
    failed = [covered for covered in all_covered if covered.failure]
    for covered in failed:
        print(f"FAILED {covered.of.name}: {covered.test}\n  replay: {covered.replay}")
    if not any(covered.steps for covered in all_covered):
        print("No step was made, which counts as a failure.", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
