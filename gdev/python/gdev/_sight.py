"""What happens under gdev at one moment, and between two: for ``gdev top`` and ``gdev metrics``.

Programs count in memory of their own. The daemon asks them for their counts when it is asked, so
:func:`look` waits for their answers. It does not wait for programs that are stopped or move their
memory: their last counts are returned.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gdev import _daemon
from gdev._records import Client, GpuUse, Vgpu

ANSWERS_WAIT_S: Final = 0.1
_PAUSE_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class VgpuSight:
    """A virtual GPU, with its programs."""

    vgpu: Vgpu
    programs: list[Client]
    counts: dict[str, int]
    """Of its programs together, also of those that have ended."""

    @property
    def swapped(self) -> int:
        """What its programs have on the host."""
        return sum(one.swapped for one in self.programs)

    @property
    def wired(self) -> int:
        """What its programs have in use that stays on the GPU, and what is shared by keys."""
        return self.vgpu.shared + sum(one.wired for one in self.programs)


@dataclass(frozen=True, slots=True)
class Sight:
    """All at one moment."""

    time_s: float  # since 1970
    clock_s: float  # monotonic
    vgpus: list[VgpuSight]
    gpus: list[GpuUse]

    def programs(self) -> Iterator[Client]:
        """Yields all programs."""
        for one in self.vgpus:
            yield from one.programs


def look(daemon: _daemon.Daemon) -> Sight:
    """Looks at everything. Waits for the programs, at most ``ANSWERS_WAIT_S``. Raises OSError."""
    end = time.monotonic() + ANSWERS_WAIT_S
    missing = daemon.observe(begin=True)
    while missing and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        missing = daemon.observe(begin=False)
    programs = daemon.clients()
    vgpus = []
    for vgpu in daemon.vgpus():
        # After the programs: one that ends meanwhile is in these sums.
        totals = daemon.totals(vgpu.name)
        if totals is not None:
            own = [one for one in programs if one.vgpu == vgpu.name]
            vgpus.append(VgpuSight(vgpu, own, totals))
    return Sight(time.time(), time.monotonic(), vgpus, daemon.gpus())
