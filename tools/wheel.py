#!/usr/bin/env python3
"""Builds a wheel for machines without compilers, and tests it in an empty environment.

The wheel has machine code for GPUs of compute capability 8.0, 9.0 and 10.0, and PTX for later ones.
It runs with this Python version, and with this machine's C library or a newer one. Uses only
Python's standard library.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV_PYTHON = ROOT / ".venv" / "bin" / "python3"
ARCHITECTURES = "80-real;90-real;100"
# What ARCHITECTURES means in the wheel.
CODE = frozenset({("machine code", 80), ("machine code", 90), ("machine code", 100), ("PTX", 100)})

FATBIN = b"\x50\xed\x55\xba"  # begins a container of GPU code
KINDS = {1: "PTX", 2: "machine code"}


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output; its errors go to the terminal."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, check=True, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ).stdout


def build(folder: Path) -> Path:
    """Builds the wheel."""
    subprocess.run([ROOT / "tools" / "setup.sh", "wheel"], check=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        subprocess.run(
            [VENV_PYTHON, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", made, ROOT],
            check=True,
            env=dict(os.environ) | {"GPUFS_CUDA": "ON", "CUDAARCHS": ARCHITECTURES},
        )
        (wheel,) = Path(made).glob("*.whl")
        return wheel.replace(folder / wheel.name)


def gpu_code(binary: bytes) -> Iterator[tuple[str, int]]:
    """Yields the kind and the architecture of each GPU code in a library."""
    begin = binary.find(FATBIN)
    while begin != -1:
        header_bytes, code_bytes = struct.unpack_from("<HQ", binary, begin + 6)
        at, end = begin + header_bytes, begin + header_bytes + code_bytes
        while at < end:
            kind, entry_bytes, payload_bytes = struct.unpack_from("<H2xIQ", binary, at)
            (architecture,) = struct.unpack_from("<I", binary, at + 28)
            yield KINDS.get(kind, f"kind {kind}"), architecture
            at += entry_bytes + payload_bytes
        begin = binary.find(FATBIN, end)


def check(wheel: Path) -> None:
    """Installs the wheel where nothing else is, and uses it. Raises SystemExit if it fails."""
    with zipfile.ZipFile(wheel) as files:
        (core,) = (name for name in files.namelist() if Path(name).match("_core.*.so"))
        found = frozenset(gpu_code(files.read(core)))
    if found != CODE:
        sys.exit(f"wheel: {wheel.name} has {sorted(found)} instead of {sorted(CODE)}")
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        python = environment / "bin" / "python3"
        start = time.monotonic()
        run(VENV_PYTHON, "-m", "pip", "--python", python, "install", "--quiet",
            "--only-binary", ":all:", wheel)  # fmt: skip
        print(f"wheel: installed in {time.monotonic() - start:.0f} s")
        text = Path(folder, "text")
        text.write_text("one word and another word\n")
        # No compiler, and nothing else, is on the path.
        empty = {"PATH": os.fspath(environment / "bin"), "HOME": folder}
        gpufs = environment / "bin" / "gpufs"
        if (counts := run(gpufs, "grep", "word", text, env=empty)) != f"{text}\tword\t2\n":
            sys.exit(f"wheel: gpufs grep prints {counts!r}")
        doctor = subprocess.run(
            [gpufs, "doctor"], env=empty, cwd=folder, text=True, capture_output=True, check=False
        )
        print(doctor.stdout, end="")
        if "Traceback" in doctor.stderr or not doctor.stdout:
            sys.exit(f"wheel: gpufs doctor fails: {doctor.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds a wheel with GPU code and tests it.")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "dist")
    parser.add_argument("--check", type=Path, metavar="WHEEL", help="only test this wheel")
    arguments = parser.parse_args()
    wheel = arguments.check
    if wheel is None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        wheel = build(arguments.folder)
    check(wheel.resolve())
    print(f"wheel: {wheel} ({wheel.stat().st_size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
