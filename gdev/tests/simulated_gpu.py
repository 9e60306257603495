"""Runs programs on a simulated GPU, with and without gdev.

GDEV_TEST_BUILD names the build's folder of gdev. GDEV_TEST_CHECKED names that of a build with a
sanitizer: gdev and the simulated driver are taken from there, and the tests' own programs from the
first. GDEV_TEST_PRELOAD names libraries that must come before gdev's: the sanitizer's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("GDEV_TEST_BUILD", ROOT / "build" / "release" / "gdev"))
PRELOAD = os.environ.get("GDEV_TEST_PRELOAD", "")
CHECKED = Path(os.environ.get("GDEV_TEST_CHECKED", BUILD))
# No program of a test takes seconds; sanitizers and busy machines do.
TIMEOUT_S = 60


@contextlib.contextmanager
def gpu_folder() -> Iterator[Path]:
    """A folder for the files of simulated GPUs, in memory where that has room for many.

    Each kernel changes such a file, and on a disk its pages are written back.
    """
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free >= 2 << 30
    with tempfile.TemporaryDirectory(
        prefix="gdev-test-", dir=memory if has_room else None
    ) as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Gpu:
    """A simulated GPU of a test's own."""

    memory: Path
    bytes: int
    programs: Path = CHECKED / "programs"
    """gdev's library and daemon."""

    @property
    def driver(self) -> Path:
        return CHECKED / "simulated" / "libcuda.so.1"

    @property
    def interposer(self) -> Path:
        return self.programs / "libcuda.so.1"

    @property
    def preloaded(self) -> str:
        """What programs under gdev are started with: a sanitizer's library must be the first."""
        return f"{PRELOAD} {self.interposer}".strip()

    @property
    def nvml(self) -> Path:
        return CHECKED / "simulated_nvml" / "libnvidia-ml.so.1"

    @property
    def kernels(self) -> Path:
        return BUILD / "tests" / "kernels.ptx"

    def environment(self, under_gdev: bool = True) -> dict[str, str]:
        """Returns the environment of a program that uses this GPU, with or without gdev."""
        chosen = dict(os.environ)
        chosen.update(
            LD_LIBRARY_PATH=str(self.driver.parent),
            GDEV_SIMULATED_GPU=str(self.memory),
            GDEV_SIMULATED_MEMORY=str(self.bytes),
            GDEV_NVML="/nonexistent",  # tests of overhead name the simulated one
        )
        preloaded = self.preloaded if under_gdev else PRELOAD
        if preloaded:
            chosen["LD_PRELOAD"] = preloaded
        return chosen

    def run(
        self,
        program: str | Path,
        *arguments: str | Path,
        under_gdev: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of the tests' programs, or any other. Its exit status may be any."""
        path = BUILD / "tests" / program if isinstance(program, str) else program
        return subprocess.run(
            [str(path), *map(str, arguments)],
            env=self.environment(under_gdev) | dict(env or {}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def status_of(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Returns what a program printed last: what gdev says of it. It must have succeeded."""
    assert process.returncode == 0, process.stdout + process.stderr
    found = json.loads(process.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found
