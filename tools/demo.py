#!/usr/bin/env python3
"""The demo: builds the command line and searches this machine's files for a dictionary's words.

It searches the headers and the Python library. Uses only Python's standard library;
``tools/setup.sh demo`` installs the rest.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "build" / "demo"
VENV = ROOT / ".venv"
GENERATED_WORDS_MAX = 50_000
SHOWN_LINES = 5


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run(
        [str(word) for word in command], check=True, cwd=ROOT, env=dict(os.environ) | (env or {})
    )


def has_gpu() -> bool:
    return subprocess.run([ROOT / "tools" / "has_gpu.sh"], check=False).returncode == 0


def install() -> list[str]:
    """Builds and installs the package. Returns the first words of its command line.

    Installs into .venv; or, if the machine has all build tools and no .venv, into a folder of its
    own.
    """
    run(ROOT / "tools" / "setup.sh", "demo")
    cuda = "ON" if has_gpu() else "OFF"
    print(
        f"demo: building for {'GPUs and ' if cuda == 'ON' else ''}the CPU (minutes the first time)",
        flush=True,
    )
    pip_install = [
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-build-isolation",
    ]
    build_directory = f"--config-settings=build-dir={DEMO / f'build-cuda-{cuda.lower()}'}"
    if VENV.exists():
        run(VENV / "bin" / "python3", *pip_install, build_directory, ROOT, env={"GPUFS_CUDA": cuda})
        return [str(VENV / "bin" / "gpufs")]
    site = DEMO / "site"
    shutil.rmtree(site, ignore_errors=True)
    run(
        "python3",
        *pip_install,
        "--no-deps",
        "--target",
        site,
        build_directory,
        ROOT,
        env={"GPUFS_CUDA": cuda},
    )
    os.environ["PYTHONPATH"] = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(
        os.pathsep
    )
    return ["python3", str(site / "bin" / "gpufs")]


def search_paths(quick: bool) -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    candidates = [library / "json", library / "email"] if quick else [Path("/usr/include"), library]
    return [path for path in candidates if path.is_dir()]


def dictionary(paths: Sequence[Path]) -> tuple[Path, str]:
    """Returns a file with one word a line, and the origin of its words."""
    installed = Path("/usr/share/dict/words")
    if installed.is_file():
        return installed, f"the system's dictionary, {installed}"
    fetched = DEMO / "dictionary" / "usr" / "share" / "dict" / "american-english"
    if fetched.is_file() or unpack_dictionary(DEMO / "dictionary"):
        return fetched, "the dictionary of the package wamerican, unpacked into build/demo"
    generated = DEMO / "words"
    generated.parent.mkdir(parents=True, exist_ok=True)
    generated.write_text("\n".join(words_of(paths)) + "\n")
    return (
        generated,
        "the commonest words of the searched files themselves (no dictionary is installed or to be "
        "had)",
    )


def unpack_dictionary(folder: Path) -> bool:
    """Fetches the package with the machine's package manager, without installing it or root."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return False
    with tempfile.TemporaryDirectory() as download:
        try:
            subprocess.run(
                ["apt-get", "-qq", "download", "wamerican"],
                cwd=download,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=120,
            )
            (package,) = Path(download).glob("wamerican*.deb")
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        except (OSError, ValueError, subprocess.SubprocessError):
            return False
    return True


def words_of(paths: Sequence[Path]) -> list[str]:
    counts: collections.Counter[bytes] = collections.Counter()
    for file in files_of(paths):
        try:
            counts.update(re.findall(rb"[A-Za-z]{4,20}", file.read_bytes()))
        except OSError:
            continue  # unreadable files are skipped
    return sorted(word.decode() for word, _ in counts.most_common(GENERATED_WORDS_MAX))


def files_of(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        for folder, _, names in os.walk(path):
            yield from (
                Path(folder, name) for name in names if name.endswith((".h", ".hpp", ".py"))
            )


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds gpufs and shows it at work.")
    parser.add_argument(
        "--gpufs", type=Path, help="the installed command to use, instead of building one"
    )
    parser.add_argument("--quick", action="store_true", help="search few files only")
    arguments = parser.parse_args()
    command = [str(arguments.gpufs.absolute())] if arguments.gpufs else install()
    paths = search_paths(arguments.quick)
    words, origin = dictionary(paths)
    count = sum(1 for _ in words.open("rb"))
    print(f"demo: {count} words, from {origin}")
    search = [*command, "grep", "--summary", "--device", "auto", "-f", str(words), *map(str, paths)]
    print(f"demo: {' '.join(search)}", flush=True)
    DEMO.mkdir(parents=True, exist_ok=True)
    found = DEMO / "matches.tsv"
    with found.open("wb") as output:
        status = subprocess.run(search, check=False, stdout=output).returncode
    with found.open("rb") as lines:
        print(
            f"demo: the first lines of {found.relative_to(ROOT)} (path, word, count):", flush=True
        )
        for line, _ in zip(lines, range(SHOWN_LINES), strict=False):
            print("  " + line.decode(errors="replace").rstrip())
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"demo: {' '.join(map(str, error.cmd))} failed with exit status {error.returncode}"
        )
