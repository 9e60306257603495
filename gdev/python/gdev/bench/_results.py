"""What a benchmark found: a table as the numbers come, and a file with all of them."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from gdev import _gpus


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    name: str
    memory_bytes: int
    driver: str


def gpus() -> list[Gpu]:
    """Returns the GPUs that nvidia-smi lists; none without it."""
    return [
        Gpu(name, int(memory) << 20 if memory.isdecimal() else 0, driver)
        for name, memory, driver in _gpus.query("name", "memory.total", "driver_version")
    ]


def machine() -> dict[str, object]:
    """Returns what a reader of the numbers must know of this machine."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "processors": os.cpu_count(),
        "gpus": [asdict(one) for one in gpus()],
    }


def processor() -> str:
    """Returns the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class Results:
    """All numbers of a benchmark. Leaving its context writes them to the file, if there is one."""

    def __init__(self, benchmark: str, settings: dict[str, object], path: Path | None) -> None:
        """Opens the file, so that an error of it comes before the measurement. Raises OSError."""
        self._file: IO[str] | None = path.open("w") if path else None
        self._benchmark = benchmark
        self._settings = settings
        self._date = datetime.datetime.now(datetime.UTC)
        self.runs: list[dict[str, Any]] = []
        """What each run of a program printed."""
        self.summary: list[dict[str, Any]] = []
        """What the table shows."""

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is None:
            return
        with self._file:
            whole = {
                "benchmark": self._benchmark,
                "date": self._date.isoformat(timespec="seconds"),
                "machine": machine(),
                "settings": self._settings,
                "summary": self.summary,
                "runs": self.runs,
            }
            json.dump(whole, self._file, indent=1)
            self._file.write("\n")


@dataclass(frozen=True)
class Layout:
    """A table of a benchmark, for the terminal and for documents."""

    title: str
    widths: dict[str, int]
    """By the names of the columns."""
    cells: Callable[[dict[str, Any]], tuple[str, ...]]
    """Returns the cells of a row, from what the summary has of it."""

    @property
    def names(self) -> list[str]:
        """The names of the columns, as they are printed."""
        return [name.replace("_", " ") for name in self.widths]


class Table:
    """Columns of fixed widths, so that each row can be printed when it is known."""

    def __init__(self, layout: Layout) -> None:
        """Prints the title and the names of the columns."""
        self._layout = layout
        print(f"{layout.title}\n")
        self.cells(*(name.upper() for name in layout.names))

    def row(self, found: dict[str, Any]) -> None:
        """Prints a row of the summary."""
        self.cells(*self._layout.cells(found))

    def cells(self, *cells: str) -> None:
        """Prints a row."""
        widths = self._layout.widths.values()
        padded = (f"{text:{width}}" for text, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip(), flush=True)


@dataclass(frozen=True)
class Part:
    """A table with its rows, and what is to say of all of them."""

    layout: Layout
    rows: list[dict[str, Any]]
    note: str = ""


def print_part(part: Part) -> None:
    """Prints a table that is known as a whole."""
    table = Table(part.layout)
    for row in part.rows:
        table.row(row)
    print(f"\n{part.note}\n" if part.note else "")


def markdown(part: Part) -> Iterator[str]:
    """Yields the lines of a table for a document."""
    yield from (f"{part.layout.title}:", "")
    lines = [part.layout.names, ["---"] * len(part.layout.names)]
    lines += [[" ".join(text.split()) for text in part.layout.cells(row)] for row in part.rows]
    yield from ("| " + " | ".join(line) + " |" for line in lines)
    yield from ("", part.note) if part.note else ()
