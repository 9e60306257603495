"""What the daemon knows: virtual GPUs, programs, GPUs, segments."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any, Final

PHASES: Final = ("on", "moving out", "off", "moving in")
# overhead_source in gdev/protocol/account.hpp
OVERHEAD_SOURCES: Final = ("unknown", "nvml", "difference")
WHEN_FULL: Final = ("swap", "wait", "fail")
# counter in gdev/protocol/counters.hpp
COUNTERS: Final = (
    "launches",
    "fills",
    "to_device",
    "to_host",
    "unknown_functions",
    "bypasses",
    "turns",
    "bytes_out",
    "bytes_in",
    "moving_ns",
    "waiting_ns",
    "refusals",
)


@dataclass(frozen=True)
class Vgpu:
    """A virtual GPU. All amounts are bytes."""

    name: str
    limit: int
    used: int
    granted: int
    clients: int
    refusals: int
    """How often a client asked for more than the limit."""
    owner: int
    reserve: int
    """As much of the GPU is never taken away from its programs."""
    priority: int
    when_full: str
    end_after_s: int
    """A program that cannot leave the GPU for so long is killed; 0: never."""
    number: int
    shared: int
    """Of what is used: by keys, which are not a program's."""
    overhead: int
    """Of what is used: no allocations, but contexts, modules and the like."""


@dataclass(frozen=True)
class Client:
    """A program that runs under gdev. All amounts are bytes."""

    id: int
    """Of the connection; none is used twice."""
    vgpu: str
    process: int
    user: int
    used: int
    granted: int
    phase: str
    """Where it is: one of PHASES."""
    phase_ns: int
    is_paused: bool
    is_waiting: bool
    """For memory on its GPU: others have it."""
    is_unfit: bool
    """It is off its GPU, and needs more than there is for it."""
    is_held: bool
    """It is on its GPU, and waits for the rest of its job (``gdev run --job``)."""
    stays: int
    """The errno of a turn that it could not end, or 0."""
    swappable: int
    resident: int
    overhead: int
    """Of what is used: no allocations, but contexts, modules and the like."""
    overhead_source: str
    """How that is known, of OVERHEAD_SOURCES."""
    gpu: int
    """The number of its GPU; 0: none yet."""
    counts: dict[str, int]
    """By the names of COUNTERS: as it said when it was asked last."""
    names: int
    """How many unknown functions it has said the name of."""

    @property
    def swapped(self) -> int:
        """What is on the host."""
        return max(self.swappable - self.resident, 0)

    @property
    def wired(self) -> int:
        """What is in use, and stays while others have their turns; also what is on other GPUs."""
        return max(self.used - self.swappable, 0)

    def to_json(self) -> dict[str, Any]:
        """Returns what ``gdev ps --json`` and ``gdev top --json`` show."""
        return {
            "process": self.process,
            "vgpu": self.vgpu,
            "gpu": gpu_label(self.gpu) or None,
            "state": self.state,
            "used": self.used,
            "overhead": self.overhead,
            "swapped": self.swapped,
            "wired": self.wired,
        }

    @property
    def state(self) -> str:
        """Where it is, and what it waits for, in words: see ``gdev ps --help``."""
        words = [self.phase]
        if self.is_paused:
            words.append("paused")
        if self.is_unfit:
            words.append("does not fit")
        elif self.is_waiting:
            words.append("waits for memory")
        if self.is_held:
            words.append("held for its job")
        if self.stays:
            # ENOMEM: the host has no room for it; EBUSY: its work does not end.
            why = {errno.ENOMEM: "no host memory", errno.EIO: "file error", errno.EBUSY: "busy"}
            words.append(why.get(self.stays, os.strerror(self.stays)))
        return ", ".join(words)


@dataclass(frozen=True)
class GpuUse:
    """A GPU on which programs take turns. All amounts are bytes."""

    number: int
    total: int
    capacity: int
    rooms: int
    """What the programs on it may have."""
    overhead: int
    """What they have beside their allocations."""
    unaccounted: int
    """What is in use and none of their memory."""

    @property
    def label(self) -> str:
        """Its number as text."""
        return gpu_label(self.number)

    def to_json(self) -> dict[str, Any]:
        """Returns what ``gdev gpu list --json`` and ``gdev top --json`` show."""
        return {
            "gpu": self.label,
            "memory": self.total,
            "for_programs": self.capacity,
            "given": self.rooms,
            "overhead": self.overhead,
            "unaccounted": self.unaccounted,
        }


def gpu_label(number: int) -> str:
    """Returns a GPU's number as text; empty if there is none."""
    return f"{number:016x}" if number else ""


@dataclass(frozen=True)
class Segment:
    """Device memory shared by a key."""

    id: int
    key: int
    """0: it has none."""
    bytes: int
    owner: int
    mode: int
    attachments: int
    is_removed: bool
    vgpu: str
