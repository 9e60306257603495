#!/usr/bin/env python3
"""Checks the library's layers and the form of all texts: part of `make lint`.

Headers and sources include only their own layer and those below it, without a cycle. No two headers
of the library have one name. Only start_thread() starts threads, because all of them must block the
program's signals. Tests and gdev include what they name of the headers that are precompiled for
them, as no compiler would notice. No line has more than 100 columns, and no row of a table more
than 120. No source of the library has more than 500 lines, and no file of the tests more than 600.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 100
TABLE_COLUMNS = 120
LINES = 500
TEST_LINES = 600
# From the bottom to the top. Folders in one string are in one layer.
DEVICE_LAYERS = ("base", "text channel", "cache", "file", "calls")
HOST_LAYERS = ("base", "backend device", "service", "mount")
INCLUDE = re.compile(r'^#include "(?P<path>[^"]+)"', re.MULTILINE)
# What starts a thread. A variable or a container of the type std::thread does not.
STARTS_THREAD = re.compile(
    r"std::thread\s*(\w+\s*)?[({](?!\s*[)}])|std::jthread|std::async\b|\bpthread_create\b"
)
THREADS_START_IN = "include/gpufs/base/start_thread.hpp"
CODE = (".cuh", ".hpp", ".cpp", ".py", ".pyi")
# What sources name of the headers that tests/CMakeLists.txt and gdev/CMakeLists.txt precompile.
PRECOMPILED = {
    "gtest/gtest.h": r"\b(EXPECT|ASSERT)_\w+\(|\bTEST(_[FP])?\(",
    "algorithm": r"std::(min|max|sort|find|find_if|count|count_if|copy|fill|equal|all_of|any_of"
    r"|none_of|clamp|reverse|shuffle|unique|lower_bound|remove_if|transform|generate"
    r"|min_element|max_element|mismatch|search|ranges::\w+)\(",
    "atomic": r"std::(atomic|memory_order)",
    "functional": r"std::(function|ref|hash)\b",
    "map": r"std::(multi)?map\b",
    "memory": r"std::(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared)\b",
    "mutex": r"std::(mutex|lock_guard|unique_lock|scoped_lock|call_once)\b",
    "random": r"std::(mt19937|uniform_|random_device)",
    "string": r"std::(string|to_string|stoi|stoul)\b",
    "thread": r"std::(thread|this_thread)\b",
    "vector": r"std::vector\b",
}


def tracked() -> list[Path]:
    """Returns the files of the repository, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def level(layers: tuple[str, ...], folder: str) -> int:
    """Returns the number of a folder's layer."""
    return next(number for number, names in enumerate(layers) if folder in names.split())


def device_folder(path: str) -> str:
    """Returns the folder of a header below include/gpufs; the calls themselves lie at its top."""
    folder, _, _ = path.removeprefix("gpufs/").rpartition("/")
    return folder or "calls"


def upward_includes(files: list[Path]) -> Iterator[str]:
    """Returns what includes a higher layer, or leads back to itself."""
    graph: dict[str, list[str]] = {}
    for path in files:
        name = path.as_posix()
        text = (ROOT / path).read_text() if path.suffix in (".cuh", ".hpp", ".cpp") else ""
        if name.startswith("include/gpufs/"):
            own = name.removeprefix("include/")
            graph[own] = [i for i in INCLUDE.findall(text) if i.startswith("gpufs/")]
            for other in graph[own]:
                if own.endswith(".hpp") or other.endswith(".hpp"):
                    continue  # host interfaces, which no device header needs
                if level(DEVICE_LAYERS, device_folder(own)) < level(
                    DEVICE_LAYERS, device_folder(other)
                ):
                    yield f"{name} includes {other}, which is in a higher layer"
        elif name.startswith("src/") and len(path.parts) == 3:
            for other in INCLUDE.findall(text):
                folder = other.partition("/")[0]
                if folder in " ".join(HOST_LAYERS).split() and level(
                    HOST_LAYERS, path.parts[1]
                ) < level(HOST_LAYERS, folder):
                    yield f"{name} includes {other}, which is in a higher layer"
            own = name.removeprefix("src/")
            graph[own] = INCLUDE.findall(text)
    yield from cycles(graph)


def cycles(graph: dict[str, list[str]]) -> Iterator[str]:
    """Returns the cycles of includes, each once."""
    done: set[str] = set()

    def walk(name: str, above: list[str]) -> Iterator[str]:
        if name in above:
            yield " includes ".join([*above[above.index(name) :], name])
        elif name not in done and name in graph:
            for other in graph[name]:
                yield from walk(other, [*above, name])
            done.add(name)

    for name in graph:
        yield from walk(name, [])


def same_names(files: list[Path]) -> Iterator[str]:
    """Returns headers of the library that have one name."""
    seen: dict[str, Path] = {}
    for path in files:
        if path.parts[0] not in ("include", "src") or path.suffix not in (".cuh", ".hpp"):
            continue
        if (other := seen.setdefault(path.name, path)) != path:
            yield f"{path} has the name of {other}"


def thread_starts(files: list[Path]) -> Iterator[str]:
    """Returns lines that start a thread and should call start_thread()."""
    for path in files:
        name = path.as_posix()
        if not name.startswith(("include/", "src/", "apps/", "python/src/")):
            continue
        if name == THREADS_START_IN or path.suffix not in CODE:
            continue
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if STARTS_THREAD.search(line):
                yield f"{name}:{number} starts a thread without start_thread()"


def missing_includes(files: list[Path]) -> Iterator[str]:
    """Returns what sources name of precompiled headers that neither they nor their header include.

    The programs of gdev/bench have no such headers.
    """
    for path in files:
        if path.parts[0] not in ("tests", "gdev") or path.parts[1] == "bench":
            continue
        if path.suffix != ".cpp":
            continue
        text = (ROOT / path).read_text()
        header = ROOT / path.with_suffix(".hpp")
        included = text + (header.read_text() if header.is_file() else "")
        code = re.sub(r"//.*", "", text)
        for name, pattern in PRECOMPILED.items():
            if f"#include <{name}>" not in included and re.search(pattern, code):
                yield f"{path} does not include <{name}>"


def long_texts(files: list[Path]) -> Iterator[str]:
    """Returns lines that are too wide, and files that are too long."""
    for path in files:
        is_document = path.suffix == ".md"
        if not is_document and path.suffix not in CODE:
            continue
        lines = (ROOT / path).read_text().splitlines()
        fenced = False
        for number, line in enumerate(lines, 1):
            fenced ^= is_document and line.lstrip().startswith("```")
            in_table = is_document and not fenced and line.lstrip().startswith("|")
            has_link = "://" in line or (is_document and "](" in line)
            if in_table and len(line) > TABLE_COLUMNS:
                yield f"{path}:{number} is a row of {len(line)} columns"
            elif len(line) > COLUMNS and not in_table and not fenced and not has_link:
                yield f"{path}:{number} has {len(line)} columns"
        most = {"include": LINES, "src": LINES, "python": LINES, "tests": TEST_LINES}
        if len(lines) > most.get(path.parts[0], len(lines)):
            yield f"{path} has {len(lines)} lines"


def main() -> int:
    files = tracked()
    checks = (upward_includes, same_names, thread_starts, missing_includes, long_texts)
    found = [line for check in checks for line in check(files)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
