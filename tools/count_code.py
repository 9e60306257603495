"""Counts the code of the applications: kernels, their host part, and programs without gpufs.

Prints a Markdown table of lines and statements. Lines are those with code: not blank lines,
comments, includes or namespaces. Statements are semicolons, as in the GPUfs paper (TOCS 2014,
section 6.2.1). "Checks, plans, memory" are input checks, the arithmetic that divides the work for a
cache, and the layout of shared memory.

Not counted is the code that all programs of an application share (numbers, tiles, the second check
of distances, layouts), and what the programs without gpufs need in addition: paths, errors, buffers
(apps/job, and the headers at the top of benchmarks/rivals).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
APPS = ROOT / "apps"
RIVALS = ROOT / "benchmarks" / "rivals"


class Program(NamedTuple):
    """The files of an application, relative to its folder in apps/ or benchmarks/rivals/."""

    folder: str
    kernels: tuple[str, ...]
    host: tuple[str, ...]
    besides: tuple[str, ...]
    cuda: tuple[str, ...]
    cpu: tuple[str, ...]


# Both programs without gpufs use these to divide and read text files, and to keep results.
TEXT_FILES = ("files.hpp", "files.cpp", "findings.hpp", "findings.cpp")

# For words in text, the kernels are window, search, counts and the end of a binary file; their host
# part takes the counts from the sink. Hash tables, word comparison, and adding up counts by path
# are counted for no program. The part of the CUDA program that runs on the CPU is counted for the
# CPU program.
PROGRAMS = {
    "words in text": Program(
        folder="grep",
        kernels=("kernel.cuh", "window.cuh", "matcher.cuh", "tally.cuh", "find_cuts.cuh"),
        host=("search.cpp", "launch.hpp", "launch.cpp", "report.hpp", "collect.hpp", "collect.cpp"),
        besides=(),
        cuda=("cuda.cpp", *TEXT_FILES),
        cpu=("host.hpp", "host.cpp", "text.hpp", "text.cpp", *TEXT_FILES),
    ),
    "matrix times vector": Program(
        folder="linear",
        kernels=("matvec_kernels.cuh",),
        host=("matvec.cpp",),
        besides=("checks.hpp", "numbers_of.hpp", "matvec_plan.hpp"),
        cuda=("matvec_cuda.cpp",),
        cpu=("matvec_host.cpp",),
    ),
    "matrix times matrix": Program(
        folder="linear",
        kernels=("matmul_kernels.cuh",),
        host=("matmul.cpp", "multiply_float32.cpp"),
        besides=("checks.hpp", "numbers_of.hpp", "matmul_plan.hpp"),
        cuda=("matmul_cuda.cpp",),
        cpu=("matmul_host.cpp",),
    ),
    "image search": Program(
        folder="search",
        kernels=("kernels.cuh",),
        host=("search.cpp", "scan_two_parts.cpp"),
        besides=("checks.cpp", "plan.hpp", "workspace.hpp"),
        cuda=("cuda.cpp",),
        cpu=("host.cpp",),
    ),
    "image collage": Program(
        folder="collage",
        kernels=("kernels.cuh",),
        host=("collage.cpp",),
        besides=("checks.hpp", "plan.hpp", "memory.hpp", "order.hpp"),
        cuda=("cuda.cpp",),
        cpu=("host.cpp",),
    ),
}


def count(source: str) -> tuple[int, int]:
    """Returns the lines with code and the statements of a C++ source."""
    without_strings = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', source)
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", without_strings, flags=re.DOTALL)
    named = re.sub(r"(?m)^(#include|#pragma once|namespace .*\{$).*", "", code)
    lines = sum(1 for line in named.splitlines() if line.strip())
    return lines - len(re.findall(r"(?m)^namespace .*\{$", code)), code.count(";")


def cell(folder: Path, files: tuple[str, ...]) -> str:
    """Returns a table cell with the counts of some files."""
    counts = [count((folder / file).read_text(encoding="utf-8")) for file in files]
    return "{} ({})".format(*map(sum, zip(*counts, strict=True))) if counts else ""


def main() -> None:
    """Prints the table."""
    columns = (
        "kernels over gpufs",
        "their host part",
        "checks, plans, memory",
        "CUDA without gpufs",
        "CPU",
    )
    print(f"| lines (statements) | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for name, program in PROGRAMS.items():
        cells = [
            cell(APPS / program.folder, files)
            for files in (program.kernels, program.host, program.besides)
        ] + [cell(RIVALS / program.folder, files) for files in (program.cuda, program.cpu)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
