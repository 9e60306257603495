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

# How both programs without gpufs cut and read files of text, and keep what they find.
TEXT_FILES = "grep/rival_files.hpp grep/rival_files.cpp grep/rival_findings.hpp grep/rival_findings.cpp"

# Of each application the kernels over gpufs, what launches them, the CUDA program and the CPU program; files of one are
# separated by blanks. Of words in text the kernels are window, search, counts and where a binary file ends;
# their host part takes the counts from the sink. Nobody's are the hash tables, how words are told and compared, and how
# counts are added up by path. What the CUDA program leaves to the CPU is in the CPU program.
PROGRAMS = {
    "words in text": (
        "grep/kernel.cuh grep/window.cuh grep/matcher.cuh grep/tally.cuh grep/find_cuts.cuh",
        "grep/search.cpp grep/launch.hpp grep/launch.cpp grep/report.hpp grep/collect.hpp grep/collect.cpp",
        f"grep/rival_cuda.cpp {TEXT_FILES}",
        f"grep/rival_host.hpp grep/rival_host.cpp grep/rival_text.hpp grep/rival_text.cpp {TEXT_FILES}",
    ),
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
        sources = ["".join((APPS / file).read_text(encoding="utf-8") for file in cell.split()) for cell in files]
        cells = ["{} ({})".format(*count(source)) for source in sources]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
