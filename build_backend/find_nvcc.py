"""Finds the CUDA compiler to build with: the machine's, or the one of the ``cuda-toolkit`` package from PyPI.

Needs nothing but the standard library: the build backend, CMake and ``tools/setup.sh`` all ask
here. As a program it prints the compiler's path and exits with 0, or prints nothing and exits with
1::

    find_nvcc.py                 the path
    find_nvcc.py --requirement   what to install where there is none
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

# The device code uses atomic operations that came with this version.
MINIMUM_VERSION = (12, 8)

# One meta-package, because the single packages do not hold each other to one version.
REQUIREMENT = "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]==13.0.*"


def candidates() -> Iterator[Path]:
    """Yields the places where a compiler may be, best first."""
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
    """Yields the compilers that this interpreter's environment has from PyPI."""
    specification = importlib.util.find_spec("nvidia")
    if specification is None:
        return
    for folder in specification.submodule_search_locations or ():
        yield from sorted(Path(folder).glob("cu[0-9]*/bin/nvcc"), reverse=True)


def version(nvcc: Path) -> tuple[int, int] | None:
    """Returns the release that the compiler reports, or None where it cannot be run."""
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
