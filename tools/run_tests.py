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
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stages import BUILD, LOGS, PROCESSORS, ROOT, Counts, Job, Stage, StageError, run_stages

VENV_PYTHON = ROOT / ".venv" / "bin" / "python3"
JOBS = str(PROCESSORS)
COMPILE_TIMEOUT_S = 3600
SANITIZERS = ("tsan", "asan")
# All tests of the first run each day, and a share of the others; but not those whose bounds of time
# hold at full speed only.
GDEV_CHECKED_TESTS = ("protocol", "swap", "pause", "handles")
GDEV_UNCHECKED = "allocations_of_others_make_none_fail or work_that_does_not_end"
GDEV_SHARES = 12


# --- The stages ---


def configure(job: Job, preset: str) -> None:
    # Equal for all stages: different options would compile everything again.
    options = []
    if preset == "release":
        options = [f"-DGPUFS_TEST_CUDA_ARCHITECTURES={cuda_architecture()}"]
    elif preset in SANITIZERS:
        options = [f"-DGPUFS_TEST_QUARTER={quarter_of_today()}"]
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


def compile_cpu_tests(preset: str) -> Callable[[Job], None]:
    def part(job: Job) -> None:
        configure(job, preset)
        compile_targets(job, preset, "gpufs_tests")

    return part


def cpu(job: Job) -> None:
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


def rotation() -> int:
    return int(os.environ["GPUFS_TEST_ROTATION"])


def is_whole() -> bool:
    return bool(os.environ.get("GPUFS_TEST_WHOLE"))


def sanitizer_of_today() -> str:
    """Returns the sanitizer that runs today: the other one tomorrow."""
    return SANITIZERS[rotation() % 2]


def quarter_of_today() -> str:
    """Returns which quarter of the tests runs under a sanitizer; empty: all tests.

    Each quarter runs under each sanitizer every eighth day (tests/api/matrix.hpp counts on that).
    """
    return "" if is_whole() else str(rotation() // len(SANITIZERS) % 4)


def is_of_today(stage: Stage) -> bool:
    return stage.name not in SANITIZERS or is_whole() or stage.name == sanitizer_of_today()


def tsan(job: Job) -> None:
    options = {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
    job.run_googletest(cpu_tests("tsan"), options, without_address_randomisation())


def asan(job: Job) -> None:
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


def cuda_flags(job: Job) -> dict[str, str]:
    """Returns the environment for code that is only compiled to see that it can be."""
    if has_gpu():
        return {}
    configure(job, "release")  # tests/cuda/CMakeLists.txt asks the compiler
    return {"CUDAFLAGS": "-Ofc=max"} if is_true_of_nvcc("GPUFS_NVCC_HAS_OFC") else {}


def fast_host_flags() -> dict[str, str]:
    """Returns the environment in which pip compiles host code fast, without a GPU.

    The C++ tests are compiled with -O2 (docs/decisions/build.md).
    """
    if has_gpu():
        return {}
    flags = {"CXX": "-O1", "CUDA": "-O0"}  # what takes time on the CPU device is C++
    return {
        "CMAKE_ARGS": shlex.join(
            f"-DCMAKE_{language}_FLAGS_RELEASE={level} -DNDEBUG"
            for language, level in flags.items()
        )
    }


def fast_ptxas() -> str:
    """Returns the flag that docs/api.md advises for kernels, if this nvcc has it."""
    return "-Xptxas=-Ofc=min" if is_true_of_nvcc("GPUFS_PTXAS_HAS_OFC") else ""


def is_true_of_nvcc(check: str) -> bool:
    """Returns the result of a check of the compiler by CMake."""
    return cache_entry(BUILD / "release", check) == "1"


def cuda_compile(job: Job) -> None:
    """Compiles the CUDA tests; without a GPU only their device code, to see that it can be.

    The stage `python` compiles the applications' kernels.
    """
    configure(job, "release")
    programs = (
        ("gpufs_tests_cuda", "gpufs_tests_strict_memory") if has_gpu() else ("gpufs_tests_ptx",)
    )
    compile_targets(job, "release", *programs, "gpufs_on_gpu", "gpufs_tile_kernel")


def gpu_if_there(job: Job) -> None:
    ctest(job, "release", "gpu")


def consumer(job: Job) -> None:
    """Installs the library, and builds other projects against it, in C++ and in CUDA."""
    configure(job, "release")
    build = PACKAGE
    if not package_is_built.is_set():
        compile_targets(job, "release", "gpufs", "gdev_calls")
        build = BUILD / "release"
    prefix = BUILD / "prefix"
    shutil.rmtree(prefix, ignore_errors=True)
    job.run("cmake", "--install", build, "--prefix", prefix, "--component", "devel")
    nvcc, nvcc_flags = (
        cache_entry(BUILD / "release", name) for name in ("CMAKE_CUDA_COMPILER", "CMAKE_CUDA_FLAGS")
    )
    # One program with machine code, as docs/api.md compiles it; it also runs without a GPU. All
    # programs need a GPU, if they are compiled for one.
    for name, target, architectures, flags in (
        ("tutorial-cpp", "all", None, ""),
        ("tutorial-cuda-one", "count", "80-real", fast_ptxas()),
        ("tutorial-cuda", "all", cuda_architecture(), cuda_flags(job).get("CUDAFLAGS", "")),
    ):
        build = BUILD / name
        options = [f"-DCMAKE_PREFIX_PATH={prefix}"]
        if architectures is not None:
            options += [
                "-DTUTORIAL_CUDA=ON",
                f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
                f"-DCMAKE_CUDA_COMPILER={nvcc}",
                # Those of the build contain the library folder of an nvcc from PyPI.
                f"-DCMAKE_CUDA_FLAGS={nvcc_flags} {flags}",
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
# Where pip compiles the package, and beside it the programs of gdev's tests.
PACKAGE = BUILD / "package"
package_is_built = threading.Event()  # in this run


def install_package(job: Job) -> None:
    """Installs the package into an empty environment, as a user would.

    Also builds the programs of gdev's tests, which need nearly all that the package has of gdev.
    The stage `consumer` installs the library of this build.
    """
    shutil.rmtree(PACKAGE, ignore_errors=True)
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
            f"--config-settings=build-dir={PACKAGE}",
            "--config-settings=build.targets=_core;gdev_test_programs",
            "--config-settings=cmake.define.GDEV_BUILD_TESTS=ON",
            "--config-settings=cmake.define.GPUFS_INSTALL=ON",
            ".[test]",
        ),
        env={
            "GPUFS_CUDA": "ON",
            "CUDAARCHS": cuda_architecture(),
            **cuda_flags(job),
            **fast_host_flags(),
        },
        timeout_s=COMPILE_TIMEOUT_S,
    )
    package_is_built.set()


def python(job: Job) -> None:
    # One more process than processors, because tests wait at times; but tests on a GPU run one at a
    # time.
    processes = 0 if has_gpu() else PROCESSORS + 1
    report = LOGS / "python.xml"
    pytest = (TEST_VENV / "bin" / "python3", "-m", "pytest")
    job.run_tests(report, *pytest, f"--numprocesses={processes}", f"--junitxml={report}")


def build_gdev(job: Job) -> None:
    if not package_is_built.is_set():
        configure(job, "release")
        compile_targets(job, "release", "gdev_test_programs")


def gdev_programs() -> dict[str, str]:
    """Returns the environment in which gdev's tests find their programs."""
    build = PACKAGE if package_is_built.is_set() else BUILD / "release"
    return {"GDEV_TEST_BUILD": str(build / "gdev")}


def gdev(job: Job) -> None:
    """Runs programs under gdev, on a simulated GPU."""
    report = LOGS / "gdev.xml"
    job.run_tests(
        report,
        *(VENV_PYTHON, "-m", "pytest", "gdev/tests", f"--numprocesses={PROCESSORS + 1}"),
        f"--junitxml={report}",
        env=gdev_programs(),
    )


def build_gdev_check(job: Job) -> None:
    build_gdev(job)  # the tests' own programs
    configure(job, f"gdev-{sanitizer_of_today()}")
    compile_targets(job, f"gdev-{sanitizer_of_today()}", "gdev_checked")


def gdev_check(job: Job) -> None:
    """Runs a part of gdev's tests, another one each day, with gdev under a sanitizer."""
    build = BUILD / f"gdev-{sanitizer_of_today()}"
    compiler = cache_entry(build, "CMAKE_CXX_COMPILER")
    library = [compiler, f"-print-file-name=lib{sanitizer_of_today()}.so"]
    share = rotation() // len(SANITIZERS) % GDEV_SHARES
    environment = gdev_programs() | {
        "GDEV_TEST_CHECKED": str(build / "gdev"),
        "GDEV_TEST_PRELOAD": subprocess.check_output(library, text=True).strip(),
        "GDEV_TEST_SHARE": "" if is_whole() else f"{share}/{GDEV_SHARES}",
        # The driver's simulated objects live until the process ends.
        "ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:"
        f"suppressions={ROOT / 'gdev' / 'tests' / 'tsan.supp'}",
    }
    report = LOGS / "gdev_check.xml"
    files = [f"gdev/tests/test_{name}.py" for name in GDEV_CHECKED_TESTS]
    job.run_tests(
        report,
        *without_address_randomisation(),
        *(VENV_PYTHON, "-m", "pytest"),
        *(*files, "-k", f"not ({GDEV_UNCHECKED})"),
        *(f"--numprocesses={PROCESSORS + 1}", f"--junitxml={report}"),
        env=environment,
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


# What compiles is ready when a stage needs it, if the stages before it take long enough. The tests
# come first, because they leave a processor idle at times; compilers and models never do.
STAGES = (
    Stage("setup", "install what is missing", setup, 900),
    Stage("lint", "form and types", lint, 300, ("setup",)),
    Stage(
        "cpu",
        "C++ tests on the CPU device, optimised",
        cpu,
        1800,
        ("setup",),
        compile_cpu_tests("release"),
    ),
    Stage(
        "tsan",
        "C++ tests under ThreadSanitizer",
        tsan,
        1800,
        ("setup",),
        compile_cpu_tests("tsan"),
    ),
    Stage(
        "asan",
        "C++ tests under Address- and UndefinedBehaviorSanitizer",
        asan,
        1800,
        ("setup",),
        compile_cpu_tests("asan"),
    ),
    Stage(
        "python",
        "pip install into an empty environment, Python tests",
        python,
        1800,
        ("setup",),
        install_package,
    ),
    Stage("gdev", "programs under gdev, on a simulated GPU", gdev, 600, ("setup",), build_gdev),
    # Not in every run yet: not each of its shares is known to pass on a slow machine.
    Stage(
        "gdev_check",
        "gdev under a sanitizer",
        gdev_check,
        600,
        ("setup",),
        build_gdev_check,
        only_if_chosen=True,
    ),
    Stage("demo", "the demo, with what pip installed", demo, 300, ("python",)),
    Stage(
        "consumer",
        "install, and build another CMake project with it",
        None,
        600,
        ("setup",),
        consumer,
    ),
    Stage("cuda", "compile the C++ tests for GPUs", None, 1200, ("setup",), cuda_compile),
    Stage("gpu", "C++ tests on a GPU, where there is one", gpu_if_there, 900, ("cuda",)),
    Stage("models", "protocol models", None, 3600, ("setup",), models),
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the project's checks and tests.")
    parser.add_argument("--gpu", action="store_true", help="run the stages that need a GPU")
    parser.add_argument("--list", action="store_true", help="list the stages")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="run only these")
    arguments = parser.parse_args()
    stages: tuple[Stage, ...] = GPU_STAGES if arguments.gpu else STAGES
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
    # Tests with random work take other seeds each day (tests/support/seeds.hpp).
    share = os.environ.setdefault("GPUFS_TEST_ROTATION", str(int(time.time()) // 86400))
    print(f"Seeds: GPUFS_TEST_ROTATION={share}", flush=True)
    if not arguments.stages:
        stages = tuple(stage for stage in stages if is_of_today(stage))
    return run_stages(stages, arguments.stages)


if __name__ == "__main__":
    sys.exit(main())
