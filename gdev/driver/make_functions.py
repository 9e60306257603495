#!/usr/bin/env python3
"""Writes the table of the driver's functions from cuda.h and from their classes.

    make_functions.py INCLUDE_FOLDER CLASSES OUTPUT GATED

INCLUDE_FOLDER is the one of cuda.h, CLASSES is functions.txt. OUTPUT has one line for each name
that the driver exports, sorted: ``GDEV_FUNCTION(index, name, class)``. GATED has those that submit
work and that cuda.h declares: ``GDEV_GATED(name, class)``. Exit status: 0; 1 if a function has no
class, or two.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CLASSES = ("launch", "copy", "memory", "handle", "query", "context", "capture", "forward")
GATED_CLASSES = ("launch", "copy")
# The others may be absent, and declare nothing that has no class.
HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
PROTOTYPE = re.compile(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(")
# `#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)`, and without the call
RENAMED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+cu[A-Z]\w*[ \t]+"
    r"(?:__CUDA_API_(PTDS|PTSZ)\()?(cu[A-Z]\w*)\)?[ \t]*$",
    re.MULTILINE,
)
VARIANT = re.compile(r"(_v\d+)?(_pt[ds][sz])?$")


def written(name: str) -> str:
    """Returns the name that programs write for an exported name."""
    return VARIANT.sub("", name, count=1)


def declared(folder: Path) -> set[str]:
    """Returns the names that the headers declare, with all versions and kinds of streams."""
    names = set()
    for header in HEADERS:
        path = folder / header
        if not path.exists() and header != "cuda.h":
            continue
        text = path.read_text(errors="replace")
        names.update(PROTOTYPE.findall(text))
        for stream, name in RENAMED.findall(text):
            names.add(name)
            if stream:
                names.add(f"{name}_{stream.lower()}")
    return names


def declared_with_types(folder: Path) -> set[str]:
    """Returns the exported names that cuda.h declares for __CUDA_API_VERSION_INTERNAL.

    Most prototypes are written for programs, and renamed by macros; others are those of older
    versions, and of the legacy default stream.
    """
    text = (folder / "cuda.h").read_text(errors="replace")
    renamed = {
        f"{name}_{stream.lower()}" if stream else name for stream, name in RENAMED.findall(text)
    }
    return renamed | set(PROTOTYPE.findall(text))


def read_classes(path: Path) -> dict[str, str]:
    """Returns the class of each function."""
    classes: dict[str, str] = {}
    current = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text.startswith("["):
            current = text.strip("[]")
            if current not in CLASSES:
                sys.exit(f"{path}:{number}: there is no class {current}")
            continue
        for name in text.split():
            if name in classes or not current:
                sys.exit(f"{path}:{number}: {name} has two classes, or none")
            classes[name] = current
    return classes


def write(path: Path, rows: list[str]) -> None:
    """Writes a file, if it has changed: what includes it is compiled again then."""
    text = "\n".join(["// Made by make_functions.py.", *rows, ""])
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> int:
    folder, classes_path, output, gated = (Path(argument) for argument in sys.argv[1:5])
    classes = read_classes(classes_path)
    names = declared(folder)
    unknown = sorted({written(name) for name in names} - classes.keys())
    if unknown:
        print(f"{classes_path}: no class for {' '.join(unknown)}", file=sys.stderr)
        return 1
    submitting = [
        f"GDEV_GATED({name}, {classes[written(name)]})"
        for name in sorted(names & declared_with_types(folder))
        if classes[written(name)] in GATED_CLASSES
    ]
    # Functions of newer or other headers than these, which the installed driver may have.
    names |= classes.keys() - {written(name) for name in names}
    rows = [
        f"GDEV_FUNCTION({index}, {name}, {classes[written(name)]})"
        for index, name in enumerate(sorted(names))
    ]
    write(output, rows)
    write(gated, submitting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
