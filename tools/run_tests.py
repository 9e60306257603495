#!/usr/bin/env python3
"""Runs the project's checks and tests stage by stage, and reports the results.

    tools/run_tests.py [STAGE...]         everything that runs without a GPU
    tools/run_tests.py --gpu [STAGE...]   what needs one
    tools/run_tests.py --list             the stages

Each stage writes ``build/logs/STAGE.log``; if the stage fails, the end of the log is shown. The
summary lists the failed tests, and its last line counts tests (a stage without a test runner counts
as one). The exit status is 0 only if nothing failed and something ran.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOGS = BUILD / "logs"
VENV_PYTHON = ROOT / ".venv" / "bin" / "python3"
JOBS = str(len(os.sched_getaffinity(0)))
COMPILE_TIMEOUT_S = 3600
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

    The limit is for commands that could hang. Compilers always end, even on slow machines, and have
    the limit COMPILE_TIMEOUT_S.
    """

    def __init__(self, name: str, log: TextIO, timeout_s: float) -> None:
        self.name = name
        self.log = log
        self.timeout_s = timeout_s
        self.counts = Counts()

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
            words,
            cwd=ROOT,
            env=dict(os.environ) | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s or self.timeout_s)
        except subprocess.TimeoutExpired:
            raise StageError(f"out of time in: {' '.join(words)}") from None
        finally:
            # Kills background processes of the command, also when this program is interrupted.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status != 0:
            raise StageError(f"exit status {status} from: {' '.join(words)}")

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
        self, program: Path, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        """Runs a googletest program in several processes, each with a share of the tests.

        One more than processors, because tests wait at times. With two per processor, calls that
        must end within milliseconds were late. One process per test, as in CTest, would spend most
        of its time on startup, above all under a sanitizer.
        """
        reports = [LOGS / f"{self.name}-{shard}.xml" for shard in range(int(JOBS) + 1)]
        for report in reports:
            report.unlink(missing_ok=True)

        def run_share(shard: int) -> StageError | None:
            shares = {"GTEST_TOTAL_SHARDS": str(len(reports)), "GTEST_SHARD_INDEX": str(shard)}
            command: list[str | Path] = [*prefix, program, f"--gtest_output=xml:{reports[shard]}"]
            with (LOGS / f"{self.name}-{shard}.log").open("w") as log:
                try:
                    self.run(*command, env=shares | dict(env or {}), log=log)
                except StageError as error:
                    return error
            return None

        with concurrent.futures.ThreadPoolExecutor(len(reports)) as pool:
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


# --- The stages ---


def configure(job: Job, preset: str) -> None:
    # Equal for all stages: a different architecture would compile everything again.
    options = (
        [f"-DGPUFS_TEST_CUDA_ARCHITECTURES={cuda_architecture()}"] if preset == "release" else []
    )
    job.run("cmake", "--preset", preset, *options)


def compile_targets(job: Job, preset: str, *targets: str) -> None:
    chosen = ["--target", *targets] if targets else []
    job.run(
        "cmake", "--build", BUILD / preset, "--parallel", JOBS, *chosen, timeout_s=COMPILE_TIMEOUT_S
    )


def ctest(job: Job, preset: str, label: str) -> None:
    report = LOGS / f"{job.name}.xml"
    job.run_tests(
        report,
        *("ctest", "--test-dir", BUILD / preset, "--label-regex", f"^{label}$", "--no-tests=error"),
        *("--parallel", JOBS, "--output-on-failure", "--output-junit", report),
    )


def cpu_tests(preset: str) -> Path:
    return BUILD / preset / "tests" / "gpufs_tests"


def setup(job: Job) -> None:
    job.run("tools/setup.sh", "test")


def lint(job: Job) -> None:
    job.run("tools/lint.sh", "check")


def cpu(job: Job) -> None:
    configure(job, "release")
    compile_targets(job, "release", "gpufs_tests")
    job.run_googletest(cpu_tests("release"))


def models(job: Job) -> None:
    configure(job, "release")
    ctest(job, "release", "models")


def without_address_randomisation() -> list[str]:
    """Returns a command prefix that disables address randomisation, if the machine has it.

    ThreadSanitizer of g++ 12 and 13 does not start if the kernel randomises addresses widely.
    """
    setarch = ["setarch", os.uname().machine, "-R"]
    try:
        possible = (
            subprocess.run([*setarch, "true"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        possible = False
    return setarch if possible else []


def tsan(job: Job) -> None:
    configure(job, "tsan")
    compile_targets(job, "tsan", "gpufs_tests")
    options = {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
    job.run_googletest(cpu_tests("tsan"), options, without_address_randomisation())


def asan(job: Job) -> None:
    configure(job, "asan")
    compile_targets(job, "asan", "gpufs_tests")
    options = {"ASAN_OPTIONS": "strict_string_checks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    job.run_googletest(cpu_tests("asan"), options)


def has_gpu() -> bool:
    return subprocess.run([ROOT / "tools" / "has_gpu.sh"], check=False).returncode == 0


def cuda_architecture() -> str:
    """Returns the architecture to compile for.

    Without a GPU the code is not run and not assembled: assembling takes nine tenths of the time.
    The stage `consumer` always assembles one kernel, for all architectures.
    """
    return "90" if has_gpu() else "90-virtual"


def cuda_compile(job: Job) -> None:
    """Compiles the CUDA tests. The stage `python` compiles the applications' kernels."""
    configure(job, "release")
    compile_targets(
        job,
        "release",
        "gpufs_tests_cuda",
        "gpufs_tests_strict_memory",
        "gpufs_on_gpu",
        "gpufs_tile_kernel",
    )


def gpu_if_there(job: Job) -> None:
    ctest(job, "release", "gpu")


def consumer(job: Job) -> None:
    """Installs the library, and builds other projects against it, in C++ and in CUDA."""
    configure(job, "release")
    compile_targets(job, "release", "gpufs")
    prefix = BUILD / "prefix"
    shutil.rmtree(prefix, ignore_errors=True)
    job.run("cmake", "--install", BUILD / "release", "--prefix", prefix)
    # The flags contain the library folder of an nvcc from PyPI.
    toolkit = [
        f"-D{name}={cache_entry(BUILD / 'release', name)}"
        for name in ("CMAKE_CUDA_COMPILER", "CMAKE_CUDA_FLAGS")
    ]
    # One program for all architectures; it also runs without a GPU. All programs need a GPU, if
    # they are compiled for one.
    for name, target, architectures in (
        ("tutorial-cpp", "all", None),
        ("tutorial-cuda-one", "count", "80-real;90"),
        ("tutorial-cuda", "all", cuda_architecture()),
    ):
        build = BUILD / name
        options = [f"-DCMAKE_PREFIX_PATH={prefix}"]
        if architectures is not None:
            options += [
                "-DTUTORIAL_CUDA=ON",
                f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
                *toolkit,
            ]
        shutil.rmtree(build, ignore_errors=True)
        job.run(
            *("cmake", "-S", ROOT / "examples" / "tutorial", "-B", build, "-G", "Ninja"),
            *options,
        )
        job.run(
            *("cmake", "--build", build, "--target", target, "--parallel", JOBS),
            timeout_s=COMPILE_TIMEOUT_S,
        )
        if target != "all":
            job.run(build / target)
        elif architectures is None or has_gpu():
            job.run("ctest", "--test-dir", build, "--output-on-failure", "--timeout", "60")
        job.counts.add(Counts(passed=1))


def cache_entry(build: Path, name: str) -> str:
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.partition(":")[0] == name:
            return value
    raise StageError(f"{build} has no {name}")


TEST_VENV = BUILD / "venv"


def python(job: Job) -> None:
    """Installs the package into an empty environment, as a user would, and tests it there."""
    job.run(VENV_PYTHON, "-m", "venv", "--clear", "--without-pip", TEST_VENV)
    test_python = TEST_VENV / "bin" / "python3"
    # Uses the pip of .venv, so that the new environment needs none. Constraints apply to the tests'
    # tools, not to the isolated build.
    pins = BUILD / "test-constraints.txt"
    tools = (ROOT / "requirements-dev.txt").read_text().replace("-r requirements-build.txt\n", "")
    pins.write_text(tools + (ROOT / "tests" / "python" / "constraints.txt").read_text())
    job.run(
        *(
            VENV_PYTHON,
            "-m",
            "pip",
            "--python",
            test_python,
            "install",
            "--constraint",
            pins,
            ".[test]",
        ),
        env={"GPUFS_CUDA": "ON", "CUDAARCHS": cuda_architecture()},
        timeout_s=COMPILE_TIMEOUT_S,
    )
    # One more process than processors, because tests wait at times; but tests on a GPU run one at a
    # time.
    processes = 0 if has_gpu() else int(JOBS) + 1
    report = LOGS / "python.xml"
    job.run_tests(
        report, test_python, "-m", "pytest", f"--numprocesses={processes}", f"--junitxml={report}"
    )


def demo(job: Job) -> None:
    job.run(sys.executable, "tools/demo.py", "--gpufs", TEST_VENV / "bin" / "gpufs", "--quick")


def setup_gpu(job: Job) -> None:
    job.run("tools/setup.sh", "gpu")


def gpu_build(job: Job) -> None:
    configure(job, "gpu")
    compile_targets(job, "gpu", "gpufs_tests_cuda", "gpufs_tests_strict_memory", "gpufs_on_gpu")


GPU_TESTS = BUILD / "gpu" / "tests" / "cuda" / "gpufs_tests_cuda"


def gpu(job: Job) -> None:
    report = LOGS / "gpu.xml"
    job.run(GPU_TESTS.with_name("gpufs_on_gpu"))
    job.run_tests(report, GPU_TESTS, "--gtest_filter=-Litmus*", f"--gtest_output=xml:{report}")


def litmus(job: Job) -> None:
    """Runs the assumptions of docs/memory_model.md as programs; prints their counts.

    Also runs the mode that assumes less.
    """
    try:
        for program, chosen in (
            (GPU_TESTS, "Litmus*"),
            (GPU_TESTS.with_name("gpufs_tests_strict_memory"), "*"),
        ):
            report = LOGS / f"litmus-{program.name}.xml"
            job.run_tests(
                report, program, f"--gtest_filter={chosen}", f"--gtest_output=xml:{report}"
            )
    finally:
        job.log.flush()
        for line in Path(job.log.name).read_text(errors="replace").splitlines():
            if line.startswith(("litmus: ", "$ ")):
                print(f"    {line}", flush=True)


def compute_sanitizer(tool: str) -> Callable[[Job], None]:
    def stage(job: Job) -> None:
        program = find_compute_sanitizer()
        if program is None:
            job.counts.add(Counts(skipped=1, reasons=["compute-sanitizer is not installed"]))
            return
        report = LOGS / f"{tool}.xml"
        job.run_tests(
            report,
            *(program, "--tool", tool, "--error-exitcode", "99"),
            *(GPU_TESTS, "--gtest_filter=*Sanitizer*", f"--gtest_output=xml:{report}"),
        )

    return stage


def find_compute_sanitizer() -> Path | None:
    on_path = shutil.which("compute-sanitizer")
    if on_path:
        return Path(on_path)
    nvcc = Path(cache_entry(BUILD / "gpu", "CMAKE_CUDA_COMPILER")).resolve()
    for place in (nvcc.parent, nvcc.parent.parent / "compute-sanitizer"):
        if os.access(place / "compute-sanitizer", os.X_OK):
            return place / "compute-sanitizer"
    return None


@dataclass(frozen=True)
class Stage:
    name: str
    text: str
    run: Callable[[Job], None]
    timeout_s: int  # of each command except compilers
    needs: tuple[str, ...] = ()


STAGES = (
    Stage("setup", "install what is missing", setup, 900),
    Stage("lint", "form and types", lint, 300, ("setup",)),
    Stage("cpu", "C++ tests on the CPU device, optimised", cpu, 1800, ("setup",)),
    Stage("models", "protocol models", models, 1800, ("setup",)),
    Stage("tsan", "C++ tests under ThreadSanitizer", tsan, 1800, ("setup",)),
    Stage(
        "asan", "C++ tests under Address- and UndefinedBehaviorSanitizer", asan, 1800, ("setup",)
    ),
    Stage("cuda", "compile the C++ tests for GPUs", cuda_compile, 1200, ("setup",)),
    Stage("gpu", "C++ tests on a GPU, where there is one", gpu_if_there, 900, ("cuda",)),
    Stage(
        "consumer", "install, and build another CMake project with it", consumer, 600, ("setup",)
    ),
    Stage(
        "python", "pip install into an empty environment, Python tests", python, 1800, ("setup",)
    ),
    Stage("demo", "the demo, with what pip installed", demo, 300, ("python",)),
)

GPU_STAGES = (
    Stage("setup", "find or install compilers and googletest", setup_gpu, 900),
    Stage("build", "compile the tests for this GPU", gpu_build, 900, ("setup",)),
    Stage("gpu", "C++ tests on the GPU", gpu, 600, ("build",)),
    Stage("litmus", "what is assumed of the GPU's memory", litmus, 300, ("build",)),
    Stage(
        "memcheck",
        "memory accesses, under compute-sanitizer",
        compute_sanitizer("memcheck"),
        300,
        ("build",),
    ),
    Stage(
        "synccheck",
        "barriers, under compute-sanitizer",
        compute_sanitizer("synccheck"),
        300,
        ("build",),
    ),
    Stage(
        "racecheck",
        "races in shared memory, under compute-sanitizer",
        compute_sanitizer("racecheck"),
        300,
        ("build",),
    ),
)


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


def run_stage(stage: Stage) -> tuple[str, Counts]:
    """Returns the stage's outcome ('passed', 'failed' or 'skipped') and its tests."""
    path = LOGS / f"{stage.name}.log"
    failure: Exception | None = None
    with path.open("w") as log:
        job = Job(stage.name, log, stage.timeout_s)
        try:
            stage.run(job)
        except (StageError, OSError, ElementTree.ParseError) as error:
            log.write(f"{stage.name}: {error}\n")
            failure = error
    counts = job.counts
    if failure is not None:
        counts.failed = max(counts.failed, 1)
        lines = path.read_text(errors="replace").splitlines()
        print(f"--- {path.relative_to(ROOT)}: the tests that failed, and the end ---")
        print("\n".join([*failed_tests(lines), *lines[-TAIL_LINES:]]))
        print("---", flush=True)
        return "failed", counts
    if counts.passed + counts.skipped == 0:
        counts.passed = 1
    return ("skipped" if counts.passed == 0 else "passed"), counts


def describe(outcome: str, counts: Counts) -> str:
    text = f"{outcome:<8} {counts}"
    return f"{text} ({'; '.join(counts.reasons)})" if counts.reasons else text


def run_stages(stages: Sequence[Stage], chosen: Sequence[str]) -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    total = Counts()
    outcomes: dict[str, str] = {}
    summary = []
    failures: list[str] = []
    for number, stage in enumerate(stages, 1):
        if chosen and stage.name not in chosen:
            continue
        print(f"[{number}/{len(stages)}] {stage.name}: {stage.text}", flush=True)
        start = time.monotonic()
        broken = [need for need in stage.needs if outcomes.get(need) == "failed"]
        if broken:
            outcome, counts = "skipped", Counts(skipped=1, reasons=[f"'{broken[0]}' failed"])
        else:
            outcome, counts = run_stage(stage)
        outcomes[stage.name] = outcome
        failures += [f"{stage.name}: {failure}" for failure in counts.failures]
        if stage.name != "setup" or outcome == "failed":
            total.add(counts)
        seconds = time.monotonic() - start
        line = f"{stage.name:<10} {seconds:5.0f} s  {describe(outcome, counts)}"
        print(f"    {line}", flush=True)
        summary.append(line)
    print("\nSummary")
    for line in summary:
        print(f"  {line}")
    for failure in failures:
        print(f"\nFailed: {failure}")
    print(f"\n{total}", flush=True)
    ran = total.passed + total.failed > 0
    if not ran:
        print("No test ran, which counts as a failure.", file=sys.stderr)
    return 0 if ran and total.failed == 0 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the project's checks and tests.")
    parser.add_argument("--gpu", action="store_true", help="run the stages that need a GPU")
    parser.add_argument("--list", action="store_true", help="list the stages")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="run only these")
    arguments = parser.parse_args()
    stages = GPU_STAGES if arguments.gpu else STAGES
    unknown = set(arguments.stages) - {stage.name for stage in stages}
    if unknown:
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    if arguments.list:
        for stage in stages:
            print(f"{stage.name:<10} {stage.text}")
        return 0
    os.environ["PATH"] = f"{VENV_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    if arguments.gpu and not has_gpu():
        print(f"No GPU here: nothing to run.\n\n{Counts(skipped=len(stages) - 1)}")
        return 1
    return run_stages(stages, arguments.stages)


if __name__ == "__main__":
    sys.exit(main())
