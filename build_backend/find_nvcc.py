"""Finds a CUDA compiler: the machine's, or that of the ``cuda-toolkit`` package from PyPI.

Uses only the standard library: the build backend, CMake and ``tools/setup.sh`` all use it. As a
program it prints the compiler's path and exits with 0, or prints nothing and exits with 1::

    find_nvcc.py                 the path
    find_nvcc.py --requirement   the package to install if there is no compiler
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# The first version with the atomic operations that the device code uses.
MINIMUM_VERSION = (12, 8)

# The meta-package, because the single packages do not require equal versions of each other.
REQUIREMENT = "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]==13.0.*"


def candidates() -> Iterator[Path]:
    """Yields possible compilers, best first."""
    chosen = os.environ.get("CUDACXX")
    if chosen:
        found = shutil.which(chosen)
        if found:
            yield Path(found)
    on_path = shutil.which("nvcc")
    if on_path:
        yield Path(on_path)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root:
            yield Path(root, "bin", "nvcc")
    yield Path("/usr/local/cuda/bin/nvcc")
    yield from installed_by_pip()


def installed_by_pip() -> Iterator[Path]:
    """Yields the compilers from PyPI in this interpreter's environment."""
    specification = importlib.util.find_spec("nvidia")
    if specification is None:
        return
    for folder in specification.submodule_search_locations or ():
        yield from sorted(Path(folder).glob("cu[0-9]*/bin/nvcc"), reverse=True)


def version(nvcc: Path) -> tuple[int, int] | None:
    """Returns the release that the compiler reports, or None if it cannot be run."""
    try:
        output = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"release (\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else None


def find_nvcc() -> Path | None:
    """Returns the first compiler that is new enough, or None."""
    for nvcc in candidates():
        found = version(nvcc)
        if found is not None and found >= MINIMUM_VERSION:
            return nvcc
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Finds the CUDA compiler to build with.")
    parser.add_argument(
        "--requirement", action="store_true", help="print what to install where there is none"
    )
    if parser.parse_args().requirement:
        print(REQUIREMENT)
        return 0
    nvcc = find_nvcc()
    if nvcc is None:
        return 1
    print(nvcc)
    return 0


if __name__ == "__main__":
    sys.exit(main())
