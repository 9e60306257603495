"""What a benchmark found: a table as the numbers come, and a file with all of them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    name: str
    memory_bytes: int
    driver: str


def gpus() -> list[Gpu]:
    """Returns the GPUs that nvidia-smi lists; none without it."""
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        listed = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    found = []
    for line in listed.splitlines():
        name, memory, driver = (part.strip() for part in line.split(","))
        found.append(Gpu(name, int(memory) << 20 if memory.isdecimal() else 0, driver))
    return found


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


class Table:
    """Columns of fixed widths, so that each row can be printed when it is known."""

    def __init__(self, title: str, **widths: int) -> None:
        """Prints the title and the names of the columns."""
        self._widths = tuple(widths.values())
        print(f"{title}\n")
        self.row(*(name.upper().replace("_", " ") for name in widths))

    def row(self, *cells: str) -> None:
        """Prints a row."""
        padded = (f"{text:{width}}" for text, width in zip(cells, self._widths, strict=True))
        print("  ".join(padded).rstrip(), flush=True)
