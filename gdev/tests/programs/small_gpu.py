"""Makes the GPU small. What programs take beside allocations counts too, so it comes on top."""

from __future__ import annotations

import time
from collections.abc import Iterable

from gdev import _daemon, _files

JOINED_WITHIN_S = 35.0  # the first import of PyTorch may take half of it
KNOWN_WITHIN_S = 2.0  # where NVML is there


def overheads(processes: Iterable[int]) -> list[int]:
    """Waits for programs, and until it is known what each takes beside allocations, in bytes.

    Without NVML none of it counts: 0.
    """
    wanted = list(processes)
    joined_end = time.monotonic() + JOINED_WITHIN_S
    known_end = 0.0
    while True:
        with _daemon.Daemon(_files.socket_path()) as daemon:
            found = {one.process: one for one in daemon.clients()}
        now = time.monotonic()
        if found.keys() >= set(wanted):
            known_end = known_end or now + KNOWN_WITHIN_S
            chosen = [found[one] for one in wanted]
            if now > known_end or all(one.overhead_source != "unknown" for one in chosen):
                return [one.overhead for one in chosen]
        elif now > joined_end:
            raise TimeoutError("the programs do not use the GPU")
        time.sleep(0.05)


def set_memory(size: int) -> int:
    """Sets what all programs may have of the GPU together. Returns what it was."""
    with _daemon.connect(start=True) as daemon:
        before, *_ = daemon.settings()
        daemon.settings(memory=size)
    return before
