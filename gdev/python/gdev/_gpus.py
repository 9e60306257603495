"""Which GPUs ``nvidia-smi`` lists under the numbers that gdev gives them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class ListedGpu:
    """A GPU as ``nvidia-smi`` lists it."""

    index: int
    uuid: str


def number_of(uuid: str) -> int:
    """Returns gdev's number of a UUID: FNV-1a of its bytes (gpu_facts.cpp). Raises ValueError."""
    number = 0xCBF29CE484222325
    for byte in bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")):
        number = (number ^ byte) * 0x100000001B3 % (1 << 64)
    return number | 1


def listed() -> dict[int, ListedGpu]:
    """Returns the GPUs by gdev's numbers; none without ``nvidia-smi``."""
    try:
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    found = [ListedGpu(int(index), uuid) for index, uuid in map(_words, text.splitlines())]
    return {number_of(one.uuid): one for one in found}


def _words(line: str) -> tuple[str, str]:
    index, _, uuid = line.partition(",")
    return index.strip(), uuid.strip()
