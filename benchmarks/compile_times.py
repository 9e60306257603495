#!/usr/bin/env python3
"""Measures how long gpufs takes to compile: a user's kernel, the Python package, and tests.

    benchmarks/compile_times.py                          the kernel of compile/fourteen_calls.cu
    benchmarks/compile_times.py --flags=-Ofc=min         with other flags of nvcc, and without
    benchmarks/compile_times.py --package                the package too, as `pip wheel .` builds it
    benchmarks/compile_times.py --tests                  only the largest group of tests, with some
                                                         options; needs `make build`

Prints CPU time, because a busy machine changes it little; for the package also the time that
passed. Needs no GPU. Exit status: 0; 1 when something did not compile, with the compiler's errors;
2 without nvcc, or without the build.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL = ROOT / "benchmarks" / "compile" / "fourteen_calls.cu"
COMMANDS = ROOT / "build" / "release" / "compile_commands.json"
TESTS = "gpufs_tests.dir/Unity/unity_0_cxx.cxx"  # several sources, compiled as one
TEST_OPTIONS = (
    "-O3",
    "-O2",
    "-O1",
    "-O0",
    "-fsanitize=thread -O1",
    "-fsanitize=thread -O0",
    "-fsanitize=address -O1",
    "-fsanitize=address -O0",
    "-fsanitize=address,undefined -O1",
)
sys.path.insert(0, str(ROOT / "build_backend"))

import find_nvcc  # noqa: E402 - of the build, which uses only the standard library


def cpu_seconds() -> float:
    """Returns the CPU time of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def kernel_times(nvcc: Path, architecture: str, flags: list[str]) -> str:
    """Compiles the kernel. Returns a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        phases = Path(folder, "phases.csv")
        start = cpu_seconds()
        command: list[str | Path] = [
            nvcc,
            "-std=c++20",
            f"-arch=sm_{architecture}",
            "-O3",
            "-I",
            ROOT / "include",
        ]
        command += [*flags, "--time", phases, "-Xptxas", "-v"]
        said = subprocess.run(
            [*command, "-c", KERNEL, "-o", Path(folder, "kernel.o")],
            check=True,
            capture_output=True,
            text=True,
        ).stderr
        total = cpu_seconds() - start
        with phases.open() as lines:
            ptxas = sum(
                float(row[-2]) / 1000 for row in csv.reader(lines) if row[1:2] == [" ptxas "]
            )
    # ptxas describes the kernel first: "N bytes stack frame", then "Used N registers".
    entry = said[said.index("Compiling entry function") :]
    stack = re.search(r"(\d+) bytes stack frame", entry)
    registers = re.search(r"Used (\d+) registers", entry)
    return (
        f"{' '.join(flags) or '-':<36} {total:7.1f} s {ptxas:7.1f} s "
        f"{registers[1] if registers else '?':>9} {stack[1] if stack else '?':>8} B"
    )


def package_times(architecture: str, flags: list[str]) -> str:
    """Builds the package. Returns a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        start, begun = cpu_seconds(), time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT],
            check=True,
            env=dict(os.environ)
            | {"GPUFS_CUDA": "ON", "CUDAARCHS": architecture, "CUDAFLAGS": " ".join(flags)},
        )
        passed = time.monotonic() - begun
    return f"{' '.join(flags) or '-':<36} {cpu_seconds() - start:7.0f} s {passed:7.0f} s"


def test_command() -> list[str] | None:
    """Returns how the tests are compiled, without output, optimization and precompiled header."""
    if not COMMANDS.exists():
        return None
    for entry in json.loads(COMMANDS.read_text()):
        if entry["file"].endswith(TESTS):
            words = iter(shlex.split(entry["command"]))
            kept = []
            for word in words:
                if word in ("-o", "-include"):
                    next(words)
                elif not word.startswith(("-O", "-Winvalid-pch")):
                    kept.append(word)
            return kept
    return None


def test_times(command: list[str], options: str) -> str:
    """Compiles the tests. Returns a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        start = cpu_seconds()
        subprocess.run(
            [*command, *options.split(), "-o", Path(folder, "test.o")],
            check=True,
            capture_output=True,
            text=True,
            cwd=COMMANDS.parent,
        )
    return f"{options:<36} {cpu_seconds() - start:7.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures how long gpufs takes to compile.")
    parser.add_argument("--architecture", default="90", help="compute capability (default: 90)")
    parser.add_argument(
        "--flags",
        action="append",
        default=[],
        help="more flags of nvcc, in one argument; repeat it for other sets",
    )
    parser.add_argument("--package", action="store_true", help="build the Python package too")
    parser.add_argument("--tests", action="store_true", help="compile only a group of tests")
    arguments = parser.parse_args()
    try:
        return test(parser) if arguments.tests else device_code(parser, arguments)
    except subprocess.CalledProcessError as error:
        words = " ".join(str(word) for word in error.cmd)
        print(f"{error.stderr or ''}compile_times: failed: {words}", file=sys.stderr)
        return 1


def test(parser: argparse.ArgumentParser) -> int:
    command = test_command()
    if command is None:
        parser.exit(2, f"compile_times: {COMMANDS} does not have {TESTS}: run `make build`\n")
    version = subprocess.run(
        [command[0], "--version"], check=True, capture_output=True, text=True
    ).stdout
    print(f"{version.splitlines()[0]}, {platform.machine()}")
    print(f"\n{'a group of tests':<36} {'CPU':>9}")
    for options in TEST_OPTIONS:
        print(test_times(command, options), flush=True)
    return 0


def device_code(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    found = find_nvcc.find_nvcc()
    if found is None:
        parser.exit(2, "compile_times: no nvcc found\n")
    sets = [[], *(flags.split() for flags in arguments.flags)]
    version = subprocess.run([found, "--version"], check=True, capture_output=True, text=True)
    print(f"{version.stdout.splitlines()[-1]}, {platform.machine()}, {os.cpu_count()} processors")
    print(
        f"\n{'a kernel with 14 calls, flags':<36} {'CPU':>9} {'of ptxas':>9} registers      stack"
    )
    for flags in sets:
        print(kernel_times(Path(found), arguments.architecture, flags), flush=True)
    if arguments.package:
        print(f"\n{'the Python package, flags':<36} {'CPU':>9} {'passed':>9}")
        for flags in sets:
            print(package_times(arguments.architecture, flags), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
