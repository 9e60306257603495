"""Counts the code of the applications: kernels over gpufs, their host part, and the programs that do without it.

Prints a Markdown table of lines with code, neither blank nor comments, and of statements: semicolons, as the GPUfs
paper counts them (TOCS 2014, section 6.2.1). What an application's programs share (numbers, tiles, the second look at
distances, layouts) is counted for none of them; nor is what the others would have to bring along besides: paths,
errors, buffers (apps/job, apps/rival).
"""

from __future__ import annotations

import re
from pathlib import Path

APPS = Path(__file__).resolve().parent.parent / "apps"

# Of each application the kernels over gpufs, what launches them, the CUDA program and the CPU program.
PROGRAMS = {
    "matrix times vector": (
        "linear/matvec_kernels.cuh",
        "linear/matvec.cpp",
        "linear/matvec_rival_cuda.cpp",
        "linear/matvec_rival_host.cpp",
    ),
    "matrix times matrix": (
        "linear/matmul_kernels.cuh",
        "linear/matmul.cpp",
        "linear/matmul_rival_cuda.cpp",
        "linear/matmul_rival_host.cpp",
    ),
    "image search": ("search/kernels.cuh", "search/search.cpp", "search/rival_cuda.cpp", "search/rival_host.cpp"),
    "image collage": ("collage/kernels.cuh", "collage/collage.cpp", "collage/rival_cuda.cpp", "collage/rival_host.cpp"),
}


def count(source: str) -> tuple[int, int]:
    """Returns lines with code and statements of a C++ source."""
    without_strings = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', source)
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", without_strings, flags=re.DOTALL)
    return sum(1 for line in code.splitlines() if line.strip()), code.count(";")


def main() -> None:
    """Prints the table."""
    print("| lines (statements) | kernels over gpufs | their host part | CUDA without gpufs | CPU |")
    print("|---|---|---|---|---|")
    for name, files in PROGRAMS.items():
        cells = ["{} ({})".format(*count((APPS / file).read_text(encoding="utf-8"))) for file in files]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
