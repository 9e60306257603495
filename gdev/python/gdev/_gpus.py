"""What ``nvidia-smi`` says of the GPUs, also by the numbers that gdev gives them."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from typing import Final

_TIMEOUT_S: Final = 20  # a driver that is broken may never answer


@dataclass(frozen=True)
class ListedGpu:
    """How ``nvidia-smi`` names a GPU; None: it does not."""

    index: int | None = None
    uuid: str | None = None


def query(*fields: str) -> list[list[str]]:
    """Returns these fields of each GPU that ``nvidia-smi`` lists; none without it."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[field.strip() for field in line.split(",")] for line in listed.splitlines()]


def number_of(uuid: str) -> int:
    """Returns gdev's number of a UUID: FNV-1a of its bytes (gpu_facts.cpp). Raises ValueError."""
    number = 0xCBF29CE484222325
    for byte in bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")):
        number = (number ^ byte) * 0x100000001B3 % (1 << 64)
    return number | 1


def listed() -> dict[int, ListedGpu]:
    """Returns the GPUs by gdev's numbers; none without ``nvidia-smi``."""
    found = {}
    for index, uuid in query("index", "uuid"):
        with contextlib.suppress(ValueError):  # it has no UUID
            found[number_of(uuid)] = ListedGpu(int(index), uuid)
    return found
